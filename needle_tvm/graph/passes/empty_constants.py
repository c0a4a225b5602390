"""Replaces constants without elements, which TVM 0.27 writes into a library and cannot read back.

Before: any expression of a Relax function may be a constant with an extent of 0.

After: each such constant is the result of a kernel that writes nothing. This pass runs after all
constant folding.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import IRModule, Target, expr_functor
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.tir.functions import nothing, static_shape


def empty_constants(module: IRModule, target: Target) -> IRModule:
    """Replace every empty constant in every Relax function."""
    return rewrite(module, target, _Replacer)


@expr_functor.mutator
class _Replacer(Rewriter):
    def visit_generic_const_(self, constant: Any) -> Any:
        shape = static_shape(constant)
        if shape is None or 0 not in shape:
            return constant
        dtype = str(constant.ty.dtype)
        return self.builder_.emit_te(nothing, shape, dtype, primfunc_name_hint="nothing")
