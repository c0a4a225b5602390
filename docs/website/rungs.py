"""Show, folded below the code of each rung in the chapters, its changes to the IR.

A rung's code stands after a comment like `<!-- code: schedule gemm/cpu/tile -->`.
"""

from __future__ import annotations

from docs.guide.excerpts import BLOCK
from kernel_lab import registry
from kernel_lab.build import make_target, processor
from kernel_lab.rung_diff import rung_diff
from kernel_lab.workload import Case, describe


def with_ir(text: str) -> str:
    """Return a chapter's text with a folded difference after the last block of each rung's code."""
    last: dict[tuple[str, str, str], int] = {}
    for match in BLOCK.finditer(text):
        _, workload, device, name, _ = match.groups()
        last[workload, device, name] = match.end()
    for place, rung in sorted(((end, rung) for rung, end in last.items()), reverse=True):
        text = f"{text[:place]}\n\n{folded(*rung)}{text[place:]}"
    return text


def folded(workload: str, device: str, name: str) -> str:
    """Return a rung's difference from the rung before it, or the IR of a first rung, folded."""
    ladder = registry.ladder(workload, device)
    target = make_target(device)
    found = rung_diff(ladder, name, Case(ladder.workload.size(device), processor(target)))
    command = f"python -m kernel_lab {workload} -d {device} --diff {name}"
    said, language = f"What it changes in the IR of {found.before}", "diff"
    if found.before is None:
        said, language = "Its IR", "python"
    return "\n".join(
        [
            '<details markdown="1" class="ir">',
            f"<summary>{said}</summary>",
            "",
            f"At {describe(found.size)}; `{command}` prints the same.",
            "",
            f"```{language}\n{found.text.rstrip()}\n```",
            "",
            "</details>",
        ]
    )
