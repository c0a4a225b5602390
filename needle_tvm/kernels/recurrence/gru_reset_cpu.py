"""All steps of a GRU that resets its state before the product (`ops.gru_reset_first`) as one
kernel: the loops of `recurrence.cpu`, twice per step. All units' r * h must be there before the
first n can be computed, so threads also wait for each other in the middle of a step."""

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

RESET_GATES = 2  # r and z, side by side
GRU_RESET = Recurrence(
    "gru_reset_steps",
    ("projected", "h", "panels", "new_panels"),
    sums=("gates", RESET_GATES),
    passed=2,
)


def gru_reset_steps(
    inputs: Sequence[te.Tensor], tiles: Sequence[StepsTile], *, with_sums: bool
) -> list[te.Tensor]:
    """Return the state h' after each step (T, B, H), if `with_sums` the gates r and z (T, B, 2 H),
    and what is passed on within a step, r * h and z (2, B, H). Inputs: projected (T, B, 3 H), h
    (B, H), and the panels of `pack_gates` for r and z, and for n."""
    return extern_steps(GRU_RESET, inputs, tiles, with_sums, _Writer)


class _Writer(StepsWriter):
    """Writes the steps."""

    def _step(self, t: Any, states: tuple[State, ...]) -> None:
        (h,) = states
        self._each_tile(lambda panel, first: self._tile_of_gates(t, panel, first, h))
        self._each_tile(lambda panel, first: self._tile_of_states(t, panel, first, h))

    def _tile_of_gates(self, t: Any, panel: Any, first: Any, h: State) -> None:
        """r * h and z of the panel's units."""
        s, units, dtype, buffers = self._s, self._tile.units, self._dtype, self._buffers
        row, rows = self._rows(first), range(self._tile.rows)
        sums = s.alloc_buffer((len(rows), RESET_GATES, units), dtype, scope="local")

        def load(unit: Any, lane: Any) -> None:
            for r in rows:
                for gate in range(RESET_GATES):
                    share = buffers.projected[t, row[r], gate * self._hidden + unit]
                    s.buffer_store(sums, share, [r, gate, lane])

        def store(unit: Any, lane: Any) -> None:
            for r in rows:
                reset, keep = (sums[r, gate, lane] for gate in range(RESET_GATES))
                s.buffer_store(buffers.passed, reset * h(row[r], unit), [0, row[r], unit])
                s.buffer_store(buffers.passed, keep, [1, row[r], unit])
                for gate in range(RESET_GATES if hasattr(buffers, "gates") else 0):
                    at = [t, row[r], gate * self._hidden + unit]
                    s.buffer_store(buffers.gates, sums[r, gate, lane], at)

        self._each_unit(panel, load)
        self._multiply(sums, panel, row, h, RESET_GATES)
        with s.vectorized(0, units) as lane:
            for r in rows:
                for gate in range(RESET_GATES):
                    s.buffer_store(sums, tirx.sigmoid(sums[r, gate, lane]), [r, gate, lane])
        self._each_unit(panel, store)

    def _tile_of_states(self, t: Any, panel: Any, first: Any, *states: State) -> None:
        (h,) = states
        s, units, dtype, buffers = self._s, self._tile.units, self._dtype, self._buffers
        row, rows = self._rows(first), range(self._tile.rows)
        new = s.alloc_buffer((len(rows), 1, units), dtype, scope="local")

        def load(unit: Any, lane: Any) -> None:
            for r in rows:
                share = buffers.projected[t, row[r], RESET_GATES * self._hidden + unit]
                s.buffer_store(new, share, [r, 0, lane])

        def store(unit: Any, lane: Any) -> None:
            for r in rows:
                n = new[r, 0, lane]
                state = n + buffers.passed[1, row[r], unit] * (h(row[r], unit) - n)
                s.buffer_store(buffers.hiddens, state, [t, row[r], unit])

        def kept(row: Any, unit: Any) -> Any:
            return buffers.passed[0, row, unit]

        self._each_unit(panel, load)
        self._multiply(new, panel, row, kept, 1, buffers.new_panels)
        with s.vectorized(0, units) as lane:
            for r in rows:
                s.buffer_store(new, tanh_or_nan(new[r, 0, lane]), [r, 0, lane])
        self._each_unit(panel, store)
