"""Write the pictures of the course's GPU pages: `python -m docs.course.pictures`.

Each picture is drawn by the code of its page, so it shows the schedules that the page shows. Its
text follows the colour scheme of the reader's system.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import matplotlib

from docs.guide import notebooks
from kernel_lab.diagrams import style

COURSE = Path(__file__).parent
FOLDER = COURSE.parent / "pictures"
PAGES = {"sectors": "07-gpu-memory", "tiles": "08-gpu-tiles", "choices": "search"}
_SCHEMES = (
    f"<style>svg {{ color: {style.INK}; font-family: sans-serif }}"
    " @media (prefers-color-scheme: dark) { svg { color: #e6edf3 } }</style>"
)


def drawn(name: str) -> Any:
    """Return the figure that a page saves as `name`.svg.

    Runs the page's Python blocks up to the one that saves it; none of them writes a file. Raises
    LookupError if no block saves the picture.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    figures: dict[str, Any] = {}
    for cell in notebooks.cells(COURSE / f"{PAGES[name]}.md"):
        if cell.kind != "python" or notebooks.lacking(cell.needs):
            continue
        with contextlib.redirect_stdout(io.StringIO()):
            exec(cell.text, namespace)
        namespace["save"] = lambda fig, path: figures.update({Path(path).stem: fig})
        if name in figures:
            return figures[name]
    raise LookupError(f"{PAGES[name]}.md saves no picture {name}.svg")


def svg(figure: Any) -> str:
    """Return a figure as the text of a file, the same for equal figures."""
    with matplotlib.rc_context({"svg.hashsalt": "course"}):
        text = style.inline_svg(figure).replace(">", f">{_SCHEMES}", 1)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def main() -> None:
    """Write all pictures."""
    for name in PAGES:
        (FOLDER / f"{name}.svg").write_text(svg(drawn(name)))


if __name__ == "__main__":
    main()
