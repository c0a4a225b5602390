"""All steps of a plain RNN over a sequence on a GPU: the kernels of `recurrence.gpu`, with one sum
per unit. Designed by arithmetic, not measured."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from needle_tvm._tvm.names import te
from needle_tvm.kernels.recurrence.gpu import State, StepsThreads, StepsWriter, extern_steps
from needle_tvm.kernels.recurrence.rnn_cpu import RNN, nonlinear


def rnn_steps(
    inputs: Sequence[te.Tensor],
    threads: StepsThreads,
    *,
    with_sums: bool = False,
    nonlinearity: str,
) -> list[te.Tensor]:
    """Like `recurrence.rnn_cpu.rnn_steps`, as GPU kernels."""
    writer = functools.partial(_Writer, nonlinearity)
    return extern_steps(RNN, inputs, threads, with_sums, writer)


class _Writer(StepsWriter):
    """Writes the steps of an RNN."""

    def __init__(self, nonlinearity: str, *others: Any) -> None:
        super().__init__(*others)
        self._nonlinearity = nonlinearity

    def _first_share(self, t: Any, row: Any, place: Any) -> Any:
        return self._buffers.projected[t, row, place]

    def _store(self, t: Any, row: Any, unit: Any, totals: list[Any], *states: State) -> None:
        self._buffers.hiddens[t, row, unit] = nonlinear(self._nonlinearity, totals[0], self._dtype)
