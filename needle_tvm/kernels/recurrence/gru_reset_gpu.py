"""All steps of a GRU that resets its state before the product, on a GPU: the kernels of
`recurrence.gpu`, two per step, since all r * h must be there before the first n. Designed by
arithmetic, not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from needle_tvm._tvm.names import te, tirx
from needle_tvm.kernels.recurrence.cpu import tanh_or_nan
from needle_tvm.kernels.recurrence.gpu import (
    LstmThreads,
    State,
    StepsWriter,
    extern_steps,
    steps_sizes,
)
from needle_tvm.kernels.recurrence.gru_reset_cpu import RESET_GATES, reset_shapes


def gru_reset_steps(
    inputs: Sequence[te.Tensor], threads: LstmThreads, *, with_sums: bool
) -> list[te.Tensor]:
    """Like `recurrence.gru_reset_cpu.gru_reset_steps`, as GPU kernels; `threads` are those of the
    gates r and z."""
    sizes = steps_sizes(inputs)
    names = ["projected", "h", "panels", "new_panels", "hiddens", "gates", "passed"]
    if not with_sums:
        names.remove("gates")

    def writer(s: Any, dtype: str, *proxies: Any) -> _Writer:
        buffers = dict(zip(names, proxies, strict=True))
        return _Writer(s, threads, sizes, dtype, buffers, buffers["panels"])

    return extern_steps("gru_reset_steps", inputs, reset_shapes(*sizes, with_sums), names, writer)


class _Kernel(StepsWriter):
    """Writes a kernel of each step."""

    def __init__(
        self,
        s: Any,
        threads: LstmThreads,
        sizes: tuple[int, int, int],
        dtype: str,
        buffers: dict[str, Any],
        panels: Any,
    ) -> None:
        super().__init__(s, threads, sizes, dtype, panels, [(buffers["h"], buffers["hiddens"])])
        self._projected, self._passed = buffers["projected"], buffers["passed"]
        self._buffers = buffers


class _Writer(_Kernel):
    """Writes the steps: each is the kernel of the gates, which this is, and then the states'."""

    def _step(self, t: Any, states: tuple[State, ...]) -> None:
        super()._step(t, states)
        sizes, buffers = (self._steps, self._batch, self._hidden), self._buffers
        one = replace(self._threads, gates=1)
        _States(self._s, one, sizes, self._dtype, buffers, buffers["new_panels"])._step(t, states)

    def _first_share(self, t: Any, row: Any, place: Any) -> Any:
        return self._projected[t, row, place]

    def _store(self, t: Any, row: Any, unit: Any, totals: list[Any], *states: State) -> None:
        (h,) = states
        for gate in range(RESET_GATES):
            self._total[0] = tirx.sigmoid(totals[gate])
            value = self._total[0]
            self._passed[gate, row, unit] = value if gate else value * h(row, unit)
            if "gates" in self._buffers:
                self._buffers["gates"][t, row, gate * self._hidden + unit] = value


class _States(_Kernel):
    """Writes the states after a step."""

    def _multiply(self, h: State) -> None:
        super()._multiply(lambda row, unit: self._passed[0, row, unit])

    def _first_share(self, t: Any, row: Any, place: Any) -> Any:
        return self._projected[t, row, RESET_GATES * self._hidden + place]

    def _store(self, t: Any, row: Any, unit: Any, totals: list[Any], *states: State) -> None:
        (h,) = states
        self._total[0] = tanh_or_nan(totals[0])
        new = self._total[0]
        keep = self._passed[1, row, unit]
        self._buffers["hiddens"][t, row, unit] = new + keep * (h(row, unit) - new)
