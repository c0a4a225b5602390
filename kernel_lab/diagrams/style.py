"""Colours and output shared by all pictures."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernel_lab.errors import LabError

try:
    import matplotlib
    from matplotlib.figure import Figure
except ImportError as error:
    raise LabError("diagrams need matplotlib: pip install 'needle-dl[apps]'") from error

# Distinguishable with colour blindness as well, and visible on white and on black.
PALETTE = ("#3b82c4", "#d9822b", "#2f9e6e", "#8a6fd1", "#b08900", "#4aa3a8", "#a0622d", "#7f8c3a")
STORE = "#d1495b"
MUTED = "#8c8c8c"
# Replaced by the page's own text colour; no picture uses it for anything else.
INK = "#1f2328"

_SETTINGS: Any = {
    "axes.edgecolor": MUTED,
    "axes.grid": False,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.dpi": 100,
    "font.size": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": INK,
    "xtick.labelsize": 8,
    "ytick.color": INK,
    "ytick.labelsize": 8,
}


@contextmanager
def settings() -> Iterator[None]:
    """matplotlib with the lab's settings, for making a figure."""
    with matplotlib.rc_context(_SETTINGS):
        yield


def figure(width: float, height: float) -> Figure:
    """A figure of that size in inches, without a window."""
    return Figure(figsize=(width, height), layout="constrained")


def titled(fig: Figure, title: str, note: str) -> None:
    """Set a title and, under the figure in grey, a note on what it shows."""
    fig.suptitle(title, fontsize=11, x=0.01, ha="left", color=INK)
    if note:
        note = textwrap.fill(note, int(fig.get_figwidth() * 15))  # letters of that size to an inch
        fig.supxlabel(note, fontsize=8, x=0.01, ha="left", color=MUTED)


def save(fig: Figure, stem: Path | str) -> list[Path]:
    """Write STEM.png and STEM.svg on white; return the paths."""
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    with settings():
        for path in paths:
            fig.savefig(path, dpi=150, facecolor="white")
    return paths


def inline_svg(fig: Figure) -> str:
    """The figure as an <svg> element: no background, its text in the page's own colour."""
    buffer = io.StringIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": None}
    with settings():
        fig.savefig(buffer, format="svg", dpi=130, transparent=True, metadata=metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # The page may make the picture smaller, and not so large that its text outgrows the page's.
    head, rest = text.split(">", 1)
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    width = fig.get_figwidth() * 115
    return f'{head} style="max-width: {width:.0f}px">{rest}'
