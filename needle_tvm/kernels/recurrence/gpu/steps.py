"""The steps of a recurrence on a GPU, such as an LSTM's: a kernel per step, launched by the host.

dlight has no rule for such steps and runs all of them in one thread. A step is a matmul of few rows
(see `dense.gpu.few_rows`) whose epilogue computes the next state. A block computes all gates of a
few units from a panel of the packed weight (`gates.pack_gates`). Its threads split the reduction
axis:

    for step (on the host; a CUDA graph can hold the launches):
        for units (blockIdx.x), rows (blockIdx.y):
            for slice of the terms (threadIdx.y), gate and unit (threadIdx.x):
                for term of the slice: for row: own[row] += h[row, term] * panel[term, gate, unit]
                parts[slice, row, gate, unit] = own[row]
            for row (threadIdx.y), gate and unit (threadIdx.x):
                sums[row, gate, unit] = the input's share + the sum of parts
            for row (threadIdx.y), unit (threadIdx.x): the next state, from the sums of its gates

All blocks need the previous state, so a step can begin only after the previous step has ended; the
end of a kernel synchronises the blocks. A weight of a few megabytes stays in the L2 cache from step
to step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from needle_tvm._tvm.names import statements, te, tirx
from needle_tvm.tir import nests

_THREADS = 256
_BLOCKS = 128  # about as many as large GPUs have multiprocessors
_MOST_UNITS, _LEAST_UNITS = 8, 2  # per block; two fill the smallest memory transaction, 32 bytes
_MOST_ROWS = 16  # sums that a thread keeps in registers
_VECTOR = 4  # neighbouring terms per thread, loaded from the state at once


@dataclass(frozen=True)
class Recurrence:
    """The buffers of the kernel that runs all steps. `inputs` names the buffers that it reads, in
    order. `states` has a pair of names for each state: the buffer of its initial values (B, H), and
    the buffer of its values after each step (T, B, H)."""

    name: str
    inputs: tuple[str, ...]
    states: tuple[tuple[str, str], ...] = (("h", "hiddens"),)


State = Callable[[Any, Any], Any]  # (row, unit) -> the state's value before a step


def states_after(kind: Recurrence, buffers: Any, before: Any | None) -> tuple[State, ...]:
    """Return the states after step `before`, or the initial states if `before` is None."""

    def state(initial: str, after: str) -> State:
        if before is None:
            return lambda row, unit: getattr(buffers, initial)[row, unit]
        return lambda row, unit: getattr(buffers, after)[before, row, unit]

    return tuple(state(*each) for each in kind.states)


@dataclass(frozen=True)
class StepsThreads:
    """A block's numbers of units, rows, slices of the terms, and gates. A thread loads
    `terms` neighbouring terms at a time."""

    units: int
    rows: int
    slices: int
    terms: int
    gates: int

    @property
    def columns(self) -> int:
        """The number of sums per row."""
        return self.gates * self.units


def steps_threads(batch: int, hidden: int, gates: int) -> StepsThreads:
    """Choose units per block, few enough to give enough blocks, and no more slices than terms."""
    row_blocks = -(-batch // _MOST_ROWS)
    units = _MOST_UNITS
    while units > _LEAST_UNITS and -(-hidden // units) * row_blocks < _BLOCKS:
        units //= 2
    terms = _VECTOR if hidden % _VECTOR == 0 else 1
    slices = _THREADS // (gates * units)
    while slices > 1 and hidden < slices * terms:
        slices //= 2
    return StepsThreads(units, -(-batch // row_blocks), slices, terms, gates)


def extern_steps(
    kind: Recurrence,
    inputs: Sequence[te.Tensor],
    threads: StepsThreads,
    writer: Callable[..., StepsWriter],
) -> list[te.Tensor]:
    """Return the results of all steps; `writer(kind, s, threads, sizes, buffers)` writes them."""
    dtype, named = str(inputs[0].dtype), dict(zip(kind.inputs, inputs, strict=True))
    steps, (batch, hidden) = named["projected"].shape[0], named["h"].shape
    sizes = int(steps), int(batch), int(hidden)
    shapes = {after: sizes for _, after in kind.states}

    # Without these declarations, the buffers would have offsets, and kernels would take them as
    # arguments.
    input_buffers = [
        tirx.decl_buffer(each.shape, dtype, name)
        for name, each in zip(kind.inputs, inputs, strict=True)
    ]
    output_buffers = [nests.buffer(name, shape, dtype) for name, shape in shapes.items()]

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        named = dict(zip((*kind.inputs, *shapes), (*ins, *outs), strict=True))

        def write(s: Any) -> None:
            proxies = {name: s.buffer_proxy(each) for name, each in named.items()}
            writer(kind, s, threads, sizes, SimpleNamespace(**proxies)).all_steps()

        return statements(write)

    results = te.extern(
        list(shapes.values()),
        list(inputs),
        body,
        name=kind.name,
        in_buffers=input_buffers,
        out_buffers=output_buffers,
    )
    return list(results) if len(shapes) > 1 else [results]


class StepsWriter:
    """Writes the loops with TVM's statement builder `s`. The attributes of `buffers` are the
    buffers that `kind` names. Subclasses define the sums' initial values and the next states."""

    def __init__(
        self,
        kind: Recurrence,
        s: Any,
        threads: StepsThreads,
        sizes: tuple[int, int, int],
        buffers: Any,
    ) -> None:
        self._kind, self._s, self._threads, self._buffers = kind, s, threads, buffers
        self._steps, self._batch, self._hidden = self._sizes = sizes
        self._dtype = str(buffers.h.dtype)

    def _first_share(self, t: Any, row: Any, place: Any) -> Any:
        """Return the initial value of a sum."""
        raise NotImplementedError

    def _store(self, t: Any, row: Any, unit: Any, totals: list[Any], *states: State) -> None:
        """Store the next state of a unit, given the totals of its gates and the previous states."""
        raise NotImplementedError

    def all_steps(self) -> None:
        with self._s.sblock("steps"):
            self._step(0, states_after(self._kind, self._buffers, None))
            if self._steps > 1:
                with self._s.serial(1, self._steps) as t:
                    self._step(t, states_after(self._kind, self._buffers, t - 1))

    def _step(self, t: Any, states: tuple[State, ...]) -> None:
        """Compute the states after step t from the states before it."""
        s, own = self._s, self._threads
        panels, blocks = -(-self._hidden // own.units), -(-self._batch // own.rows)
        with (
            s.thread_binding(0, panels, "blockIdx.x") as panel,
            s.thread_binding(0, blocks, "blockIdx.y") as block,
            s.thread_binding(0, own.slices, "threadIdx.y") as self._slice,
            s.thread_binding(0, own.columns, "threadIdx.x") as self._column,
            s.sblock("step"),
        ):
            self._panel, self._first = panel, block * own.rows
            self._allocate()
            self._multiply(states[0])
            self._add(t)
            self._update(t, *states)

    def _allocate(self) -> None:
        s, own = self._s, self._threads

        def buffer(scope: str, size: int) -> Any:
            made = s.sblock_alloc_buffer((size,), self._dtype, scope=scope, layout=None)
            return s.buffer_proxy(made)

        self._parts = buffer("shared", own.slices * own.rows * own.columns)
        self._totals = buffer("shared", own.rows * own.columns)
        self._own = buffer("local", own.rows)
        self._total = buffer("local", 1)
        self._weights, self._states = buffer("local", own.terms), buffer("local", own.terms)

    def _row(self, r: Any) -> Any:
        """Return the index of the block's row r; past the end, return the last row's."""
        return tirx.min(self._first + r, self._batch - 1)

    def _multiply(self, h: State) -> None:
        """Sum this thread's slice of the terms for all rows."""
        s, own, panels = self._s, self._threads, self._buffers.panels
        gate, lane = self._column // own.units, self._column % own.units
        with s.unroll(0, own.rows) as r:
            self._own[r] = tirx.const(0, self._dtype)
        each = own.slices * own.terms
        with s.serial(0, -(-self._hidden // each)) as step:
            first = (step * own.slices + self._slice) * own.terms

            def add() -> None:
                with s.unroll(0, own.terms) as k:
                    self._weights[k] = panels[self._panel, first + k, gate, lane]
                with s.unroll(0, own.rows) as r:
                    with s.vectorized(0, own.terms) as k:
                        self._states[k] = h(self._row(r), first + k)
                    with s.unroll(0, own.terms) as k:
                        self._own[r] = self._own[r] + self._states[k] * self._weights[k]

            self._where([first < self._hidden] if self._hidden % each else [], add)
        with s.unroll(0, own.rows) as r:
            self._parts[(self._slice * own.rows + r) * own.columns + self._column] = self._own[r]

    def _add(self, t: Any) -> None:
        """Sum the block's gates; each slice of threads takes one row at a time."""
        s, own = self._s, self._threads
        unit = self._panel * own.units + self._column % own.units
        place = self._column // own.units * self._hidden + unit
        inside = [unit < self._hidden] if self._hidden % own.units else []

        def add(r: Any) -> None:
            share = self._first_share(t, self._row(r), place)
            if inside:
                share = tirx.if_then_else(*inside, share, tirx.const(0, self._dtype))
            self._total[0] = share
            with s.unroll(0, own.slices) as part:
                at = (part * own.rows + r) * own.columns + self._column
                self._total[0] = self._total[0] + self._parts[at]
            self._totals[r * own.columns + self._column] = self._total[0]

        self._each_row(add)

    def _update(self, t: Any, *states: State) -> None:
        """Compute the next state of the block's units, in the first threads of a slice."""
        own = self._threads
        unit = self._panel * own.units + self._column

        def update(r: Any) -> None:
            inside = [self._column < own.units, *self._is_row(r)]
            if self._hidden % own.units:
                inside.append(unit < self._hidden)
            totals = [
                self._totals[r * own.columns + gate * own.units + self._column]
                for gate in range(own.gates)
            ]
            self._where(inside, lambda: self._store(t, self._first + r, unit, totals, *states))

        self._each_row(update)

    def _each_row(self, write: Callable[[Any], None]) -> None:
        """Call `write(row)` for the block's rows, distributed over the slices of threads."""
        own = self._threads
        with self._s.serial(0, -(-own.rows // own.slices)) as i:
            r = i * own.slices + self._slice
            self._where([r < own.rows] if own.rows % own.slices else [], lambda: write(r))

    def _is_row(self, r: Any) -> list[Any]:
        return [self._first + r < self._batch] if self._batch % self._threads.rows else []

    def _where(self, conditions: list[Any], write: Callable[[], None]) -> None:
        if not conditions:
            write()
            return
        with self._s.If(tirx.all(*conditions)), self._s.Then():
            write()
