"""Lets elementwise ops be fused into a long sum of their results.

Before: `y = call_tir(f, x)`, where
- `f` sums elements in a wider dtype: some blocks convert the elements, one block sums them, and
  some blocks convert the sum,
- only this call reads `x`, and `x` is the result of a kernel of the pattern "injective" or below.

After: `y = call_tir(g, x)`, where `g` is `f` with the pattern "reduction". TVM classifies a
function of such blocks as a matmul with an epilogue. `FuseOps` does not fuse earlier operators into
a matmul, so the squares that a norm sums, for example, would be written to memory and read again.
With the new pattern, operators after `y` are no longer fused into its kernel. This costs little,
because a sum is smaller than its operand.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import OP_PATTERN, IRModule, PrimFunc, Target, expr_functor, relax, tirx
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.tir.functions import NODES, nodes_in

_PATTERN = "op_pattern"


def fuse_into_sums(module: IRModule, target: Target) -> IRModule:
    """Rewrite every call that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Rewriter)


@expr_functor.mutator
class _Rewriter(Rewriter):
    def __init__(self, module: IRModule, function: relax.Function, target: Target) -> None:
        super().__init__(module, function, target)
        self._sums: dict[Any, Any] = {}  # variable of `f` -> variable of `g`

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if self._pattern(call) != OP_PATTERN.out_fusable or len(call.args[1].fields) != 1:
            return call
        pattern = self._pattern(self.only_use(call.args[1].fields[0]))
        if pattern is None or pattern > OP_PATTERN.injective:
            return call
        name = call.args[0]
        if name not in self._sums:
            function = self.module[name]
            if not _is_long_sum(function):
                return call
            function = function.with_attr(_PATTERN, OP_PATTERN.reduction)
            self._sums[name] = self.builder_.add_func(function, name.name_hint)
        return relax.call_tir(self._sums[name], call.args[1], out_ty=call.ty)

    def _pattern(self, call: Any) -> int | None:
        """Return the pattern of the kernel that `call` calls, or None."""
        if not is_op(call, "relax.call_tir"):
            return None
        if call.args[0] in self._sums.values():
            return OP_PATTERN.reduction
        pattern = (self.module[call.args[0]].attrs or {}).get(_PATTERN)
        return None if pattern is None else int(pattern)


def _is_long_sum(function: PrimFunc) -> bool:
    blocks = [block for block in nodes_in(function, NODES.sblock) if block.iter_vars]
    sums = [
        block
        for block in blocks
        if any(axis.iter_type == tirx.IterVar.CommReduce for axis in block.iter_vars)
    ]
    if len(sums) != 1 or not isinstance(sums[0].body, NODES.store):
        return False
    # A sum reads the sum so far and one element; a product would read two tensors.
    loads = nodes_in(sums[0].body.value, NODES.load)
    calls = [len(nodes_in(block, NODES.load)) > 1 for block in blocks if block is not sums[0]]
    return len(loads) == 2 and not any(calls)
