"""All steps of a plain RNN over a sequence as one kernel: the loops of `recurrence.cpu`, with one
sum per unit."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from needle_tvm._tvm.names import te, tirx
from needle_tvm.kernels.recurrence.cpu import (
    LstmTile,
    State,
    StepsWriter,
    extern_steps,
    steps_sizes,
    tanh_or_nan,
)


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
    writer = functools.partial(_Writer, nonlinearity)
    return extern_steps("rnn_steps", inputs, [steps_sizes(inputs)], tiles, writer)


class _Writer(StepsWriter):
    """Writes the steps of an RNN."""

    def __init__(
        self,
        nonlinearity: str,
        s: Any,
        tile: LstmTile,
        sizes: tuple[Any, Any, Any],
        projected: Any,
        h: Any,
        panels: Any,
        hiddens: Any,
    ) -> None:
        super().__init__(s, tile, sizes, panels, [(h, hiddens)])
        self._projected, self._hiddens, self._nonlinearity = projected, hiddens, nonlinearity

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
