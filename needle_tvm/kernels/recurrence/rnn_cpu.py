"""All steps of a plain RNN over a sequence as one kernel: the loops of `recurrence.cpu`, with one
sum per unit."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from needle_tvm._tvm.names import te, tirx
from needle_tvm.kernels.recurrence.cpu import (
    Recurrence,
    State,
    StepsTile,
    StepsWriter,
    extern_steps,
    tanh_or_nan,
)

RNN = Recurrence("rnn_steps", ("projected", "h", "panels"))


def nonlinear(name: str, x: Any, dtype: str) -> Any:
    """tanh or relu of a sum, which propagate NaN like the ops."""
    return tanh_or_nan(x) if name == "tanh" else tirx.max(tirx.const(0, dtype), x)


def rnn_steps(
    inputs: Sequence[te.Tensor],
    tiles: Sequence[StepsTile],
    *,
    with_sums: bool = False,
    nonlinearity: str,
) -> list[te.Tensor]:
    """Return the state after each step (T, B, H). Inputs: projected (T, B, H), h (B, H), and the
    panels of `pack_gates`. An RNN has no results beside its states, so `with_sums` is False."""
    writer = functools.partial(_Writer, nonlinearity)
    return extern_steps(RNN, inputs, tiles, with_sums, writer)


class _Writer(StepsWriter):
    """Writes the steps of an RNN."""

    def __init__(self, nonlinearity: str, *others: Any) -> None:
        super().__init__(*others)
        self._nonlinearity = nonlinearity

    def _tile_of_states(self, t: Any, panel: Any, first: Any, *states: State) -> None:
        s, units, dtype, buffers = self._s, self._tile.units, self._dtype, self._buffers
        row, rows = self._rows(first), range(self._tile.rows)
        sums = s.alloc_buffer((len(rows), 1, units), dtype, scope="local")

        def load(unit: Any, lane: Any) -> None:
            for r in rows:
                s.buffer_store(sums, buffers.projected[t, row[r], unit], [r, 0, lane])

        def store(unit: Any, lane: Any) -> None:
            for r in rows:
                s.buffer_store(buffers.hiddens, sums[r, 0, lane], [t, row[r], unit])

        self._each_unit(panel, load)
        self._multiply(sums, panel, row, states[0], 1)
        with s.vectorized(0, units) as lane:
            for r in rows:
                state = nonlinear(self._nonlinearity, sums[r, 0, lane], dtype)
                s.buffer_store(sums, state, [r, 0, lane])
        self._each_unit(panel, store)
