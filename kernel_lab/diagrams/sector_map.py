"""A picture of the sectors that one load of a warp moves, in the matrices that it loads from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle

from kernel_lab.diagrams.style import MUTED, buffer_colours, figure, settings, titled
from kernel_lab.diagrams.warp import request
from kernel_lab.errors import LabUsageError
from kernel_lab.trace import Trace, gpu
from needle_runtime.text import counted

_GAP = 3  # elements between two matrices


def sector_map(
    traces: Mapping[str, Trace], title: str, *, buffers: Sequence[str] = ("A", "B")
) -> Any:
    """Return a figure with a row for each trace, by name: one load of a warp from each buffer.

    A matrix is drawn row by row in boxes of one sector. Boxes that the load moves are pale, and
    elements that its threads use are solid. Raises LabUsageError if a trace has no load of a
    buffer, or the buffer is not a matrix.
    """
    loads = {name: [_load(trace, buffer) for buffer in buffers] for name, trace in traces.items()}
    shapes = [[_shape(one) for one in row] for row in loads.values()]
    widest = max(sum(width + _GAP for _, width in row) for row in shapes)
    heights = [max(height for height, _ in row) for row in shapes]
    with settings():
        inch = 4.1 / widest
        fig = figure(4.4, sum(heights) * inch + 0.75 * len(loads) + 0.5)
        axes = fig.subplots(len(loads), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, (name, row), height in zip(axes, loads.items(), heights, strict=True):
            left, said = 0, []
            for one, buffer in zip(row, buffers, strict=True):
                moved = len(np.unique(one.address // gpu.SECTOR))
                said.append(f"{buffer}: {counted(moved, 'sector')}")
                _draw(axis, one, left, buffer_colours(traces[name])[buffer])
                left += _shape(one)[1] + _GAP
            axis.set(xlim=(-0.5, widest), ylim=(height + 0.5, -0.5), aspect="equal", anchor="W")
            axis.set_axis_off()
            axis.set_title(f"{name}\n{', '.join(said)}", loc="left", fontsize=9)
        titled(fig, title, "one load of a warp; a box is a sector, solid elements are used")
    return fig


def _load(trace: Trace, buffer: str) -> Trace:
    sites = [
        report.site
        for report in gpu.site_reports(trace)
        if report.buffer == buffer and report.scope == "global" and not report.is_store
    ]
    if not sites:
        raise LabUsageError(f"sector map: {trace.name} has no load of {buffer!r}")
    return request(trace, sites[0])


def _shape(one: Trace) -> tuple[int, int]:
    info = one.buffers[int(one.buffer[0])]
    if len(info.shape) != 2:
        raise LabUsageError(f"sector map: {info.name} has shape {info.shape}: must be a matrix")
    return info.shape[0], info.shape[1]


def _draw(axis: Any, one: Trace, left: int, colour: str) -> None:
    rows, columns = _shape(one)
    per_sector = gpu.SECTOR // int(one.itemsize[0])
    for places, width, alpha in (
        (np.unique(one.index // per_sector) * per_sector, per_sector, 0.3),
        (np.unique(one.index), 1, 1.0),
    ):
        for index in places.tolist():
            corner = left + index % columns, index // columns
            box = Rectangle(corner, width, 1, facecolor=colour, alpha=alpha, linewidth=0)
            axis.add_patch(box)
    grid = {"colors": MUTED, "linewidth": 0.3}
    axis.hlines(range(rows + 1), left, left + columns, **grid)
    axis.vlines(range(left, left + columns + 1, per_sector), 0, rows, **grid)
