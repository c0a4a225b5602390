"""The pictures of the lessons: `python -m docs.course.pictures` draws them into `pictures/`.

Each is drawn from a schedule of the lab at a fixed size and processor, so it is the same on every
machine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kernel_lab import diagrams, registry, show
from kernel_lab.diagrams.style import INK, inline_svg
from kernel_lab.workload import Processor

FOLDER = Path(__file__).parent / "pictures"
# The file may be shown on a light or a dark page.
_SCHEMES = f"""<style>svg {{ color: {INK}; background: #ffffff; font-family: sans-serif }}
@media (prefers-color-scheme: dark) {{ svg {{ color: #e6edf3; background: #0d1117 }} }}</style>"""


def _accesses(rung: str, title: str, by: str = "buffer", cores: int = 1, **size: int) -> str:
    """Return the accesses of a rung of the matrix product over time."""
    schedule = registry.ladder("gemm", "cpu")[rung].schedule
    processor = Processor(cores=cores, registers=16, lanes=8)
    shown = show(schedule, size=size, processor=processor)
    return inline_svg(diagrams.space_time(shown.trace, title, by=by))


PICTURES: dict[str, Callable[[], str]] = {
    "01-naive": lambda: _accesses("naive", "naive, 4 x 8 x 2", M=4, N=8, K=2),
    "02-reorder": lambda: _accesses("reorder", "reorder, 4 x 8 x 2", M=4, N=8, K=2),
}


def picture(name: str) -> str:
    """Return the text of a picture's file."""
    head, rest = PICTURES[name]().split(">", 1)
    if "xmlns=" not in head:
        head = head.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f"{head}>\n{_SCHEMES}{rest.strip()}\n"


def main() -> None:
    """Draw all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        (FOLDER / f"{name}.svg").write_text(picture(name), encoding="utf-8")


if __name__ == "__main__":
    main()
