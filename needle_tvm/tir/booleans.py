"""Gives booleans NumPy's sums and products: a sum is `or`, and a product is `and`.

LLVM's code generator does not support arithmetic on booleans, but a user's op may add or multiply
its inputs and is checked in every dtype.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, tirx, tvm_ffi

_LOGICAL = ((tirx.Add, tirx.Or), (tirx.Mul, tirx.And), (tirx.Max, tirx.Or), (tirx.Min, tirx.And))


def logical_arithmetic(module: IRModule) -> IRModule:
    """Replace arithmetic on booleans with logical operations in a module's PrimFuncs."""
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc):
            body = function.body
            for kind, logical in _LOGICAL:
                body = tvm_ffi.structural_map(body, (kind, _changed(logical)))
            if not body.same_as(function.body):
                module.update_func(name, function.with_body(body))
    return module


def _changed(logical: Any) -> Any:
    def change(node: Any) -> Any:
        return logical(node.a, node.b) if str(node.ty).startswith("bool") else node

    return change
