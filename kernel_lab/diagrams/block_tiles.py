"""A picture of the tiles of a GPU matmul: a block's results, and one thread's part of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle

from kernel_lab.diagrams.style import INK, MUTED, PALETTE, figure, settings, titled
from kernel_lab.errors import LabUsageError
from kernel_lab.trace import Trace
from needle_runtime.text import counted

_GAP = 4  # elements between the strips and the results


@dataclass(frozen=True)
class Tiles:
    """The elements (row, column) of A and B that a thread of block 0 reads in one step of k, and
    the elements of C that it stores.

    `rows` x `columns` are the results of the block, `depth` the steps of k in shared memory.
    """

    rows: int
    columns: int
    depth: int
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray

    @property
    def summary(self) -> str:
        """The loads of one step of k, the multiply-adds that they serve, and their ratio."""
        loads, adds = len(self.a) + len(self.b), len(self.c)
        return (
            f"a thread reads {len(self.a)} + {len(self.b)} values for"
            f" {counted(adds, 'multiply-add')}: {loads / adds:g} for each"
        )


def tiles_of(trace: Trace, thread: int) -> Tiles:
    """Return the tiles of a matmul that reads A_shared and B_shared, from its trace.

    Raises LabUsageError if the trace has no such buffers, or block 0 has no such thread.
    """
    names = [buffer.name for buffer in trace.buffers]
    missing = [name for name in ("A_shared", "B_shared", "C") if name not in names]
    if missing:
        raise LabUsageError(f"tiles: {trace.name} has no buffer {missing[0]!r}")
    block = trace.select(trace.worker == 0)
    mine = block.select(block.thread == thread)
    if not len(mine):
        raise LabUsageError(f"tiles: block 0 of {trace.name} has no thread {thread}")
    width = trace.buffers[names.index("C")].shape[1]
    results = block.of_buffer("C")
    rows, columns = (len(np.unique(part)) for part in np.divmod(results.index, width))
    depth = trace.buffers[names.index("A_shared")].size // rows
    a, b = (
        np.unique(part.select(~part.is_store).index)
        for part in (mine.of_buffer("A_shared"), mine.of_buffer("B_shared"))
    )
    own = mine.of_buffer("C")
    return Tiles(
        rows,
        columns,
        depth,
        _places(a[a % depth == 0], depth),
        _places(b[b < columns], columns),
        _places(np.unique(own.select(own.is_store).index), width),
    )


def _places(index: np.ndarray, width: int) -> np.ndarray:
    return np.stack(np.divmod(index, width), axis=1)


def block_tiles(traces: Mapping[str, Trace], title: str, *, thread: int = 0) -> Any:
    """Return a figure with the tiles of each trace, by name, all drawn to one scale.

    Above and to the left of a block's results are its strips of B and A in shared memory. Solid
    squares are the elements that one thread reads in one step of k, and the results that it sums.
    Raises the errors of `tiles_of`.
    """
    found = {name: tiles_of(trace, thread) for name, trace in traces.items()}
    widest = max(tiles.depth + _GAP + tiles.columns for tiles in found.values())
    heights = [tiles.depth + _GAP + tiles.rows for tiles in found.values()]
    with settings():
        inch = 3.2 / widest
        fig = figure(4.4, sum(heights) * inch + 0.8 * len(found) + 0.6)
        axes = fig.subplots(len(found), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, (name, tiles) in zip(axes, found.items(), strict=True):
            _draw(axis, tiles, widest)
            axis.set_title(
                f"{name}: {tiles.rows} x {tiles.columns} results a block\n{tiles.summary}",
                loc="left",
                fontsize=9,
            )
        titled(fig, title, f"solid: the elements of thread {thread} of block 0 in one step of k")
    return fig


def _draw(axis: Any, tiles: Tiles, widest: int) -> None:
    start = tiles.depth + _GAP
    for (x, y), (width, height), name, places, colour in (
        ((0, start), (tiles.depth, tiles.rows), "A", tiles.a, PALETTE[0]),
        ((start, 0), (tiles.columns, tiles.depth), "B", tiles.b, PALETTE[1]),
        ((start, start), (tiles.columns, tiles.rows), "C", tiles.c, PALETTE[2]),
    ):
        axis.add_patch(
            Rectangle((x, y), width, height, facecolor=colour, alpha=0.25, edgecolor=MUTED)
        )
        for row, column in places.tolist():
            axis.add_patch(Rectangle((x + column, y + row), 1, 1, facecolor=colour, linewidth=0))
        axis.annotate(
            name, (x + width / 2, y + height / 2), ha="center", va="center", color=INK, fontsize=9
        )
    axis.set(xlim=(-0.5, widest + 0.5), ylim=(start + tiles.rows + 0.5, -0.5), aspect="equal")
    axis.set_anchor("W")
    axis.set_axis_off()
