"""Packs the weights of recurrences and replaces them with a kernel of all their steps.

Before: `lstm_sequence(projected, h, c, w)`, `gru_sequence(projected, h, w, bias)`,
`gru_reset_first(projected, h, w)` or `rnn_sequence(projected, h, w)`, kernels whose block the ops
annotated, with static shapes, all of them float32 or float64. On a CPU, steps and batch may be
symbolic.

After: `lstm_steps(projected, h, c, pack_gates(w))`, `gru_steps(projected, h, pack_gates(w), bias)`
and the like, the kernels of `recurrence.cpu`, `gru_cpu`, `gru_reset_cpu` and `rnn_cpu`, or on a GPU
those of the files for GPUs beside them. They write the sums of the gates only if they are still
read, so dead code must be gone before this pass. `pack_gates` is opaque, so that nothing is fused
into it. If `w` depends on parameters alone, `LiftTransformParams` moves `pack_gates` out of `main`;
otherwise it runs once for all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from needle.ops.gru_reset_first import GRU_RESET_STEPS
from needle.ops.gru_sequence import GRU_STEPS
from needle.ops.recurrent import LSTM_STEPS
from needle.ops.rnn_sequence import RNN_STEPS
from needle_tvm._tvm.names import OP_PATTERN, IRModule, Target, expr_functor, relax, te
from needle_tvm.graph.dependence import bindings_of, is_op, readers_of
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.kernels.mark import SCHEDULED
from needle_tvm.kernels.recurrence import gpu as gpu_recurrence
from needle_tvm.kernels.recurrence import gru_gpu, gru_reset_gpu, rnn_gpu
from needle_tvm.kernels.recurrence.cpu import (
    GATES,
    lstm_steps,
    pack_gates,
    steps_tile,
    steps_tiles,
)
from needle_tvm.kernels.recurrence.gru_cpu import GRU_GATES, gru_steps
from needle_tvm.kernels.recurrence.gru_reset_cpu import RESET_GATES, gru_reset_steps
from needle_tvm.kernels.recurrence.rnn_cpu import rnn_steps
from needle_tvm.tir.extents import Size, is_static, shape_of
from needle_tvm.tir.functions import NODES, nodes_in

_DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class _Kind:
    """A kind of recurrence: the annotation of its block, how many operands it has and which of them
    is its weight, into which groups of gates that is packed, which of its results the sums are
    (None if it has one result, which is none), and the kernels of its steps."""

    name: str
    mark: str
    operands: int
    weight: int
    packed: tuple[range, ...]
    sums: int | None
    on_cpu: Callable[..., list[te.Tensor]]
    on_gpu: Callable[..., list[te.Tensor]]

    @property
    def gates(self) -> int:
        """All gates of a unit."""
        return sum(map(len, self.packed))

    @property
    def passes_on(self) -> bool:
        """Whether its kernel has a last result that only the kernel itself reads: a step of several
        products."""
        return len(self.packed) > 1


def _rnn(nonlinearity: str, mark: str) -> _Kind:
    on_cpu, on_gpu = (partial(f, nonlinearity=nonlinearity) for f in (rnn_steps, rnn_gpu.rnn_steps))
    return _Kind(f"rnn_{nonlinearity}_steps", mark, 3, 2, (range(1),), None, on_cpu, on_gpu)


_RESET = range(RESET_GATES), range(RESET_GATES, RESET_GATES + 1)
_LSTM_GATES, _GRU_GATES = (range(GATES),), (range(GRU_GATES),)
_KINDS = (
    _Kind("lstm_steps", LSTM_STEPS, 4, 3, _LSTM_GATES, 2, lstm_steps, gpu_recurrence.lstm_steps),
    _Kind("gru_steps", GRU_STEPS, 4, 2, _GRU_GATES, 1, gru_steps, gru_gpu.gru_steps),
    _Kind(
        *("gru_reset_steps", GRU_RESET_STEPS, 3, 2, _RESET, 1),
        *(gru_reset_steps, gru_reset_gpu.gru_reset_steps),
    ),
    *(_rnn(name, mark) for name, mark in RNN_STEPS.items()),
)


def pack_recurrence(module: IRModule, target: Target) -> IRModule:
    """Rewrite every recurrence that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Packer)


@expr_functor.mutator
class _Packer(Rewriter):
    def __init__(self, module: IRModule, function: relax.Function, target: Target) -> None:
        super().__init__(module, function, target)
        self._module = module
        self._bound = bindings_of(function)
        self._readers = readers_of(function)

    def visit_call_(self, call: Any) -> Any:
        original = call
        call = self.visit_expr_post_order(call)
        if not is_op(call, "relax.call_tir"):
            return call
        kind = _kind_of(self._module[call.args[0]])
        if kind is None:
            return call
        operands = list(call.args[1])[: kind.operands]  # sizes may follow
        shape, dtype = shape_of(operands[0]), str(operands[0].ty.dtype)
        if shape is None or dtype not in _DTYPES:
            return call
        steps, batch, width = shape
        if not is_static([width]) or (self.on_gpu and not is_static([steps, batch])):
            return call
        with_sums = original in self._reads_sums(kind)
        units, steps, marks = self._kernel(kind, batch, width // kind.gates, dtype, with_sums)
        weight = operands[kind.weight]
        operands[kind.weight : kind.weight + 1] = [
            self.builder_.emit_te(
                lambda weight, gates=gates: pack_gates(weight, units, gates),
                weight,
                primfunc_name_hint="pack_gates",
                primfunc_attrs={"op_pattern": OP_PATTERN.opaque},
            )
            for gates in kind.packed
        ]
        made = self.builder_.call_te(
            lambda *tensors: steps(tensors),
            *operands,
            primfunc_name_hint=kind.name,
            primfunc_attrs={"op_pattern": OP_PATTERN.opaque, **marks},
        )
        return self._as_results(kind, made, with_sums)

    def _as_results(self, kind: _Kind, made: Any, with_sums: bool) -> Any:
        """What the kernel makes, as its readers take it: a tensor, or a tuple whose last result is
        missing if it is not read."""
        if kind.sums is None:
            return made
        results = kind.sums + with_sums
        if results > 1 and not kind.passes_on:
            return made
        var = self.builder_.emit(made)
        if not kind.passes_on:
            return relax.Tuple([var])
        parts = (relax.TupleGetItem(var, index) for index in range(results))
        return relax.Tuple([self.builder_.emit(part) for part in parts])

    def _kernel(
        self, kind: _Kind, batch: Size, hidden: int, dtype: str, with_sums: bool
    ) -> tuple[int, Callable[[Sequence[te.Tensor]], list[te.Tensor]], dict[str, Any]]:
        """The units per panel, a function that computes the steps, and the kernel's attributes."""
        gates = max(map(len, kind.packed))
        if self.on_gpu:
            threads = gpu_recurrence.steps_threads(batch, hidden, gates)
            steps = partial(kind.on_gpu, threads=threads, with_sums=with_sums)
            return threads.units, steps, {SCHEDULED: True}
        if isinstance(batch, int):
            tiles = [steps_tile(batch, hidden, dtype, self.target, gates)]
        else:
            bounds = self.least(batch), self.most(batch)
            tiles = steps_tiles(*bounds, hidden, dtype, self.target, gates)
        return tiles[0].units, partial(kind.on_cpu, tiles=tiles, with_sums=with_sums), {}

    def _reads_sums(self, kind: _Kind) -> set[Any]:
        """Calls whose sums are read: their results are read whole, or at the sums' index."""
        if kind.sums is None:
            return set()

        def reads(reader: Any) -> bool:
            return not isinstance(reader, relax.TupleGetItem) or reader.index == kind.sums

        return {self._bound[var] for var in self._bound if any(map(reads, self._readers[var]))}


def _kind_of(function: Any) -> _Kind | None:
    """The kind of recurrence that a kernel is; None for another kernel."""
    blocks = nodes_in(function, NODES.sblock)
    found = (kind for kind in _KINDS if any(kind.mark in block.annotations for block in blocks))
    return next(found, None)
