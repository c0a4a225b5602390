"""A picture of a search: the value of every choice of knobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.patches import Rectangle

from kernel_lab.diagrams.style import INK, MUTED, PALETTE, STORE, figure, settings, titled
from kernel_lab.errors import LabUsageError

Knobs = Mapping[str, Any]
_COLUMNS = 2  # panels side by side; two rows of them fit a telephone's screen


def surface(
    tried: Sequence[tuple[Knobs, float | None]],
    axes: tuple[str, str],
    title: str,
    note: str = "",
    *,
    text: Callable[[float], str] = "{:.3g}".format,
) -> Any:
    """Return a figure with a cell for each choice. Lower values are paler, and the lowest has a
    frame.

    `tried` has the knobs of each choice and a positive value, or None for a choice that was
    rejected (a cross). The knobs named by `axes` are the rows and the columns of a panel; each
    combination of the other knobs has a panel. `text` writes a value into its cell.

    Raises LabUsageError for an empty list, if no choice has a value, and for an unknown knob.
    """
    values = [value for _, value in tried if value is not None]
    if not values:
        raise LabUsageError(f"surface: none of {len(tried)} choices has a value")
    unknown = [name for name in axes if name not in tried[0][0]]
    if unknown:
        raise LabUsageError(f"surface: no knob {unknown[0]!r}: must be of {', '.join(tried[0][0])}")
    panels: dict[tuple[Any, ...], list[tuple[Any, Any, float | None]]] = {}
    others = [name for name in tried[0][0] if name not in axes]
    for knobs, value in tried:
        where = tuple(knobs[name] for name in others)
        panels.setdefault(where, []).append((knobs[axes[0]], knobs[axes[1]], value))
    rows, columns = (sorted({knobs[name] for knobs, _ in tried}) for name in axes)
    least, most = min(values), max(values)
    height = -(-len(panels) // _COLUMNS)
    with settings():
        fig = figure(4.4, 0.8 + height * (0.75 + 0.42 * len(rows)))
        grid = fig.subplots(height, min(_COLUMNS, len(panels)), squeeze=False)
        for axis in grid.ravel()[len(panels) :]:
            axis.set_visible(False)
        for axis, where in zip(grid.ravel(), sorted(panels), strict=False):
            for row, column, value in panels[where]:
                place = columns.index(column), rows.index(row)
                _cell(axis, place, value, least, most, text)
            axis.set_xticks([x + 0.5 for x in range(len(columns))], columns)
            axis.set_yticks([y + 0.5 for y in range(len(rows))], rows)
            axis.set(xlim=(0, len(columns)), ylim=(len(rows), 0), ylabel=axes[0], xlabel=axes[1])
            axis.tick_params(length=0)
            axis.spines[["left", "bottom"]].set_visible(False)
            named = ", ".join(f"{name} {_said(v)}" for name, v in zip(others, where, strict=True))
            axis.set_title(named, loc="left", fontsize=9)
        titled(fig, title, note)
    return fig


def _said(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _cell(
    axis: Any,
    place: tuple[int, int],
    value: float | None,
    least: float,
    most: float,
    text: Callable[[float], str],
) -> None:
    share = 0.0
    if value is not None and most > least:
        share = math.log(value / least) / math.log(most / least)
    best = value == least
    axis.add_patch(
        Rectangle(
            (place[0] + 0.03, place[1] + 0.03),
            0.94,
            0.94,
            facecolor="none" if value is None else (*_rgb(PALETTE[0]), 0.08 + 0.6 * share),
            edgecolor=STORE if best else MUTED,
            linewidth=2 if best else 0.3,
            zorder=2 if best else 1,
        )
    )
    axis.annotate(
        "x" if value is None else text(value),
        (place[0] + 0.5, place[1] + 0.5),
        ha="center",
        va="center",
        fontsize=9,
        color=MUTED if value is None else INK,
        fontweight="bold" if best else "normal",
        zorder=3,
    )


def _rgb(colour: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    return to_rgb(colour)
