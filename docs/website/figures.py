"""The pictures that the guide's code draws, each after the block that draws it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from docs.guide import notebooks

if TYPE_CHECKING:
    from nbformat import NotebookNode

FOLDER = "drawn"  # beside the chapters
_SVG = "image/svg+xml"


def drawn(made: Mapping[Path, NotebookNode], out: Path) -> dict[Path, str]:
    """The texts of chapters, given their executed notebooks, with links to the pictures among the
    outputs, which are written into OUT/CHAPTER/."""
    return {chapter: _drawn(chapter, notebook, out) for chapter, notebook in made.items()}


def _drawn(chapter: Path, notebook: NotebookNode, out: Path) -> str:
    codes = [cell for cell in notebooks.cells(chapter) if cell.kind != "markdown"]
    executed = [cell for cell in notebook.cells if cell.cell_type == "code"]
    after: dict[int, list[str]] = {}
    for code, cell in zip(codes, executed, strict=True):
        end = code.line + len(code.text.split("\n"))  # the line of the closing fence
        found = [output.data for output in cell.outputs if _SVG in output.get("data", {})]
        after[end] = [_picture(data, chapter.stem, out) for data in found]
    lines = []
    for number, line in enumerate(chapter.read_text(encoding="utf-8").split("\n"), 1):
        lines += [line, *after.get(number, ())]
    return "\n".join(lines)


def _picture(data: Mapping[str, str], chapter: str, out: Path) -> str:
    """Write a picture under the name that it was saved as; the link to it."""
    file = out / chapter / data["text/plain"]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(data[_SVG], encoding="utf-8")
    link = f"![{file.stem}: accesses]({FOLDER}/{chapter}/{file.name})"
    return f"\n{link}{{ loading=lazy }}"
