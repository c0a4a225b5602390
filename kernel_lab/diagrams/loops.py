"""Draw a run's loops over its space-time diagram: spans for all iterations (called turns here),
and frames around the tiles of one turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle

from kernel_lab.diagrams.style import INK, MUTED, SMALL
from kernel_lab.trace import LoopValues, Trace
from needle_runtime.text import counted

ROWS = 3  # the most loops that are shown
TURNS = 64  # the most turns of a loop that is shown
_LEAST = 0.5  # the least share of the time that must pass in a loop's turns
_LETTER = 5.2  # the width of a label's letter, with room around it, in points
_ACROSS = 400  # the least width of the panels, in points
TILE = "tile"  # the label of a frame


@dataclass(frozen=True)
class Turns:
    """A loop's turns in the time shown: for each, the value of the loop's variable, its first time,
    and one past its last time."""

    name: str
    values: np.ndarray
    starts: np.ndarray
    stops: np.ndarray


def turns_of(trace: Trace) -> list[Turns]:
    """Return the loops whose turns can be told apart in a picture, outermost first. Such a loop has
    at most TURNS turns, most of the time passes in it, and all workers are at the same turn. If
    there are more than ROWS, only the innermost ROWS are returned. There are none if the trace did
    not record the loops."""
    if not len(trace):
        return []
    times, first, moment = np.unique(trace.time, return_index=True, return_inverse=True)
    changed = np.zeros(len(times), bool)
    changed[0] = True
    found = []
    for loop in trace.loops:
        value = loop.value[first]
        changed[1:] |= np.diff(value) != 0  # a loop starts again in each turn of the outer loops
        inside = value != LoopValues.OUTSIDE
        begins = np.flatnonzero(changed & inside)
        together = (loop.value == value[moment]).all()
        if not 0 < len(begins) <= TURNS or inside.mean() < _LEAST or not together:
            continue
        ends = np.flatnonzero(np.append(changed[1:] | ~inside[1:], True) & inside)
        found.append(Turns(loop.name, value[begins], times[begins], times[ends] + 1))
    return found[-ROWS:]


def draw_turns(axis: Any, turns: list[Turns], width: float) -> None:
    """Draw a row of spans for each loop, with values where there is room for them. `width` is the
    number of time steps that the axis shows."""
    for row, loop in enumerate(turns):
        lengths = loop.stops - loop.starts
        for number, (start, length) in enumerate(zip(loop.starts, lengths, strict=True)):
            axis.broken_barh(
                [(start - 0.5, length)],
                (row - 0.42, 0.84),
                facecolor=MUTED,
                alpha=0.38 if number % 2 else 0.2,
                linewidth=0,
            )
        _write_values(axis, row, loop, _ACROSS / width)
    axis.set_ylim(len(turns) - 0.5, -0.5)
    axis.set_yticks(range(len(turns)), [loop.name for loop in turns])
    axis.tick_params(bottom=False, labelbottom=False, left=False, labelsize=SMALL)
    for side in axis.spines.values():
        side.set_visible(False)


def _write_values(axis: Any, row: int, loop: Turns, scale: float) -> None:
    """Write the values of a loop's variable into its spans: into every span if there is room, else
    into every n-th, where the value may reach from the left end into the next spans. `scale` is the
    width of a step in points."""
    lengths = loop.stops - loop.starts
    needed = _LETTER * (max(len(str(value)) for value in loop.values.tolist()) + 0.5)
    each = max(1, int(np.ceil(needed / (scale * float(np.median(lengths))))))
    for number in range(0, len(lengths), each):
        left, length = loop.starts[number] - 0.5, lengths[number]
        if each == 1 and scale * length < needed:
            continue  # a turn that is cut short by the edge of the picture
        place, side = (left + length / 2, "center") if each == 1 else (left, "left")
        text = str(loop.values[number])
        axis.text(place, row + 0.04, text, va="center", ha=side, fontsize=SMALL)


def draw_tile(axis: Any, trace: Trace, turns: list[Turns]) -> bool:
    """Frame the elements of one buffer that one worker or block accesses in one turn of a loop: the
    innermost loop around any of the accesses. Write the turn and the size of the tile beside the
    panel. Return whether there is such a loop. `trace` has only the accesses to that buffer."""
    mine = trace.select(trace.worker == trace.worker.min(initial=1 << 30))
    for loop in reversed(turns):
        longest = int(np.argmax(loop.stops - loop.starts))  # the first that is not cut short
        start, stop = int(loop.starts[longest]), int(loop.stops[longest])
        tile = mine.select((mine.time >= start) & (mine.time < stop))
        if not len(tile):
            continue
        low, high = int(tile.index.min()), int(tile.index.max())
        corner, width, height = (start - 0.5, low - 0.5), stop - start, high - low + 1
        frame = Rectangle(corner, width, height, fill=False, edgecolor=INK, label=TILE, zorder=3)
        frame.set_linewidth(0.9)
        axis.add_patch(frame)
        text = f"{loop.name}={loop.values[longest]}\n{tile_size(tile)}"
        beside = {"xycoords": "axes fraction", "va": "center", "fontsize": SMALL}
        axis.annotate(text, (1.006, 0.5), **beside)
        return True
    return False


def tile_size(trace: Trace) -> str:
    """Return the extents of the smallest box around the elements that one buffer's accesses touch;
    for a buffer of one dimension, or with a copy for each thread, the number of elements."""
    buffer = trace.buffers[int(trace.buffer[0])]
    if len(buffer.shape) < 2 or int(trace.index.max()) >= buffer.size:
        return counted(len(np.unique(trace.index)), "element")
    places = np.unravel_index(trace.index, buffer.shape)
    return " x ".join(f"{int(place.max() - place.min()) + 1:,}" for place in places)
