"""The guide's chapters as Jupyter notebooks: `python docs/guide/notebooks.py OUT`.

A chapter is Markdown. A fenced block marked `python` or `sh` is code; words after the mark are what
it needs (`nvcc`, `torch`). In a python block a comment `# -> text` stands for one line of output;
the tests run every block and compare, so a notebook has these lines as its outputs. What stands
between <details> and </details>, the answer to an exercise, is folded. The notebooks are written as
JSON in Jupyter's format 4.5, so nothing else has to be installed.
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
    made, folded, runs = [], False, 0
    for number, cell in enumerate(cells(path)):
        identity = hashlib.sha256(f"{path.name}/{number}".encode()).hexdigest()[:8]
        if cell.kind == "markdown":
            text, folded = _unfolded(cell.text, folded)
            if text:
                made.append(_cell("markdown", identity, text, {}))
            continue
        runs += 1
        metadata: dict[str, Any] = {"needs": list(cell.needs)} if cell.needs else {}
        if folded:
            metadata["jupyter"] = {"source_hidden": True, "outputs_hidden": True}
        text = f"%%sh\n{cell.text}" if cell.kind == "sh" else cell.text
        code = _cell("code", identity, text, metadata)
        made.append(code | {"execution_count": runs, "outputs": _outputs(cell)})
    return {
        "cells": made,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _unfolded(text: str, folded: bool) -> tuple[str, bool]:
    """The text of a cell with what is folded folded by itself, since an answer may go on in other
    cells; `folded` says whether the cell begins inside of an answer, the result whether it ends so.
    """
    parts = []
    for piece in re.split(r"(</?details>)", text):
        if piece in ("<details>", "</details>"):
            folded = piece == "<details>"
            continue
        body = re.sub(r"<summary>.*?</summary>", "", piece).strip("\n")
        if folded and body != piece.strip("\n"):
            parts.append("*The answer is folded below.*")
        if body and folded:
            body = f"<details><summary>Answer</summary>\n\n{body}\n\n</details>"
        if body:
            parts.append(body)
    return "\n\n".join(parts), folded


def _outputs(cell: Cell) -> list[dict[str, Any]]:
    lines = [f"{line}\n" for line in cell.output]
    return [{"output_type": "stream", "name": "stdout", "text": lines}] if lines else []


def _cell(kind: str, identity: str, text: str, metadata: dict[str, Any]) -> dict[str, Any]:
    return {
        "cell_type": kind,
        "id": identity,
        "metadata": metadata,
        "source": text.splitlines(keepends=True),
    }


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
