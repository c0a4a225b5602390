"""All steps of a GRU over a sequence on a GPU: the kernels of `recurrence.gpu`, with three gates
and one state. Designed by arithmetic, not measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle_tvm._tvm.names import te, tirx
from needle_tvm.kernels.recurrence.cpu import tanh_or_nan
from needle_tvm.kernels.recurrence.gpu import State, StepsThreads, StepsWriter, extern_steps
from needle_tvm.kernels.recurrence.gru_cpu import GRU, GRU_GATES


def gru_steps(
    inputs: Sequence[te.Tensor], threads: StepsThreads, *, with_sums: bool
) -> list[te.Tensor]:
    """Like `recurrence.gru_cpu.gru_steps`, as GPU kernels."""
    return extern_steps(GRU, inputs, threads, with_sums, _Writer)


class _Writer(StepsWriter):
    """Writes the steps of a GRU. The sums are the state's part alone."""

    def _first_share(self, t: Any, row: Any, place: Any) -> Any:
        return self._buffers.bias[place]

    def _store(self, t: Any, row: Any, unit: Any, totals: list[Any], *states: State) -> None:
        (h,) = states
        projected = self._buffers.projected
        given = [projected[t, row, gate * self._hidden + unit] for gate in range(GRU_GATES)]
        reset, keep = (tirx.sigmoid(given[gate] + totals[gate]) for gate in range(2))
        self._total[0] = tanh_or_nan(given[2] + reset * totals[2])
        new = self._total[0]
        self._buffers.hiddens[t, row, unit] = new + keep * (h(row, unit) - new)
