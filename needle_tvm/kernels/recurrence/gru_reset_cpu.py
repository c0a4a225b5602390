"""All steps of a GRU that resets its state before the product (`ops.gru_reset_first`) as one
kernel: the loops of `recurrence.cpu`, twice per step. All units' r * h must be there before the
first n can be computed, so threads also wait for each other in the middle of a step."""

from __future__ import annotations

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

RESET_GATES = 2  # r and z, side by side


def gru_reset_steps(
    inputs: Sequence[te.Tensor], tiles: Sequence[LstmTile], *, with_sums: bool
) -> list[te.Tensor]:
    """Return the state h' after each step (T, B, H), if `with_sums` the gates r and z (T, B, 2 H),
    and what is passed on within a step, r * h and z (2, B, H). Inputs: projected (T, B, 3 H), h
    (B, H), and the panels of `pack_gates` for r and z, and for n."""
    shapes = reset_shapes(*steps_sizes(inputs), with_sums)
    return extern_steps("gru_reset_steps", inputs, shapes, tiles, _Writer)


def reset_shapes(steps: Any, batch: Any, hidden: Any, with_sums: bool) -> list[tuple[Any, ...]]:
    """The shapes of the results."""
    gates = [(steps, batch, RESET_GATES * hidden)] * with_sums
    return [(steps, batch, hidden), *gates, (2, batch, hidden)]


class _Writer(StepsWriter):
    """Writes the steps."""

    def __init__(
        self,
        s: Any,
        tile: LstmTile,
        sizes: tuple[Any, Any, Any],
        projected: Any,
        h: Any,
        panels: Any,
        new_panels: Any,
        hiddens: Any,
        *others: Any,
    ) -> None:
        super().__init__(s, tile, sizes, panels, [(h, hiddens)])
        self._projected, self._new_panels, self._hiddens = projected, new_panels, hiddens
        *gates, self._passed = others
        self._gates = gates[0] if gates else None

    def _step(self, t: Any, states: tuple[State, ...]) -> None:
        (h,) = states
        self._each_tile(lambda panel, first: self._tile_of_gates(t, panel, first, h))
        self._each_tile(lambda panel, first: self._tile_of_states(t, panel, first, h))

    def _tile_of_gates(self, t: Any, panel: Any, first: Any, h: State) -> None:
        """r * h and z of the panel's units."""
        s, units, dtype = self._s, self._tile.units, self._panels.dtype
        row, rows = self._rows(first), range(self._tile.rows)
        sums = s.alloc_buffer((len(rows), RESET_GATES, units), dtype, scope="local")

        def load(unit: Any, lane: Any) -> None:
            for r in rows:
                for gate in range(RESET_GATES):
                    share = self._projected[t, row[r], gate * self._hidden + unit]
                    s.buffer_store(sums, share, [r, gate, lane])

        def store(unit: Any, lane: Any) -> None:
            for r in rows:
                reset, keep = (sums[r, gate, lane] for gate in range(RESET_GATES))
                s.buffer_store(self._passed, reset * h(row[r], unit), [0, row[r], unit])
                s.buffer_store(self._passed, keep, [1, row[r], unit])
                for gate in range(RESET_GATES if self._gates is not None else 0):
                    at = [t, row[r], gate * self._hidden + unit]
                    s.buffer_store(self._gates, sums[r, gate, lane], at)

        self._each_unit(panel, load)
        self._multiply(sums, panel, row, h, RESET_GATES)
        with s.vectorized(0, units) as lane:
            for r in rows:
                for gate in range(RESET_GATES):
                    s.buffer_store(sums, tirx.sigmoid(sums[r, gate, lane]), [r, gate, lane])
        self._each_unit(panel, store)

    def _tile_of_states(self, t: Any, panel: Any, first: Any, *states: State) -> None:
        (h,) = states
        s, units, dtype = self._s, self._tile.units, self._panels.dtype
        row, rows = self._rows(first), range(self._tile.rows)
        new = s.alloc_buffer((len(rows), 1, units), dtype, scope="local")

        def load(unit: Any, lane: Any) -> None:
            for r in rows:
                share = self._projected[t, row[r], RESET_GATES * self._hidden + unit]
                s.buffer_store(new, share, [r, 0, lane])

        def store(unit: Any, lane: Any) -> None:
            for r in rows:
                n = new[r, 0, lane]
                state = n + self._passed[1, row[r], unit] * (h(row[r], unit) - n)
                s.buffer_store(self._hiddens, state, [t, row[r], unit])

        def kept(row: Any, unit: Any) -> Any:
            return self._passed[0, row, unit]

        self._each_unit(panel, load)
        self._multiply(new, panel, row, kept, 1, self._new_panels)
        with s.vectorized(0, units) as lane:
            for r in rows:
                s.buffer_store(new, tanh_or_nan(new[r, 0, lane]), [r, 0, lane])
        self._each_unit(panel, store)
