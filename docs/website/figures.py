"""Put the pictures and steppers that the guide's code draws after the blocks that draw them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from docs.guide import notebooks
from kernel_lab.diagrams import stepwise
from kernel_lab.diagrams.style import embedded

if TYPE_CHECKING:
    from nbformat import NotebookNode

_STEPPER = re.compile(r'<figure class="stepper".*?</figure>', re.DOTALL)


def drawn(chapter: Path, notebook: NotebookNode) -> str:
    """Return a chapter's text with the pictures and steppers of its executed notebook. They are
    parts of the page, so their text has the page's size and colour."""
    codes = [cell for cell in notebooks.cells(chapter) if cell.kind != "markdown"]
    executed = [cell for cell in notebook.cells if cell.cell_type == "code"]
    after: dict[int, list[str]] = {}
    for code, cell in zip(codes, executed, strict=True):
        end = code.line + len(code.text.split("\n"))  # the line of the closing fence
        data = [output.data for output in cell.outputs if "data" in output]
        after[end] = [part for each in data for part in _parts(each)]
    lines = []
    for number, line in enumerate(chapter.read_text(encoding="utf-8").split("\n"), 1):
        lines += [line, *after.get(number, ())]
    if any("stepper" in part for parts in after.values() for part in parts):
        lines += ["", stepwise.script()]
    return "\n".join(lines)


def _parts(data: Mapping[str, str]) -> list[str]:
    """Return the HTML that the page shows for one output of a cell."""
    html = data.get("text/html", "")
    if html.startswith('<div class="shown"'):  # of kernel_lab.show
        return ["\n" + " ".join(html.replace("<div", "<div data-search-exclude", 1).split())]
    steppers = _STEPPER.findall(html)
    if steppers:
        return [each.replace("<figure", "\n<figure data-search-exclude", 1) for each in steppers]
    if "image/svg+xml" not in data:
        return []
    name = Path(data["text/plain"]).stem
    label = f'role="img" aria-label="{name}: accesses" data-search-exclude'
    svg = embedded(data["image/svg+xml"]).replace("<svg", f"<svg {label}", 1)
    return [f'\n<figure class="drawn">{" ".join(svg.split())}</figure>']
