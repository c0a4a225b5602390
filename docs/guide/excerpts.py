"""The code of ladders in the guide's chapters: `python docs/guide/excerpts.py` brings it up to date.

A block ```` ```python schedule=gemm/cpu/tile ```` holds the schedule function of that rung, and
`definition=` its definition. What it uses of the ladders (helpers, constants) stands before it, if no
earlier block of the chapter has it.
"""

from __future__ import annotations

import re
from pathlib import Path

from kernel_lab import registry, source

GUIDE = Path(__file__).parent
FENCE = re.compile(r"^```python (schedule|definition)=([\w/]+)\n(.*?)^```$", re.M | re.S)


def refreshed(text: str) -> str:
    """A chapter's text with its excerpts as the ladders have the code now."""
    seen: set[str] = set()

    def block(match: re.Match[str]) -> str:
        what, place = match[1], match[2]
        workload, device, name = place.split("/")
        rung = registry.ladder(workload, device)[name]
        pieces = source.parts(rung.schedule if what == "schedule" else rung.define)
        new = {key: piece for key, piece in pieces.items() if piece not in seen}
        seen.update(new.values())
        return f"```python {what}={place}\n{source.listing(new)}\n```"

    return FENCE.sub(block, text)


if __name__ == "__main__":
    for chapter in sorted(GUIDE.glob("[0-9][0-9]-*.md")):
        text = chapter.read_text()
        if (new := refreshed(text)) != text:
            chapter.write_text(new)
