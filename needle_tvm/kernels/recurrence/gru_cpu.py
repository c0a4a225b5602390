"""All steps of a GRU over a sequence as one kernel: the loops of `recurrence.cpu`, with three gates
and one state."""

from __future__ import annotations

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

GRU_GATES = 3  # r, z, n, side by side
GRU = Recurrence("gru_steps", ("projected", "h", "panels", "bias"), sums=("sums", GRU_GATES))


def gru_steps(
    inputs: Sequence[te.Tensor], tiles: Sequence[StepsTile], *, with_sums: bool
) -> list[te.Tensor]:
    """Return the state h' after each step (T, B, H), and if `with_sums` also the state's part of
    the pre-activations (T, B, 3 H). Inputs: projected (T, B, 3 H), h (B, H), the panels of
    `pack_gates`, and the bias of the state's part (3 H,)."""
    return extern_steps(GRU, inputs, tiles, with_sums, _Writer)


class _Writer(StepsWriter):
    """Writes the steps of a GRU."""

    def _tile_of_states(self, t: Any, panel: Any, first: Any, *states: State) -> None:
        (h,) = states
        s, units, dtype, buffers = self._s, self._tile.units, self._dtype, self._buffers
        row, rows = self._rows(first), range(self._tile.rows)
        # `given` is the input's part, `sums` the state's.
        sums, given = (
            s.alloc_buffer((len(rows), GRU_GATES, units), dtype, scope="local") for _ in "sg"
        )
        state = s.alloc_buffer((len(rows), units), dtype, scope="local")

        def load_bias(unit: Any, lane: Any) -> None:
            for r in rows:
                for gate in range(GRU_GATES):
                    share = buffers.bias[gate * self._hidden + unit]
                    s.buffer_store(sums, share, [r, gate, lane])

        def load_given(unit: Any, lane: Any) -> None:
            for r in rows:
                for gate in range(GRU_GATES):
                    share = buffers.projected[t, row[r], gate * self._hidden + unit]
                    s.buffer_store(given, share, [r, gate, lane])
                s.buffer_store(state, h(row[r], unit), [r, lane])

        def store(unit: Any, lane: Any) -> None:
            for r in rows:
                s.buffer_store(buffers.hiddens, state[r, lane], [t, row[r], unit])
                for gate in range(GRU_GATES if hasattr(buffers, "sums") else 0):
                    at = [t, row[r], gate * self._hidden + unit]
                    s.buffer_store(buffers.sums, sums[r, gate, lane], at)

        self._each_unit(panel, load_bias)
        self._multiply(sums, panel, row, h, GRU_GATES)
        self._each_unit(panel, load_given)
        with s.vectorized(0, units) as lane:
            for r in rows:
                reset, keep = (
                    tirx.sigmoid(given[r, gate, lane] + sums[r, gate, lane]) for gate in range(2)
                )
                new = tanh_or_nan(given[r, 2, lane] + reset * sums[r, 2, lane])
                s.buffer_store(state, new + keep * (state[r, lane] - new), [r, lane])
        self._each_unit(panel, store)
