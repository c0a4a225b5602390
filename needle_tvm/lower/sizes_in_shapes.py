"""Moves size parameters of a fused group of operators into the group's shape parameter.

If an operator of a group reads a size that no tensor of the group has, FuseOps makes the size a
parameter of the group's function. If the group also takes a shape whose sizes occur in its tensors
only within expressions, FuseTIR maps a variable twice, and TVM 0.27 stops with an internal error.

Before: FuseOps has formed the groups.

After: no group takes both sizes and a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax, tvm


def sizes_in_shapes(module: IRModule, target: Target) -> IRModule:
    """Change every group that takes both sizes and a shape, and its calls."""
    functions = dict(module.functions_items())
    taken = {name: _sizes(function) for name, function in functions.items()}
    builder = relax.BlockBuilder(IRModule({n: f for n, f in functions.items() if not taken[n]}))
    changed = {}
    for name, places in taken.items():
        if places:
            function = functions[name]
            parameters = _together(function.params, places)
            options = (function.ret_ty, function.is_pure, function.attrs)
            made = relax.Function(parameters, function.body, *options)
            changed[name] = builder.add_func(made, name.name_hint), places
    if not changed:
        return module
    module = builder.get()
    for name, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            module.update_func(name, _Calls(changed).visit_expr(function))
    return module


def _sizes(function: Any) -> list[int]:
    """Return the positions of a group's size parameters if it also takes a shape, else []."""
    if not isinstance(function, relax.Function) or "Primitive" not in (function.attrs or {}):
        return []
    if not function.params or not isinstance(function.params[-1].ty, relax.ShapeType):
        return []
    return [i for i, each in enumerate(function.params) if isinstance(each.ty, tvm.ir.PrimType)]


def _together(parameters: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """Return the parameters, with the sizes at the positions `places` moved into the last
    parameter, a shape."""
    *others, shape = (each for i, each in enumerate(parameters) if i not in places)
    sizes = [*shape.ty.values, *(parameters[i] for i in places)]
    return [*others, relax.Var(shape.name, relax.ShapeType(sizes))]


@expr_functor.mutator
class _Calls(expr_functor.PyExprMutator):
    def __init__(self, changed: dict[Any, tuple[Any, list[int]]]) -> None:
        super().__init__()
        self._changed = changed

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op not in self._changed:
            return call
        name, places = self._changed[call.op]
        *others, shape = (each for i, each in enumerate(call.args) if i not in places)
        sizes = [*shape.values, *(call.args[i] for i in places)]
        return relax.Call(name, [*others, relax.ShapeExpr(sizes)], call.attrs)
