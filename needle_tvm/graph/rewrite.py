"""Runs a mutator over every Relax function of a module, and defines a base class of mutators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from needle.backend_ndarray.dtypes import is_half
from needle_tvm._tvm.names import (
    IRModule,
    Target,
    expr_functor,
    relax,
    structural_equal,
    transform,
    tvm,
)
from needle_tvm.graph.dependence import Origins, is_op, parameters_of, readers_of
from needle_tvm.target.info import target_info
from needle_tvm.tir.extents import UNBOUNDED, Bounds, Size, bounds_of, interval


def rewrite(
    module: IRModule,
    target: Target,
    mutator: Callable[[IRModule, relax.Function, Target], Any],
    *,
    with_parameters: bool = False,
) -> IRModule:
    """Visit each Relax function with a mutator created for it; return the new module.

    `with_parameters` skips functions that have no attribute `num_input`, which says which of their
    arguments are parameters.
    """
    for name, function in list(module.functions_items()):
        if not isinstance(function, relax.Function):
            continue
        if with_parameters and "num_input" not in (function.attrs or {}):
            continue
        visitor = mutator(module, function, target)
        visitor.builder_.update_func(name, visitor.visit_expr(function))
        module = visitor.builder_.get()
    return module


def rebind(
    module: IRModule, change: Callable[[relax.Function, Sequence[Any]], Sequence[Any]]
) -> IRModule:
    """Replace the bindings of each dataflow block by `change(function, bindings)`, where `function`
    is the Relax function that contains the block."""
    for name, function in list(module.functions_items()):
        if not isinstance(function, relax.Function):
            continue
        blocks = [
            relax.DataflowBlock(change(function, block.bindings))
            if isinstance(block, relax.DataflowBlock)
            else block
            for block in function.body.blocks
        ]
        body = relax.SeqExpr(blocks, function.body.body)
        module.update_func(
            name,
            relax.Function(
                function.params, body, function.ret_ty, function.is_pure, function.attrs
            ),
        )
    # The first visit to an expression sets its type in place, and a lookup with the earlier hash
    # then fails.
    return transform.Normalize()(module)


def _of_the_same_type(visit: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Wrap a `visit_call_` to check that a rewritten call keeps its type; with another type, a
    reader could misread an axis number without an error. The last of several results may be
    dropped, since reading it raises an error."""

    @wraps(visit)
    def visit_call_(self: Any, call: Any) -> Any:
        found = visit(self, call)
        if not found.same_as(call):
            if type(found.ty) is tvm.ir.Type:  # it has no type yet
                found = self.builder_.normalize(found)
            types, had = (getattr(each.ty, "fields", [each.ty]) for each in (found, call))
            if not all(map(structural_equal, types, had)) or len(types) > len(had):
                raise ValueError(f"{call.op} of type {call.ty} would change its type to {found.ty}")
        return found

    return visit_call_


class Rewriter(expr_functor.PyExprMutator):
    """The base class of mutators of one function; decorate derived classes with `mutator`."""

    def __init__(self, module: IRModule, function: relax.Function, target: Target) -> None:
        super().__init__(module)
        self.module = module
        self.target = target
        self.on_gpu = target_info(target).is_gpu
        self._function = function
        # Most passes need only some of these, and a network has thousands of parameters. Not
        # functools.cached_property: before Python 3.12 it has a lock, which forks would copy.
        self._readers: Mapping[Any, list[Any]] | None = None
        self._origins: Origins | None = None
        self._bounds: Bounds | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "visit_call_" in vars(cls):
            cls.visit_call_ = _of_the_same_type(cls.visit_call_)

    @property
    def readers(self) -> Mapping[Any, list[Any]]:
        """The readers of each variable of the original function. Bindings that the mutator adds
        do not count."""
        if self._readers is None:
            self._readers = readers_of(self._function)
        return self._readers

    def is_parameter_work(self, expr: Any) -> bool:
        """Return whether `expr` depends on parameters and constants alone, and on at least one
        parameter."""
        return self._origin_finder().is_parameter_work(expr)

    def is_known(self, expr: Any) -> bool:
        """Return whether `expr` depends on parameters and constants alone."""
        return self._origin_finder().is_known(expr)

    def _origin_finder(self) -> Origins:
        if self._origins is None:
            self._origins = Origins(parameters_of(self._function), self.lookup_binding)
        return self._origins

    def _interval(self, extent: Size) -> tuple[int, int | None]:
        """Return the least and the greatest value of an extent."""
        if isinstance(extent, int):
            return extent, extent
        if self._bounds is None:
            self._bounds = bounds_of(self._function)
        return interval(extent.expr, self._bounds)

    def least(self, extent: Size) -> int:
        """Return the least value of an extent."""
        return self._interval(extent)[0]

    def most(self, extent: Size) -> int:
        """Return the greatest value of an extent; UNBOUNDED if it has no upper bound."""
        high = self._interval(extent)[1]
        return UNBOUNDED if high is None else high

    def middle(self, extent: Size) -> int:
        """Return an extent, or the geometric mean of its bounds if it is symbolic."""
        if isinstance(extent, int):
            return extent
        return round(math.sqrt(max(1, self.least(extent)) * self.most(extent)))

    def large(self, extent: Size, size: int) -> int:
        """Return an extent; for a symbolic one, `size` or its upper bound, whichever is less."""
        return extent if isinstance(extent, int) else min(self.most(extent), size)

    def only_use(self, expr: Any) -> Any:
        """Return the value of the variable `expr` if it is read exactly once, else None."""
        if not isinstance(expr, relax.Var) or len(self.readers[expr]) != 1:
            return None
        return self.lookup_binding(expr)

    def half_of(self, operand: Any) -> Any:
        """Return the half-precision tensor that `operand` casts to float32; None if it is not such
        a cast."""
        value = self.lookup_binding(operand) if isinstance(operand, relax.Var) else operand
        if not is_op(value, "relax.astype") or not is_half(str(value.args[0].ty.dtype)):
            return None
        return value.args[0]
