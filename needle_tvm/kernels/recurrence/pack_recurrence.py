"""Packs the weights of LSTM recurrences and replaces them with a kernel of all their steps.

Before: `lstm_sequence(projected, h, c, w)`, a kernel whose block op LstmSequence annotated, with
static shapes, all of them float32 or float64. On a CPU, steps and batch may be symbolic.

After: `lstm_steps(projected, h, c, pack_gates(w))`, the kernel of `recurrence.cpu`, or on a GPU
those of `recurrence.gpu`. It writes the sums of the gates only if they are still read, so dead code
must be gone before this pass. `pack_gates` is opaque, so that nothing is fused into it. If `w`
depends on parameters alone, `LiftTransformParams` moves `pack_gates` out of `main`; otherwise it
runs once for all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from needle.ops.recurrent import LSTM_STEPS
from needle_tvm._tvm.names import OP_PATTERN, IRModule, Target, expr_functor, relax, te
from needle_tvm.graph.dependence import bindings_of, is_op, readers_of
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.kernels.mark import SCHEDULED
from needle_tvm.kernels.recurrence import gpu as gpu_recurrence
from needle_tvm.kernels.recurrence.cpu import GATES, lstm_steps, lstm_tile, pack_gates
from needle_tvm.tir.extents import is_static, shape_of
from needle_tvm.tir.functions import NODES, nodes_in

_DTYPES = ("float32", "float64")
_FULL_TILES = 64  # a batch of which the tiles of a symbolic one are chosen, at most
_SUMS = 2  # index of the sums among the op's results


def pack_recurrence(module: IRModule, target: Target) -> IRModule:
    """Rewrite every recurrence that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Packer)


@expr_functor.mutator
class _Packer(Rewriter):
    def __init__(self, module: IRModule, function: relax.Function, target: Target) -> None:
        super().__init__(module, function, target)
        self._module = module
        self._reads_sums = _calls_whose_sums_are_read(function)

    def visit_call_(self, call: Any) -> Any:
        with_sums = call in self._reads_sums
        call = self.visit_expr_post_order(call)
        if not is_op(call, "relax.call_tir") or not self._is_lstm(self._module[call.args[0]]):
            return call
        projected, h, c, w, *_ = call.args[1]  # sizes may follow
        shape, dtype = shape_of(projected), str(projected.ty.dtype)
        if shape is None or dtype not in _DTYPES:
            return call
        steps, batch, sums = shape
        if not is_static([sums]) or (self.on_gpu and not is_static([steps, batch])):
            return call
        if not is_static([batch]):
            batch = min(self.most(batch), _FULL_TILES)
        units, steps, marks = self._kernel(batch, sums // GATES, dtype, with_sums)
        panels = self.builder_.emit_te(
            lambda weight: pack_gates(weight, units),
            w,
            primfunc_name_hint="pack_gates",
            primfunc_attrs={"op_pattern": OP_PATTERN.opaque},
        )
        return self.builder_.call_te(
            lambda *tensors: steps(tensors),
            *(projected, h, c, panels),
            primfunc_name_hint="lstm_steps",
            primfunc_attrs={"op_pattern": OP_PATTERN.opaque, **marks},
        )

    def _kernel(
        self, batch: int, hidden: int, dtype: str, with_sums: bool
    ) -> tuple[int, Callable[[Sequence[te.Tensor]], list[te.Tensor]], dict[str, Any]]:
        """The units per panel, a function that computes the steps, and the kernel's attributes."""
        if self.on_gpu:
            threads = gpu_recurrence.lstm_threads(batch, hidden)
            steps = partial(gpu_recurrence.lstm_steps, threads=threads, with_sums=with_sums)
            return threads.units, steps, {SCHEDULED: True}
        tile = lstm_tile(batch, hidden, dtype, self.target)
        return tile.units, partial(lstm_steps, tile=tile, with_sums=with_sums), {}

    def _is_lstm(self, function: Any) -> bool:
        return any(LSTM_STEPS in block.annotations for block in nodes_in(function, NODES.sblock))


def _calls_whose_sums_are_read(function: relax.Function) -> set[Any]:
    """Calls whose sums are read: their results are read whole, or at the sums' index."""
    bound = bindings_of(function)

    def reads_sums(reader: Any) -> bool:
        return not isinstance(reader, relax.TupleGetItem) or reader.index == _SUMS

    readers = readers_of(function)
    return {bound[var] for var in bound if any(map(reads_sums, readers[var]))}
