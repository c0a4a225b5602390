"""The guide's chapters as Jupyter notebooks: `python docs/guide/notebooks.py OUT`.

A chapter is Markdown. A fenced block marked `python` or `sh` is code; words after the mark are what
it needs (`nvcc`, `torch`). In a python block a comment `# -> text` stands for one line of output.
The notebooks are written as JSON in Jupyter's format 4.5, so nothing else has to be installed.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GUIDE = Path(__file__).parent
_FENCE = re.compile(r"^```(python|sh)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OUTPUT = re.compile(r"# -> ?(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """A piece of a chapter: `kind` is "markdown", "python" or "sh", `line` its first line."""

    kind: str
    text: str
    line: int
    needs: tuple[str, ...] = ()

    @property
    def output(self) -> list[str]:
        """The lines the cell says it prints."""
        return _OUTPUT.findall(self.text)


def chapters() -> list[Path]:
    """The chapters' files, in order."""
    return sorted(GUIDE.glob("[0-9][0-9]-*.md"))


def cells(path: Path) -> list[Cell]:
    """A chapter's text and code, in order; together they are the whole file."""
    source = path.read_text()
    found, end = [], 0
    for match in _FENCE.finditer(source):
        _add_text(found, source, end, match.start())
        language, needs, code = match.groups()
        line = source.count("\n", 0, match.start(3)) + 1
        found.append(Cell(language, code.rstrip("\n"), line, tuple(needs.split())))
        end = match.end()
    _add_text(found, source, end, len(source))
    return found


def _add_text(found: list[Cell], source: str, start: int, end: int) -> None:
    text = source[start:end].strip("\n")
    if text:
        found.append(Cell("markdown", text, source.count("\n", 0, start) + 1))


def notebook(path: Path) -> dict[str, Any]:
    """The chapter in Jupyter's format 4.5."""
    return {
        "cells": [_cell(path, number, cell) for number, cell in enumerate(cells(path))],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cell(path: Path, number: int, cell: Cell) -> dict[str, Any]:
    text = f"%%sh\n{cell.text}" if cell.kind == "sh" else cell.text
    made: dict[str, Any] = {
        "cell_type": "markdown" if cell.kind == "markdown" else "code",
        "id": hashlib.sha256(f"{path.name}/{number}".encode()).hexdigest()[:8],
        "metadata": {"needs": list(cell.needs)} if cell.needs else {},
        "source": text.splitlines(keepends=True),
    }
    if made["cell_type"] == "code":
        made |= {"execution_count": None, "outputs": []}
    return made


def write(folder: Path) -> list[Path]:
    """Write every chapter's notebook into `folder`; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for chapter in chapters():
        file = folder / f"{chapter.stem}.ipynb"
        file.write_text(json.dumps(notebook(chapter), indent=1, ensure_ascii=False) + "\n")
        written.append(file)
    return written


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/guide/notebooks.py OUT")
    for file in write(Path(sys.argv[1])):
        sys.stdout.write(f"{file}\n")
