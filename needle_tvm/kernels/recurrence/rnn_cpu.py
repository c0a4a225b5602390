"""All steps of a plain RNN over a sequence as one kernel: the loops of `recurrence.cpu`, with one
sum per unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle_tvm._tvm.names import te, tirx
from needle_tvm.kernels.recurrence.cpu import LstmTile, State, StepsWriter, pick_tile, tanh_or_nan
from needle_tvm.tir.extents import exprs_of, extent_of


def nonlinear(name: str, x: Any, dtype: str) -> Any:
    """tanh or relu of a sum, which propagate NaN like the ops."""
    return tanh_or_nan(x) if name == "tanh" else tirx.max(tirx.const(0, dtype), x)


def rnn_steps(
    inputs: Sequence[te.Tensor],
    tiles: Sequence[LstmTile],
    *,
    with_sums: bool = False,
    nonlinearity: str,
) -> list[te.Tensor]:
    """Return the state after each step (T, B, H). Inputs: projected (T, B, H), h (B, H), and the
    panels of `pack_gates`. An RNN has no results beside its states, so `with_sums` is False."""
    steps, batch, hidden = exprs_of(map(extent_of, (inputs[0].shape[0], *inputs[1].shape)))

    def body(ins: list[Any], outs: list[Any]) -> Any:
        def writer(s: Any, tile: LstmTile) -> _Writer:
            return _Writer(s, tile, steps, batch, hidden, nonlinearity, *ins, *outs)

        return pick_tile(tiles, batch, writer)

    shape, dtype = (steps, batch, hidden), inputs[0].dtype
    return [te.extern([shape], list(inputs), body, dtype=[dtype], name="rnn_steps")]


class _Writer(StepsWriter):
    """Writes the steps of an RNN."""

    def __init__(
        self,
        s: Any,
        tile: LstmTile,
        steps: Any,
        batch: Any,
        hidden: int,
        nonlinearity: str,
        projected: Any,
        h: Any,
        panels: Any,
        hiddens: Any,
    ) -> None:
        super().__init__(s, tile, steps, batch, hidden, panels)
        self._projected, self._h, self._hiddens = projected, h, hiddens
        self._nonlinearity = nonlinearity

    def _states_after(self, before: Any | None) -> tuple[State, ...]:
        if before is None:
            return (lambda *at: self._h[at],)
        return (lambda row, unit: self._hiddens[before, row, unit],)

    def _tile_of_states(self, t: Any, panel: Any, first: Any, *states: State) -> None:
        s, units, dtype = self._s, self._tile.units, str(self._panels.dtype)
        row, rows = self._rows(first), range(self._tile.rows)
        sums = s.alloc_buffer((len(rows), 1, units), dtype, scope="local")

        def load(unit: Any, lane: Any) -> None:
            for r in rows:
                s.buffer_store(sums, self._projected[t, row[r], unit], [r, 0, lane])

        def store(unit: Any, lane: Any) -> None:
            for r in rows:
                s.buffer_store(self._hiddens, sums[r, 0, lane], [t, row[r], unit])

        self._each_unit(panel, load)
        self._multiply(sums, panel, row, states[0], 1)
        with s.vectorized(0, units) as lane:
            for r in rows:
                state = nonlinear(self._nonlinearity, sums[r, 0, lane], dtype)
                s.buffer_store(sums, state, [r, 0, lane])
        self._each_unit(panel, store)
