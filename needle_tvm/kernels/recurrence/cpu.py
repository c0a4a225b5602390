"""All steps of a recurrence over a sequence as one kernel, written as explicit loops; an LSTM's.

The recurrent weight is packed so that one panel holds all gates of the same units: a tile of
gate sums turns directly into those units' next state, and only the state is written. Each thread
keeps its own panels, which stay in its cache from step to step. Within one parallel region, the
threads synchronise after every step (as in Diamos et al., "Persistent RNNs", ICML 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from needle.ops import _te
from needle_tvm._tvm.names import TE_NAMESPACE, Target, te, tirx
from needle_tvm.kernels.blocks import PARALLEL_WORK, item_bytes, vector_registers
from needle_tvm.kernels.variants import covers_best
from needle_tvm.tir.extents import exprs_of, extent_of, tiles_in

GATES = 4  # i, f, g, o, side by side


@dataclass(frozen=True)
class Recurrence:
    """What a kernel of all steps reads and writes. `inputs` names the buffers that it reads, in
    order. `states` pairs the buffer of a state's initial values (B, H) with that of its values
    after each step (T, B, H). `sums` names the result (T, B, n H) that is written only if it is
    read, and gives its n; a step passes on (`passed`, B, H) to its own second product."""

    name: str
    inputs: tuple[str, ...]
    states: tuple[tuple[str, str], ...] = (("h", "hiddens"),)
    sums: tuple[str, int] | None = None
    passed: int = 0

    def results(self, sizes: tuple[Any, Any, Any], with_sums: bool) -> dict[str, tuple[Any, ...]]:
        """The shapes of the results by name, in order."""
        steps, batch, hidden = sizes
        shapes = {after: sizes for _, after in self.states}
        if self.sums is not None and with_sums:
            name, count = self.sums
            shapes[name] = (steps, batch, count * hidden)
        if self.passed:
            shapes["passed"] = (self.passed, batch, hidden)
        return shapes


LSTM = Recurrence(
    "lstm_steps",
    ("projected", "h", "c", "panels"),
    states=(("h", "hiddens"), ("c", "cells")),
    sums=("sums", GATES),
)

# TVM's code generator keeps one parallel region around the loops inside it, and has the threads
# wait for each other after a loop.
_REGION, _BARRIER = "pragma_parallel_launch_point", "pragma_parallel_barrier_when_finish"


@dataclass(frozen=True)
class StepsTile:
    """The register tile: all gates of `units` units for `rows` rows of the batch."""

    rows: int
    units: int
    is_parallel: bool  # whether a step has enough work for more than one thread


def steps_tile(batch: int, hidden: int, dtype: str, target: Target, gates: int) -> StepsTile:
    """One vector of units, and as many rows as registers allow beside the weights of the gates and
    a broadcast value. Rows are split evenly, so that the last tile is nearly full."""
    most = _most_rows(target, gates)
    blocks = -(-batch // most)
    units = vector_registers(target)[1] // item_bytes(dtype)
    # TVM removes a loop of one iteration, and rejects a region without a parallel loop.
    shared = int(target.attrs["num-cores"]) > 1 and hidden > units
    return StepsTile(
        rows=-(-batch // blocks),
        units=units,
        is_parallel=shared and batch * hidden * gates * hidden >= PARALLEL_WORK,
    )


def steps_tiles(
    least: int, most: int, hidden: int, dtype: str, target: Target, gates: int
) -> list[StepsTile]:
    """The tiles for a symbolic batch within these bounds, fewest rows first: few rows have a tile
    of their own number, and more the one that covers them with the fewest to spare."""
    largest = _most_rows(target, gates)
    rows = {1, 2, -(-largest // 2), -(-2 * largest // 3), largest}
    fitting = sorted(each for each in rows if each <= largest)
    useful = [each for each in fitting if least <= each] or [largest]
    # Tiles of more rows than the first that holds the most are never picked.
    useful = useful[: next((at for at, each in enumerate(useful, 1) if each >= most), len(useful))]
    return [replace(steps_tile(most, hidden, dtype, target, gates), rows=each) for each in useful]


def _most_rows(target: Target, gates: int) -> int:
    registers, _ = vector_registers(target)
    return max(1, (registers - gates - 2) // gates)


def pack_gates(w: te.Tensor, units: int, gates: range | None = None) -> te.Tensor:
    """(H, all gates * H) -> (ceil(H / units), H, gates, units) of some gates or all, zeros past the
    last unit."""
    hidden = int(w.shape[0])
    chosen = range(int(w.shape[1]) // hidden) if gates is None else gates

    def element(panel: Any, k: Any, gate: Any, lane: Any) -> Any:
        unit = panel * units + lane
        value = w[k, (chosen.start + gate) * hidden + unit]
        if hidden % units == 0:
            return value
        return tirx.if_then_else(unit < hidden, value, tirx.const(0, w.dtype))

    return te.compute((-(-hidden // units), hidden, len(chosen), units), element, name="pack_gates")


def lstm_steps(
    inputs: Sequence[te.Tensor], tiles: Sequence[StepsTile], *, with_sums: bool
) -> list[te.Tensor]:
    """Return the states h' and c' after each step (T, B, H), and if `with_sums` also the sums that
    the gates are computed from (T, B, 4 H). Inputs: projected (T, B, 4 H), h and c (B, H), and the
    panels of `pack_gates`. The code picks among `tiles`, fewest rows first, by the batch."""
    return extern_steps(LSTM, inputs, tiles, with_sums, _Writer)


State = Callable[[Any, Any], Any]  # (row, unit) -> the value before a step


def states_after(kind: Recurrence, buffers: Any, before: Any | None) -> tuple[State, ...]:
    """The states after the step `before`; None for the initial ones."""

    def state(initial: str, after: str) -> State:
        if before is None:
            return lambda row, unit: getattr(buffers, initial)[row, unit]
        return lambda row, unit: getattr(buffers, after)[before, row, unit]

    return tuple(state(*each) for each in kind.states)


def steps_sizes(inputs: Sequence[te.Tensor]) -> tuple[Any, Any, Any]:
    """Steps, batch and hidden size, from projected and h: ints, or expressions of symbolic ones."""
    steps, batch, hidden = exprs_of(map(extent_of, (inputs[0].shape[0], *inputs[1].shape)))
    return steps, batch, hidden


def extern_steps(
    kind: Recurrence,
    inputs: Sequence[te.Tensor],
    tiles: Sequence[StepsTile],
    with_sums: bool,
    writer: Callable[..., StepsWriter],
) -> list[te.Tensor]:
    """The results of all steps, which `writer(kind, s, tile, sizes, buffers)` writes. The code
    picks among `tiles`, fewest rows first, by the batch."""
    sizes = steps_sizes(inputs)
    shapes = kind.results(sizes, with_sums)

    def body(ins: list[Any], outs: list[Any]) -> Any:
        named = dict(zip((*kind.inputs, *shapes), (*ins, *outs), strict=True))
        buffers = SimpleNamespace(**named)
        return pick_tile(tiles, sizes[1], lambda s, tile: writer(kind, s, tile, sizes, buffers))

    dtypes = [inputs[0].dtype] * len(shapes)
    results = te.extern(list(shapes.values()), list(inputs), body, dtype=dtypes, name=kind.name)
    return list(results) if len(shapes) > 1 else [results]


def pick_tile(
    tiles: Sequence[StepsTile], batch: Any, writer: Callable[[Any, StepsTile], StepsWriter]
) -> Any:
    """The statement that picks among `tiles` by the batch, and computes all steps with it."""

    def write(s: Any, number: int = 0) -> None:
        tile, *others = tiles[number:]
        steps = writer(s, tile)
        if not others:
            steps.all_steps()
            return
        largest = others[-1].rows
        among = [each.rows for each in others] if 2 * tile.rows >= largest else []
        with s.If(covers_best(batch, tile.rows, largest, among)):
            with s.Then():
                steps.all_steps()
            with s.Else():
                write(s, number + 1)

    return TE_NAMESPACE.statements(write)


class StepsWriter:
    """Writes the loops over steps, panels and rows with TVM's statement builder `s`. `buffers` has
    those that `kind` names as attributes. Subclasses write a tile."""

    def __init__(
        self, kind: Recurrence, s: Any, tile: StepsTile, sizes: tuple[Any, Any, Any], buffers: Any
    ) -> None:
        self._kind, self._s, self._tile, self._buffers = kind, s, tile, buffers
        self._steps, self._batch, self._hidden = sizes
        self._dtype = str(buffers.h.dtype)

    def _tile_of_states(self, t: Any, panel: Any, first: Any, *states: State) -> None:
        """Compute the panel's units after step t, in rows from `first` on."""
        raise NotImplementedError

    def all_steps(self) -> None:
        s = self._s
        with self._when_parallel(_REGION), s.serial(0, self._steps) as t, s.If(t == 0):
            with s.Then():
                self._step(t, states_after(self._kind, self._buffers, None))
            with s.Else():
                self._step(t, states_after(self._kind, self._buffers, t - 1))

    def _step(self, t: Any, states: tuple[State, ...]) -> None:
        """Compute the states after step t from those before it."""
        self._each_tile(lambda panel, first: self._tile_of_states(t, panel, first, *states))

    def _each_tile(self, write: Callable[[Any, Any], None]) -> None:
        """Call `write(panel, first row)` for all tiles, distributed over threads, which wait for
        each other afterwards."""
        s, tile = self._s, self._tile
        loop = s.parallel if tile.is_parallel else s.serial
        panels = -(-self._hidden // tile.units)
        (blocks,) = exprs_of([tiles_in(extent_of(self._batch), tile.rows)[0]])
        with (
            self._when_parallel(_BARRIER),
            loop(0, panels) as panel,
            s.serial(0, blocks) as block,
        ):
            write(panel, block * tile.rows)

    def _rows(self, first: Any) -> list[Any]:
        """A tile's rows of the batch; those past the end repeat the last row."""
        return [tirx.min(first + r, self._batch - 1) for r in range(self._tile.rows)]

    def _multiply(
        self, sums: Any, panel: Any, rows: list[Any], h: State, gates: int, panels: Any = None
    ) -> None:
        """Add h's products with the panel to the tile's sums. Other `panels` may be given."""
        s, panels = self._s, self._buffers.panels if panels is None else panels
        with s.serial(0, self._hidden) as k, s.vectorized(0, self._tile.units) as lane:
            for r, row in enumerate(rows):
                for gate in range(gates):
                    product = h(row, k) * panels[panel, k, gate, lane]
                    s.buffer_store(sums, sums[r, gate, lane] + product, [r, gate, lane])

    def _each_unit(self, panel: Any, write: Callable[[Any, Any], None]) -> None:
        """Call `write(unit, lane)` for the panel's units: as a vector, or one by one in a last
        panel that is not full."""
        s, units = self._s, self._tile.units
        whole, rest = divmod(self._hidden, units)

        def loop(kind: Any, count: int) -> None:
            with kind(0, count) as lane:
                write(panel * units + lane, lane)

        if not rest:
            loop(s.vectorized, units)
            return
        with s.If(panel < whole):
            with s.Then():
                loop(s.vectorized, units)
            with s.Else():
                loop(s.serial, rest)

    def _when_parallel(self, pragma: str) -> ExitStack:
        stack = ExitStack()
        if self._tile.is_parallel:
            stack.enter_context(self._s.attr(0, pragma, 1))
        return stack


class _Writer(StepsWriter):
    """Writes the steps of an LSTM."""

    def _tile_of_states(self, t: Any, panel: Any, first: Any, *states: State) -> None:
        h, c = states
        s, units, dtype, buffers = self._s, self._tile.units, self._dtype, self._buffers
        rows = range(self._tile.rows)
        sums = s.alloc_buffer((len(rows), GATES, units), dtype, scope="local")
        cell, hidden = (s.alloc_buffer((len(rows), units), dtype, scope="local") for _ in "ch")
        row = self._rows(first)

        def load(unit: Any, lane: Any) -> None:
            for r in rows:
                for gate in range(GATES):
                    share = buffers.projected[t, row[r], gate * self._hidden + unit]
                    s.buffer_store(sums, share, [r, gate, lane])
                s.buffer_store(cell, c(row[r], unit), [r, lane])

        def store(unit: Any, lane: Any) -> None:
            for r in rows:
                at = [t, row[r], unit]
                s.buffer_store(buffers.hiddens, hidden[r, lane], at)
                s.buffer_store(buffers.cells, cell[r, lane], at)
                for gate in range(GATES if hasattr(buffers, "sums") else 0):
                    at = [t, row[r], gate * self._hidden + unit]
                    s.buffer_store(buffers.sums, sums[r, gate, lane], at)

        self._each_unit(panel, load)
        self._multiply(sums, panel, row, h, GATES)
        with s.vectorized(0, units) as lane:
            for r in rows:
                i, f, g, o = (sums[r, gate, lane] for gate in range(GATES))
                kept, added = tirx.sigmoid(f) * cell[r, lane], tirx.sigmoid(i) * tanh_or_nan(g)
                s.buffer_store(cell, kept + added, [r, lane])
                s.buffer_store(hidden, tirx.sigmoid(o) * tanh_or_nan(cell[r, lane]), [r, lane])
        self._each_unit(panel, store)


def tanh_or_nan(x: Any) -> Any:
    """tanh that propagates NaN, the op's own."""
    return _te.tanh_or_nan(TE_NAMESPACE, x)
