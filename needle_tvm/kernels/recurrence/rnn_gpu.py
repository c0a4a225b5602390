"""All steps of a plain RNN over a sequence on a GPU: the kernels of `recurrence.gpu`, with one sum
per unit. Designed by arithmetic, not measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle_tvm._tvm.names import te
from needle_tvm.kernels.recurrence.gpu import (
    LstmThreads,
    State,
    StepsWriter,
    extern_steps,
    steps_sizes,
)
from needle_tvm.kernels.recurrence.rnn_cpu import nonlinear


def rnn_steps(
    inputs: Sequence[te.Tensor],
    threads: LstmThreads,
    *,
    with_sums: bool = False,
    nonlinearity: str,
) -> list[te.Tensor]:
    """Like `recurrence.rnn_cpu.rnn_steps`, as GPU kernels."""
    sizes = steps_sizes(inputs)
    return extern_steps(
        "rnn_steps",
        inputs,
        [sizes],
        ("projected", "h", "panels", "hiddens"),
        lambda s, dtype, *proxies: _Writer(s, threads, sizes, dtype, nonlinearity, *proxies),
    )


class _Writer(StepsWriter):
    """Writes the steps of an RNN."""

    def __init__(
        self,
        s: Any,
        threads: LstmThreads,
        sizes: tuple[int, int, int],
        dtype: str,
        nonlinearity: str,
        projected: Any,
        h: Any,
        panels: Any,
        hiddens: Any,
    ) -> None:
        super().__init__(s, threads, sizes, dtype, panels, [(h, hiddens)])
        self._projected, self._hiddens, self._nonlinearity = projected, hiddens, nonlinearity

    def _first_share(self, t: Any, row: Any, place: Any) -> Any:
        return self._projected[t, row, place]

    def _store(self, t: Any, row: Any, unit: Any, totals: list[Any], *states: State) -> None:
        self._hiddens[t, row, unit] = nonlinear(self._nonlinearity, totals[0], self._dtype)
