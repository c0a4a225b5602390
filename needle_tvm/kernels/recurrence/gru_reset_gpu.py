"""All steps of a GRU that resets its state before the product, on a GPU: the kernels of
`recurrence.gpu`, two per step, since all r * h must be there before the first n. Designed by
arithmetic, not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from needle_tvm._tvm.names import te, tirx
from needle_tvm.kernels.recurrence.cpu import tanh_or_nan
from needle_tvm.kernels.recurrence.gpu import State, StepsThreads, StepsWriter, extern_steps
from needle_tvm.kernels.recurrence.gru_reset_cpu import GRU_RESET, RESET_GATES


def gru_reset_steps(
    inputs: Sequence[te.Tensor], threads: StepsThreads, *, with_sums: bool
) -> list[te.Tensor]:
    """Like `recurrence.gru_reset_cpu.gru_reset_steps`, as GPU kernels; `threads` are those of the
    gates r and z."""
    return extern_steps(GRU_RESET, inputs, threads, with_sums, _Writer)


class _Writer(StepsWriter):
    """Writes the steps: each is the kernel of the gates, which this is, and then the states'."""

    def _step(self, t: Any, states: tuple[State, ...]) -> None:
        super()._step(t, states)
        one = replace(self._threads, gates=1)
        _States(self._kind, self._s, one, self._sizes, self._buffers)._step(t, states)

    def _first_share(self, t: Any, row: Any, place: Any) -> Any:
        return self._buffers.projected[t, row, place]

    def _store(self, t: Any, row: Any, unit: Any, totals: list[Any], *states: State) -> None:
        (h,) = states
        for gate in range(RESET_GATES):
            self._total[0] = tirx.sigmoid(totals[gate])
            value = self._total[0]
            self._buffers.passed[gate, row, unit] = value if gate else value * h(row, unit)
            if hasattr(self._buffers, "gates"):
                self._buffers.gates[t, row, gate * self._hidden + unit] = value


class _States(StepsWriter):
    """Writes the states after a step."""

    def _multiply(self, h: State, panels: Any = None) -> None:
        buffers = self._buffers
        super()._multiply(lambda row, unit: buffers.passed[0, row, unit], buffers.new_panels)

    def _first_share(self, t: Any, row: Any, place: Any) -> Any:
        return self._buffers.projected[t, row, RESET_GATES * self._hidden + place]

    def _store(self, t: Any, row: Any, unit: Any, totals: list[Any], *states: State) -> None:
        (h,) = states
        self._total[0] = tanh_or_nan(totals[0])
        new = self._total[0]
        keep = self._buffers.passed[1, row, unit]
        self._buffers.hiddens[t, row, unit] = new + keep * (h(row, unit) - new)
