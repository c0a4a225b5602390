"""Put a page's pictures and steppers into its text. Pictures that a block of code draws follow the
block; pictures that the text links to replace their links.

All pictures become part of the HTML, so they take the page's colours, light or dark. If the text
links to a picture and a block draws one of the same name, the page shows it once.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from docs.course import notebooks
from kernel_lab.diagrams import stepwise
from kernel_lab.diagrams.style import embedded

if TYPE_CHECKING:
    from nbformat import NotebookNode

_STEPPER = re.compile(r'<figure class="stepper".*?</figure>', re.DOTALL)
_LINKED = re.compile(r"^!\[(?P<alt>[^]]*)\]\((?P<file>[^)\s]+\.svg)\)$", re.MULTILINE)
# Times hold only for the machine that measured them, and this one is busy building the site.
_TIME = re.compile(r"<br>[\d.]+ \w*s at [^<]*")
_SHOWN = "<summary>What it shows on the machine that built this page, without times</summary>"
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)


def drawn(page: Path, notebook: NotebookNode) -> str:
    """Return a page's text with its own pictures and the pictures of its executed notebook."""
    text = page.read_text(encoding="utf-8")
    linked = {Path(found["file"]).stem for found in _LINKED.finditer(text)}
    codes = [cell for cell in notebooks.cells(page) if cell.kind != "markdown"]
    executed = [cell for cell in notebook.cells if cell.cell_type == "code"]
    after: dict[int, list[str]] = {}
    for code, cell in zip(codes, executed, strict=True):
        end = code.line + len(code.text.split("\n"))  # the line of the closing fence
        data = [output.data for output in cell.outputs if "data" in output]
        after[end] = [part for each in data for part in _parts(each, linked)]
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        lines += [_LINKED.sub(lambda found: _file(page, found), line), *after.get(number, ())]
    if any("stepper" in part for parts in after.values() for part in parts):
        lines += ["", stepwise.script()]
    return "\n".join(lines)


def _parts(data: Mapping[str, str], linked: set[str]) -> list[str]:
    """Return the HTML that the page shows for one output of a cell."""
    page = data.get("text/html", "")
    if page.startswith('<div class="shown"'):  # from kernel_lab.show
        said = " ".join(_TIME.sub("", page).split())
        return [f'\n<details data-search-exclude class="shown">{_SHOWN}{said}</details>']
    steppers = _STEPPER.findall(page)
    if steppers:
        return [each.replace("<figure", "\n<figure data-search-exclude", 1) for each in steppers]
    if "image/svg+xml" not in data:
        return []
    name = Path(data["text/plain"]).stem
    return [] if name in linked else [_figure(embedded(data["image/svg+xml"]), f"{name}: accesses")]


def _file(page: Path, found: re.Match[str]) -> str:
    """Return the picture that a link leads to, without the file's own colours for light and dark
    pages, so that the page's colours apply."""
    svg = (page.parent / found["file"]).read_text(encoding="utf-8")
    return _figure(_STYLE.sub("", svg), found["alt"])


def _figure(svg: str, label: str) -> str:
    described = f'<svg role="img" aria-label="{html.escape(label)}" data-search-exclude'
    return f'\n<figure class="drawn">{" ".join(svg.replace("<svg", described, 1).split())}</figure>'
