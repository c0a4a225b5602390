"""The machine that runs a traced kernel: buffers, lockstep threads and the log of accesses.

All threads of a kernel, or all iterations of a parallel loop, run together. A value that differs
between them is an array of shape (threads, lanes), and either extent may be 1. For a kernel without
races, this gives the same results as any other order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernel_lab.trace.errors import NotInterpreted, TraceError, TraceTooLarge
from kernel_lab.trace.events import WARP


def numpy_dtype(name: str) -> np.dtype:
    """Return NumPy's dtype with this name. Raises NotInterpreted if NumPy has none."""
    try:
        return np.dtype(name)
    except TypeError:
        raise NotInterpreted(f"trace: NumPy has no dtype {name!r}") from None


@dataclass
class Storage:
    """A buffer's elements. `share` is the owner of a copy: "all", "block", "warp" or "thread"."""

    name: str
    size: int
    share: str
    data: np.ndarray
    rows: np.ndarray | None = None  # first element of each thread's copy, (threads, 1)
    stored: np.ndarray | None = None  # whether something was stored to an element of a copy


def filled(size: int, dtype: np.dtype) -> np.ndarray:
    """Return unwritten memory: NaN if the dtype has it, so that reading it shows in the result."""
    return np.full(size, np.nan if dtype.kind in "fc" else 0, dtype)


class Machine:
    """Runs the generated program. `log` holds an entry per step: an integer (element << SITE_BITS |
    site) for a single access, a tuple (site, elements, active) for the accesses of many threads or
    lanes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.log: list[Any] = []
        self.count = 0  # accesses in the tuples of the log
        self.width = 1
        self.block_size = 1
        self.regions: list[tuple[str, int, int, int, int]] = []
        self.barriers: list[int] = []
        self.turns: list[tuple[int, int, tuple[int, ...]]] = []  # step, nest, its variables
        self.unset: Counter[str] = Counter()  # loads of elements that had not been stored
        self.site_names: list[str] = []
        self._start = 0

    def allocate(self, name: str, size: int, dtype: np.dtype, share: str) -> Storage:
        """Return memory for a buffer, with a copy for each block, warp or thread that has its
        own."""
        if share == "warp" and self.block_size % WARP:
            raise TraceError(
                f"trace: {name} is held by warps together, and a block of {self.block_size} threads"
                f" is not whole warps of {WARP}"
            )
        threads = np.arange(self.width)[:, None]
        if self.width == 1 or share == "all":
            return Storage(name, size, share, filled(size, dtype))
        # If warps matter, blocks consist of whole warps, so thread // WARP numbers all blocks'
        # warps.
        owner = threads // {"block": self.block_size, "warp": WARP}.get(share, 1)
        copies = int(owner[-1, 0]) + 1
        data = filled(size * copies, dtype)
        return Storage(name, size, share, data, owner * size, np.zeros(len(data), bool))

    def enter(self, kind: str, blocks: int, threads: int) -> np.ndarray:
        """Start a kernel or a parallel loop; return the threads' numbers, (threads, 1)."""
        if self.width != 1:
            raise NotInterpreted("trace: a parallel loop inside another is not supported by TVM")
        self.width, self.block_size, self._start = blocks * threads, threads, len(self.log)
        self.regions.append((kind, self._start, self._start, blocks, threads))
        return np.arange(self.width)[:, None]

    def leave(self) -> None:
        """End the kernel or parallel loop."""
        kind, start, _, blocks, threads = self.regions[-1]
        self.regions[-1] = (kind, start, len(self.log), blocks, threads)
        self.width = self.block_size = 1

    def barrier(self) -> None:
        """Record a barrier. The threads of a block run in lockstep anyway."""
        self.barriers.append(len(self.log))

    def turn(self, nest: int, values: tuple[int, ...]) -> None:
        """Record the variables of a nest of loops at the beginning of an iteration."""
        self.turns.append((len(self.log), nest, values))

    def guard(self) -> None:
        """Stop a run that has become too long; not every length is known beforehand."""
        if len(self.log) + self.count > self.limit:
            raise TraceTooLarge(
                f"trace: given up at {self.limit:,} accesses; trace the kernel at a smaller size"
            )

    def load(self, buffer: Storage, site: int, index: Any, mask: Any) -> np.ndarray:
        """Return the elements that all active threads and lanes read; inactive ones get element
        0."""
        index = np.asarray(index)
        lanes = index.shape[1] if index.ndim == 2 else 1
        index = np.broadcast_to(index, (self.width, lanes))
        active = None
        if mask is not None:
            mask = np.asarray(mask)
            if lanes == 1 and mask.ndim == 2 and mask.shape[1] > 1:
                mask = mask.any(axis=1, keepdims=True)
            active = np.broadcast_to(mask, (self.width, lanes))
            index = np.where(active, index, 0)
        self._check(buffer, site, index)
        if site >= 0:
            self._note(site, index, active)
        place = index if buffer.rows is None else index + buffer.rows
        if buffer.stored is not None and not (stored := buffer.stored[place]).all():
            missing = ~stored if active is None else active & ~stored
            self.unset[buffer.name] += int(missing.sum())
        return buffer.data[place]

    def store(self, buffer: Storage, site: int, index: Any, value: Any, mask: Any) -> None:
        """Write the values of all active threads and lanes."""
        shapes = [(self.width, 1), np.shape(index), np.shape(value), np.shape(mask)]
        shape = np.broadcast_shapes(*shapes)
        index = np.broadcast_to(index, shape)
        active = None if mask is None else np.broadcast_to(mask, shape)
        if active is not None:
            index = np.where(active, index, 0)
        self._check(buffer, site, index)
        if site >= 0:
            self._note(site, index, active)
        place = index if buffer.rows is None else index + buffer.rows
        value = np.broadcast_to(value, shape)
        if active is not None:
            place, value = place[active], value[active]
        buffer.data[place] = value
        if buffer.stored is not None:
            buffer.stored[place] = True

    def reduce(
        self,
        value: Any,
        strides: list[int],
        extents: list[int],
        combine: Callable[[Any, Any], Any],
    ) -> np.ndarray:
        """Combine the values of threads that differ only along some axes; each thread gets the
        result.

        `strides` are the axes' strides in the threads' numbers. Values are combined in the order of
        the numbers; the compiled kernel uses another order, so results may differ in the last bits.
        """
        values = np.broadcast_to(value, (self.width, 1))[:, 0].copy()
        for stride, extent in zip(strides, extents, strict=True):
            numbers = np.arange(self.width)
            first = numbers[numbers // stride % extent == 0]
            total = values[first]
            for place in range(1, extent):
                total = combine(total, values[first + place * stride])
            for place in range(extent):
                values[first + place * stride] = total
        return values[:, None]

    def outside(self, site: int, index: int, buffer: Storage) -> None:
        """Raise TraceError for an access outside its buffer."""
        where = self.site_names[site] if site >= 0 else f"{buffer.name}[...]"
        raise TraceError(
            f"trace: {where} is element {index} of {buffer.name}, which has {buffer.size} elements"
        )

    def _check(self, buffer: Storage, site: int, index: np.ndarray) -> None:
        low, high = int(index.min()), int(index.max())
        if low < 0 or high >= buffer.size:
            self.outside(site, low if low < 0 else high, buffer)

    def _note(self, site: int, index: np.ndarray, active: np.ndarray | None) -> None:
        self.log.append((site, index, active))
        self.count += index.size
        if self.count > self.limit:
            self.guard()


def round_half_away(value: Any) -> Any:
    """Return C's round, which rounds halves away from zero; NumPy rounds them to even."""
    return np.copysign(np.floor(np.abs(value) + 0.5), value)


def erf(value: Any) -> Any:
    """Return the error function, computed in float64 and rounded to the argument's dtype."""
    values = np.asarray(value)
    result = np.array([math.erf(v) for v in values.ravel().tolist()])
    return result.reshape(values.shape).astype(values.dtype)[()]


def trunc_div(a: Any, b: Any) -> Any:
    """Divide integers, rounding towards zero."""
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def trunc_mod(a: Any, b: Any) -> Any:
    """Return the remainder with the sign of the dividend."""
    return a - b * trunc_div(a, b)


def wrapped(value: Any, dtype: np.dtype) -> int:
    """Return a Python integer wrapped around to the range of an integer dtype."""
    return (
        int(
            np.asarray(int(value) & (2 ** (8 * dtype.itemsize) - 1), f"u{dtype.itemsize}").view(
                dtype
            )
        )
        if dtype.kind in "iu"
        else int(value)
    )
