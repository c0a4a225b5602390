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
        return _Writer(s, threads, sizes, dtype, dict(zip(names, proxies, strict=True)))

    return extern_steps("gru_reset_steps", inputs, reset_shapes(*sizes, with_sums), names, writer)


class _Writer(StepsWriter):
    """Writes the steps: each is the gates' kernel, and then the states'."""

    def __init__(
        self,
        s: Any,
        threads: LstmThreads,
        sizes: tuple[int, int, int],
        dtype: str,
        buffers: dict[str, Any],
    ) -> None:
        super().__init__(s, threads, sizes, dtype, buffers["panels"])
        self._buffers = buffers
        self._parts = (
            _Gates(s, threads, sizes, dtype, buffers),
            _States(s, replace(threads, gates=1), sizes, dtype, buffers),
        )

    def _states_after(self, before: Any | None) -> tuple[State, ...]:
        h, hiddens = self._buffers["h"], self._buffers["hiddens"]
        if before is None:
            return (lambda *at: h[at],)
        return (lambda row, unit: hiddens[before, row, unit],)

    def _step(self, t: Any, states: tuple[State, ...]) -> None:
        for part in self._parts:
            part._step(t, states)


class _Gates(StepsWriter):
    """Writes r * h and z of a step."""

    def __init__(
        self,
        s: Any,
        threads: LstmThreads,
        sizes: tuple[int, int, int],
        dtype: str,
        buffers: dict[str, Any],
    ) -> None:
        super().__init__(s, threads, sizes, dtype, buffers["panels"])
        self._projected, self._passed = buffers["projected"], buffers["passed"]
        self._gates = buffers.get("gates")

    def _first_share(self, t: Any, row: Any, place: Any) -> Any:
        return self._projected[t, row, place]

    def _store(self, t: Any, row: Any, unit: Any, totals: list[Any], *states: State) -> None:
        (h,) = states
        for gate in range(RESET_GATES):
            self._total[0] = tirx.sigmoid(totals[gate])
            value = self._total[0]
            self._passed[gate, row, unit] = value if gate else value * h(row, unit)
            if self._gates is not None:
                self._gates[t, row, gate * self._hidden + unit] = value


class _States(StepsWriter):
    """Writes the states after a step."""

    def __init__(
        self,
        s: Any,
        threads: LstmThreads,
        sizes: tuple[int, int, int],
        dtype: str,
        buffers: dict[str, Any],
    ) -> None:
        super().__init__(s, threads, sizes, dtype, buffers["new_panels"])
        self._projected, self._passed = buffers["projected"], buffers["passed"]
        self._hiddens = buffers["hiddens"]

    def _multiply(self, h: State) -> None:
        super()._multiply(lambda row, unit: self._passed[0, row, unit])

    def _first_share(self, t: Any, row: Any, place: Any) -> Any:
        return self._projected[t, row, RESET_GATES * self._hidden + place]

    def _store(self, t: Any, row: Any, unit: Any, totals: list[Any], *states: State) -> None:
        (h,) = states
        self._total[0] = tanh_or_nan(totals[0])
        new = self._total[0]
        keep = self._passed[1, row, unit]
        self._hiddens[t, row, unit] = new + keep * (h(row, unit) - new)
