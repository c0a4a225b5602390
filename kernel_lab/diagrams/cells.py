"""Counts accesses in the cells of a raster, and records the worker or thread that made them.

A cell is a whole number of time steps by a whole number of elements, the same for every cell of a
panel, so that a regular access pattern looks regular. A cell that several workers access, or that
is both loaded and stored, is its own case: no access hides another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernel_lab.trace import Trace

COLUMNS, ROWS = 400, 96  # at most: few enough that a cell is two pixels wide in every output
_ANY_POWER = 1 << 62  # every smaller power of two divides it
NOBODY, SEVERAL = -1, -2  # a cell without an access, and one whose accesses have several values


@dataclass(frozen=True)
class Axis:
    """One direction of a raster: cells of `unit`, from `first` up to and including `last`."""

    first: int
    last: int
    unit: int

    @property
    def cells(self) -> int:
        """The number of cells; the last one may reach past `last`."""
        return (self.last - self.first) // self.unit + 1

    @property
    def edges(self) -> tuple[float, float]:
        """The lower and the upper edge in the panel, where a step or an element is 1 wide."""
        return self.first - 0.5, self.first + self.cells * self.unit - 0.5

    def cell(self, places: np.ndarray) -> np.ndarray:
        """Return the cells in which the positions `places` lie."""
        return np.asarray((places - self.first) // self.unit)


@dataclass(frozen=True)
class Cells:
    """Each cell's number of accesses, `count` (row, column), and who made them: `who` is an index
    into `values`, or NOBODY or SEVERAL."""

    time: Axis
    element: Axis
    values: np.ndarray
    who: np.ndarray
    count: np.ndarray


def time_axis(shown: Trace) -> Axis:
    """Return the time axis of a trace's raster. If a cell covers several steps, these are whole
    iterations of the innermost loop if possible."""
    first, last = int(shown.time.min()), int(shown.time.max())
    return Axis(first, last, _unit(last - first + 1, COLUMNS, _period(shown)))


def element_axis(panel: Trace) -> Axis:
    """Return the element axis of the raster of one buffer's trace. If a cell covers several
    elements, their number divides the length of the buffer's rows, or is a multiple of it, if
    possible."""
    first, last = int(panel.index.min()), int(panel.index.max())
    shape = panel.buffers[int(panel.buffer[0])].shape
    row = shape[-1] if len(shape) > 1 else _ANY_POWER  # the rows of a flat buffer are unknown
    return Axis(first, last, _unit(last - first + 1, ROWS, row))


def copies_apart(panel: Trace) -> Trace:
    """Return the trace of one buffer. If each worker has a copy of it, the copies are stacked."""
    info = panel.buffers[int(panel.buffer[0])]
    if not info.owned:
        return panel
    return replace(panel, index=panel.index + panel.worker.astype(np.int64) * info.size)


def cells(panel: Trace, time: Axis, by: str) -> Cells:
    """Count the accesses to one buffer. `by` is a column of the trace, or "is_store"."""
    element = element_axis(panel)
    values, who = np.unique(getattr(panel, by), return_inverse=True)
    place = element.cell(panel.index) * time.cells + time.cell(panel.time)
    shape = (element.cells, time.cells)
    count = np.bincount(place, minlength=shape[0] * shape[1])
    low, high = np.full(len(count), len(values)), np.full(len(count), NOBODY)
    np.minimum.at(low, place, who)
    np.maximum.at(high, place, who)
    high[(high >= 0) & (low != high)] = SEVERAL
    return Cells(time, element, values, high.reshape(shape), count.reshape(shape))


def _period(shown: Trace) -> int:
    """Return the number of steps from one iteration of the innermost loop to the next, that is,
    between two executions of the most frequent access."""
    times = np.unique(shown.time[shown.site == np.argmax(np.bincount(shown.site))])
    return int(np.argmax(np.bincount(np.diff(times)))) if len(times) > 1 else 1


def _unit(extent: int, most: int, period: int) -> int:
    """Return the smallest unit with which `extent` takes at most `most` cells. A unit less than
    twice as large is preferred if it is a multiple or a divisor of `period`."""
    least = -(-extent // most)
    if least == 1:
        return 1
    fitting = (n for n in range(least, 2 * least) if n % period == 0 or period % n == 0)
    return next(fitting, least)


def shades(found: Cells, colours: list[Any], several: Any) -> np.ndarray:
    """Return the raster as RGBA: the colour shows who made the accesses, the opacity their number.

    `colours` are the colours of `values`, as RGB. The fullest cell is opaque, and a cell with a
    single access is still visible.
    """
    table = np.array([*colours, several, (0, 0, 0)])  # the last two are indexed from the end
    image = np.zeros((*found.who.shape, 4))
    image[..., :3] = table[np.where(found.who == SEVERAL, -2, found.who)]
    share = np.sqrt(found.count / found.count.max())
    image[..., 3] = np.where(found.count > 0, 0.4 + 0.6 * share, 0)
    return image
