"""Emits LSTM, GRU and plain RNN layers as the kernels of `recurrence.gpu`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from needle.op.subgraph import Body
from needle.ops import Scan, _te
from needle.recurrence import layers as recurrent
from needle_tvm._tvm.names import OP_PATTERN, TE_NAMESPACE, relax, te, tirx, topi
from needle_tvm.kernels.recurrence.gates import pack_gates
from needle_tvm.kernels.recurrence.gpu.steps import (
    Recurrence,
    State,
    StepsWriter,
    extern_steps,
    steps_threads,
)
from needle_tvm.kernels.scheduled import SCHEDULED


class _Lstm(StepsWriter):
    def _first_share(self, t: Any, row: Any, place: Any) -> Any:
        return self._buffers.projected[t, row, place]

    def _store(self, t: Any, row: Any, unit: Any, totals: list[Any], *states: State) -> None:
        _, c = states
        i, f, g, o = totals
        kept, added = tirx.sigmoid(f) * c(row, unit), tirx.sigmoid(i) * _tanh(g)
        self._total[0] = kept + added
        self._buffers.cells[t, row, unit] = self._total[0]
        self._buffers.hiddens[t, row, unit] = tirx.sigmoid(o) * _tanh(self._total[0])


class _Gru(StepsWriter):
    """The steps of a GRU. Sums contain only the state's part; `_store` adds the input's part."""

    def _first_share(self, t: Any, row: Any, place: Any) -> Any:
        return self._buffers.bias[place]

    def _store(self, t: Any, row: Any, unit: Any, totals: list[Any], *states: State) -> None:
        (h,) = states
        given = [self._buffers.projected[t, row, gate * self._hidden + unit] for gate in range(3)]
        reset, keep = (tirx.sigmoid(given[gate] + totals[gate]) for gate in range(2))
        self._total[0] = _tanh(given[2] + reset * totals[2])
        new = self._total[0]
        self._buffers.hiddens[t, row, unit] = new + keep * (h(row, unit) - new)


class _Rnn(StepsWriter):
    def _first_share(self, t: Any, row: Any, place: Any) -> Any:
        return self._buffers.projected[t, row, place]

    def _store(self, t: Any, row: Any, unit: Any, totals: list[Any], *states: State) -> None:
        self._buffers.hiddens[t, row, unit] = self._function(totals[0])

    def _function(self, x: Any) -> Any:
        return _tanh(x)


class _ReluRnn(_Rnn):
    def _function(self, x: Any) -> Any:
        return tirx.max(tirx.const(0, self._dtype), x)


def _tanh(x: Any) -> Any:
    """Return a tanh that propagates NaN, as the op's tanh does."""
    return _te.tanh_or_nan(TE_NAMESPACE, x)


@dataclass(frozen=True)
class _Layer:
    """A cell, the buffers of its kernel (`kind`), its number of gates, and the kernel's writer."""

    cell: Body
    kind: Recurrence
    gates: int
    writer: Callable[..., StepsWriter]

    @property
    def weight(self) -> int:
        return self.kind.inputs.index("panels")


_STATES = (("h", "hiddens"), ("c", "cells"))
_LAYERS = (
    _Layer(
        recurrent.LSTM,
        Recurrence("lstm_steps", ("h", "c", "projected", "panels"), _STATES),
        *(4, _Lstm),
    ),
    _Layer(
        recurrent.GRU,
        Recurrence("gru_steps", ("h", "projected", "panels", "bias"), _STATES[:1]),
        *(3, _Gru),
    ),
    *(
        _Layer(
            recurrent.RNN[name],
            Recurrence(f"rnn_{name}_steps", ("h", "projected", "panels"), _STATES[:1]),
            *(1, writer),
        )
        for name, writer in (("tanh", _Rnn), ("relu", _ReluRnn))
    ),
)


def is_layer(op: Scan) -> bool:
    """Return whether a scan is one of these layers in float32 or float64 and outputs only
    states."""
    known = any(each.cell.steps == op.body.steps for each in _LAYERS)
    is_wide = op.body.inputs[0].dtype in ("float32", "float64")
    return known and is_wide and set(op.body.outputs) <= set(op.body.outputs[: op.states])


def layer(builder: relax.BlockBuilder, op: Scan, operands: Sequence[Any]) -> list[Any]:
    """Emit a scan that is one of these layers and return its results. The scan may lack outputs
    that nothing reads; the list has None in their positions."""
    layer_kind = next(each for each in _LAYERS if each.cell.steps == op.body.steps)
    after = op.body.outputs[: op.states]
    inputs, sequence = list(operands), op.states
    if op.reverse:
        inputs[sequence] = builder.emit_te(topi.flip, inputs[sequence], 0)
    _, batch, width = map(int, operands[sequence].ty.shape.values)
    threads = steps_threads(batch, width // layer_kind.gates, layer_kind.gates)
    inputs[layer_kind.weight] = builder.emit_te(
        lambda w: pack_gates(w, layer_kind.gates, threads.units),
        inputs[layer_kind.weight],
        primfunc_name_hint="pack_gates",
        primfunc_attrs={"op_pattern": OP_PATTERN.opaque},
    )
    emitted = builder.emit_te(
        lambda *tensors: extern_steps(layer_kind.kind, tensors, threads, layer_kind.writer),
        *inputs,
        primfunc_name_hint=layer_kind.kind.name,
        primfunc_attrs={"op_pattern": OP_PATTERN.opaque, SCHEDULED: True},
    )
    states = [emitted]
    if len(after) > 1:
        states = [builder.emit(relax.TupleGetItem(emitted, n)) for n in range(len(after))]
    results = [builder.emit_te(_last_step, each) for each in states]
    whole = [builder.emit_te(topi.flip, each, 0) if op.reverse else each for each in states]
    stacked = dict(zip(after, whole, strict=True))
    return [*results, *[stacked.get(n) for n in op.body.outputs[op.states :]]]


def _last_step(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape[1:], lambda *at: x(x.shape[0] - 1, *at), name="last_step")
