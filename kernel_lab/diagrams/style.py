"""Colours and output shared by all pictures."""

from __future__ import annotations

import io
import itertools
import re
import sys
import textwrap
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from kernel_lab.errors import LabError
from kernel_lab.trace import Trace

try:
    import matplotlib
    from matplotlib.colors import to_hex, to_rgb
    from matplotlib.figure import Figure
except ImportError as error:
    raise LabError("diagrams need matplotlib: pip install 'needle-dl[apps]'") from error

# These can be told apart with colour blindness too, and are visible on white and on black.
PALETTE = ("#3b82c4", "#d9822b", "#2f9e6e", "#b08900", "#4aa3a8", "#a0622d", "#7f8c3a")
STORE = "#d1495b"
SHARED = "#8b4fd0"  # for elements that several workers access, or that are loaded and stored
MUTED = "#8c8c8c"
SLATE = "#64748b"  # for marks that belong to no single buffer
WIDTH = 7.5  # inches, for most figures: text stays readable if a page shrinks them
TITLE, TEXT, SMALL = 11, 9, 8  # points: titles; panels and axes; ticks, legends and notes
# Replaced by the page's own text colour; no picture uses it for anything else.
INK = "#1f2328"
_LEAST = 0.78  # the smallest scale to which a page may shrink a picture
_BACKGROUND = r'<g id="patch_\d+">\s*<path [^>]*style="fill: #ffffff"/>\s*</g>'

_SETTINGS: Any = {
    "axes.edgecolor": MUTED,
    "axes.grid": False,
    "axes.labelcolor": INK,
    "axes.labelsize": TEXT,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": TEXT,
    "figure.dpi": 100,
    "font.size": TEXT,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": INK,
    "xtick.labelsize": SMALL,
    "ytick.color": INK,
    "ytick.labelsize": SMALL,
}


def buffer_colours(trace: Trace) -> dict[str, str]:
    """Return the colour of each buffer by name, the same in every picture of a ladder.

    Arguments have the palette's colours in their order. A copy of an argument (A_shared) has the
    argument's colour, greyer. Any other buffer has one of the remaining colours, chosen by its
    name. If that colour is taken, the buffer has the next free colour, which may differ between
    pictures.
    """
    colours = dict(zip(trace.arrays, itertools.cycle(PALETTE), strict=False))
    rest = PALETTE[len(colours) :] or PALETTE
    for buffer in trace.buffers:
        origin = buffer.name.partition("_")[0]
        if buffer.name not in colours and origin in trace.arrays:
            colours[buffer.name] = blend(colours[origin], MUTED, 0.5)
        elif buffer.name not in colours:
            first = zlib.crc32(buffer.name.encode()) % len(rest)
            liked = [*rest[first:], *rest[:first]]
            taken = set(colours.values())
            colours[buffer.name] = next((one for one in liked if one not in taken), liked[0])
    return colours


def who_colours(values: Sequence[int]) -> dict[int, str]:
    """Return the colour of each worker, block, warp or thread; shades of one ramp if there are more
    than the palette's colours."""
    if len(values) <= len(PALETTE):
        return dict(zip(values, PALETTE, strict=False))
    return {value: _ramp(rank / (len(values) - 1)) for rank, value in enumerate(values)}


def _ramp(place: float) -> str:
    """Return the colour at `place` (0 to 1) of a ramp from blue through green to amber."""
    blue, green, amber = PALETTE[0], PALETTE[2], "#e0a526"
    return blend(blue, green, 2 * place) if place < 0.5 else blend(green, amber, 2 * place - 1)


def blend(first: str, second: str, share: float) -> str:
    """Return a mix of two colours; `share` (0 to 1) is the share of the second."""
    red, green, blue = (1 - share) * np.array(to_rgb(first)) + share * np.array(to_rgb(second))
    return to_hex((red, green, blue))


@contextmanager
def settings() -> Iterator[None]:
    """Apply the lab's settings to matplotlib while a figure is made."""
    with matplotlib.rc_context(_SETTINGS):
        yield


def figure(width: float, height: float) -> Figure:
    """Return a figure of `width` x `height` inches, without a window."""
    return Figure(figsize=(width, height), layout="constrained")


def titled(fig: Figure, title: str, note: str, keys: Sequence[Any] = (), columns: int = 3) -> None:
    """Set a title, the keys in `columns` columns under it, and a grey note on the contents under
    the figure. All are at the left, where a narrow screen shows them first."""
    if keys:
        legend = fig.legend(handles=keys, loc="outside upper left", ncols=columns, title=title)
        legend.set_alignment("left")
        legend.get_title().set_fontsize(TITLE)
    else:
        fig.suptitle(title, fontsize=TITLE, x=0.01, ha="left", color=INK)
    if note:
        note = textwrap.fill(note, int(fig.get_figwidth() * 15))  # 15 letters per inch
        fig.supxlabel(note, fontsize=SMALL, x=0.01, ha="left", color=MUTED)


def save(fig: Figure, path: Path | str) -> list[Path]:
    """Write the figure on white; return the paths.

    A path that ends in .png or .svg names that one file; any other path is the stem of both files.
    In a notebook the figure also becomes an output of the cell.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = (".png", ".svg")
    paths = [path] if path.suffix in kinds else [path.with_name(path.name + k) for k in kinds]
    with settings():
        for path in paths:
            fig.savefig(path, dpi=150, facecolor="white")
        if in_notebook():
            _output(fig, paths[-1])
    return paths


def in_notebook() -> bool:
    """Return whether this runs in a notebook's cell, below which outputs can be shown."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def _output(fig: Figure, path: Path) -> None:
    """Show a figure, which was already written to a file, below the cell of a notebook.

    Programs that do not show an untrusted notebook's SVG show the PNG instead.
    """
    from IPython.display import display

    png, svg = io.BytesIO(), io.BytesIO()
    fig.savefig(png, format="png", dpi=80, facecolor="white")
    if path.suffix == ".svg":
        svg.write(path.read_bytes())
    else:
        fig.savefig(svg, format="svg", facecolor="white")
    pictures = {"image/svg+xml": svg.getvalue().decode(), "image/png": png.getvalue()}
    display({**pictures, "text/plain": f"{path.stem}.svg"}, raw=True)


def inline_svg(fig: Figure) -> str:
    """Return the figure as an <svg> element: no background, its text in the page's own colour."""
    buffer = io.StringIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": None}
    with settings():
        fig.savefig(buffer, format="svg", dpi=130, transparent=True, metadata=metadata)
    return embedded(buffer.getvalue())


def embedded(svg: str) -> str:
    """Return an element for a page, like that of `inline_svg`, from the SVG text that `save`
    wrote."""
    text = svg[svg.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(_BACKGROUND, "", text)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'base64,[^"]*', lambda image: "".join(image[0].split()), text)
    text = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", text)  # ids that nothing refers to
    # The page must neither enlarge the picture's text beyond the page's own text nor make it too
    # small to read. So on a narrow screen the picture scrolls.
    head, rest = text.split(">", 1)
    width = float(head.partition('viewBox="0 0 ')[2].split()[0]) / 72 * 115
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    lines = "stroke-linejoin: round; stroke-linecap: butt"  # the file's style for all its parts
    sizes = f"max-width: {width:.0f}px; min-width: {_LEAST * width:.0f}px"
    return f'{head} style="{sizes}; {lines}">{rest}'
