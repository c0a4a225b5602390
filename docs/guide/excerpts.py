"""The ladders' code in the guide's chapters: `python docs/guide/excerpts.py` brings it up to date.

A python block after the comment `<!-- code: schedule gemm/cpu/tile -->` holds the schedule function
of that rung, one after `<!-- code: definition gemm/cpu/pack -->` its definition. What these use of
the ladders (helpers, constants) stands before them, unless an earlier block of the chapter has it.
"""

from __future__ import annotations

import re
from pathlib import Path

from kernel_lab import registry, source

GUIDE = Path(__file__).parent
BLOCK = re.compile(
    r"^<!-- code: (schedule|definition) (\w+)/(\w+)/(\w+) -->\n```python\n(.*?)^```$", re.M | re.S
)


def refreshed(text: str) -> str:
    """Return a chapter's text with its excerpts as the ladders have the code now."""
    seen: set[str] = set()

    def block(match: re.Match[str]) -> str:
        what, workload, device, name, _ = match.groups()
        rung = registry.ladder(workload, device)[name]
        pieces = source.parts(rung.schedule if what == "schedule" else rung.define)
        own = list(pieces)[-1]
        new = {key: piece for key, piece in pieces.items() if key == own or piece not in seen}
        seen.update(new.values())
        head = f"<!-- code: {what} {workload}/{device}/{name} -->"
        return f"{head}\n```python\n{source.listing(new)}\n```"

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    for chapter in sorted(GUIDE.glob("[0-9][0-9]-*.md")):
        old = chapter.read_text()
        if (new := refreshed(old)) != old:
            chapter.write_text(new)
