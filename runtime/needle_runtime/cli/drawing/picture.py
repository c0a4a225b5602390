"""Write a picture to a file, as SVG or as an HTML page that scrolls."""

from __future__ import annotations

from pathlib import Path

from needle_runtime.cli.drawing.boxes import Drawn, collapsed
from needle_runtime.cli.drawing.svg import page, svg
from needle_runtime.errors import UsageError
from needle_runtime.process.command_line import check_writable

_KINDS = {".svg": svg, ".html": page}


def check_picture(path: Path) -> None:
    """Raise UsageError unless `path` ends in .svg or .html and can be written."""
    if path.suffix not in _KINDS:
        raise UsageError(f"--graph {path}: must end in .svg or .html")
    check_writable(path)


def write_picture(drawn: Drawn, path: Path) -> None:
    """Draw a graph and write it to a `path` that `check_picture` has accepted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_KINDS[path.suffix](collapsed(drawn)), encoding="utf-8")
