"""Handles symbolic extents: sizes that are known only during a call.

A size of a model's inputs may be a TVM variable; the extents of tensors are then expressions in
such variables. The attributes `tir_var_lower_bound` and `tir_var_upper_bound` of `main`, which TVM
reads as well, give the bounds of its variables by name. A PrimFunc has its own variables.
`note_bounds` derives their bounds from the calls to the function and keeps them in its attribute
BOUNDS, where schedule rules look them up.

Graph passes see an extent as an int or an `Extent`, which supports the int arithmetic that passes
use. A rule decides by an extent's `least` and `most` values; the code that it writes is correct for
every size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, relax, tirx, tvm
from needle_tvm.tir import nests
from needle_tvm.tir.functions import (
    KERNEL_CALLS,
    calls_in,
    nodes_in,
    simplified,
    variables_of,
)

BOUNDS = "needle.bounds"  # function attribute: [least, most] for each of `symbols_of`

LOWER, UPPER = "tir_var_lower_bound", "tir_var_upper_bound"  # TVM's attributes of Relax functions

# The size that decisions assume for an extent without an upper bound.
UNBOUNDED = 1 << 20


class Extent:
    """A symbolic extent of a Relax tensor. It equals another extent if TVM can prove this, and it
    never equals a number."""

    def __init__(self, expr: Any) -> None:
        self.expr = expr

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Extent):
            return False
        return bool(tvm.sym.Analyzer().can_prove_equal(self.expr, other.expr))

    def __hash__(self) -> int:
        return hash(frozenset(variables_of(self.expr)))

    def __mul__(self, other: Any) -> Any:
        return extent_of(self.expr * expr_of(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return extent_of(tirx.floordiv(self.expr, expr_of(other)))

    def __rfloordiv__(self, other: int) -> Any:
        return extent_of(tirx.floordiv(expr_of(other), self.expr))

    def __repr__(self) -> str:
        return str(self.expr)


Size = Any  # an int or an Extent; code that needs ints checks `is_static` first
Bounds = Mapping[Any, tuple[int, int | None]]  # variable -> least, most (None: no upper bound)


def extent_of(expr: Any) -> Size:
    """Return an extent as an int if it is a number, else as an Extent."""
    if not isinstance(expr, int):
        expr = expr if isinstance(expr, tirx.IntImm) else simplified(expr)
    return int(expr) if isinstance(expr, int | tirx.IntImm) else Extent(expr)


def expr_of(extent: Any) -> Any:
    """Return an extent in TVM's form: an int64 number or an expression."""
    if isinstance(extent, Extent):
        return extent.expr
    return tirx.const(extent, "int64") if isinstance(extent, int) else extent


def exprs_of(shape: Iterable[Any]) -> list[Any]:
    """Return a shape in TVM's form."""
    return [each.expr if isinstance(each, Extent) else each for each in shape]


def shape_of(expr: Any) -> tuple[Size, ...] | None:
    """Return the shape of a Relax tensor expression; None if it has no known rank."""
    extents = getattr(getattr(expr.ty, "shape", None), "values", None)
    return None if extents is None else tuple(map(extent_of, extents))


def own_variables(shape: Sequence[Any]) -> list[Any]:
    """Return a shape for a new PrimFunc's parameter. A symbolic extent becomes a new variable,
    whose value the function reads from the argument's shape."""
    found: dict[Size, Any] = {}
    result: list[Any] = []
    for number, extent in enumerate(map(extent_of, exprs_of(shape))):
        if isinstance(extent, Extent):
            result.append(found.setdefault(extent, tirx.Var(f"n{number}", "int64")))
        else:
            result.append(extent)
    return result


def is_static(extents: Sequence[Any]) -> bool:
    """Return whether all extents are numbers."""
    return all(isinstance(extent, int | tirx.IntImm) for extent in extents)


def substituted(expr: Any, values: Mapping[Any, Any]) -> Any:
    """Substitute ints or expressions for variables in an extent or a condition; return a number
    unchanged."""
    if not values or isinstance(expr, int | tirx.IntImm):
        return expr
    given = {v: tirx.const(n, "int64") if isinstance(n, int) else n for v, n in values.items()}
    return simplified(nests.substitute(expr, given))


def symbols_of(function: PrimFunc) -> list[Any]:
    """Return the variables in the shapes of a PrimFunc's parameters, and its scalar parameters."""
    found: dict[Any, None] = {}
    for parameter in function.params:
        if tirx.is_buffer_var(parameter):
            for extent in parameter.shape:
                found |= dict.fromkeys(_in_order(extent))
        else:
            found[parameter] = None
    return list(found)


def _in_order(expr: Any) -> list[Any]:
    return [] if isinstance(expr, int | tirx.IntImm) else nodes_in(expr, tvm.ir.Var)


def bounds_of(function: Any) -> dict[Any, tuple[int, int | None]]:
    """Return the least and the largest value of each symbolic variable of a function; the latter is
    None if there is no upper bound."""
    if isinstance(function, PrimFunc):
        symbols = symbols_of(function)
        noted = (function.attrs or {}).get(BOUNDS)
        if noted is None:
            return dict.fromkeys(symbols, (0, None))
        pairs = [(int(low), None if int(high) < 0 else int(high)) for low, high in noted]
        return dict(zip(symbols, pairs, strict=True))
    attributes = function.attrs or {}
    lower, upper = (
        {str(k): int(v) for k, v in attributes.get(a, {}).items()} for a in (LOWER, UPPER)
    )
    return {
        var: (lower.get(str(var.name), 0), upper.get(str(var.name)))
        for var in _relax_symbols(function)
    }


def _relax_symbols(function: relax.Function) -> list[Any]:
    found: dict[Any, None] = {}
    for parameter in function.params:
        for extent in getattr(getattr(parameter.ty, "shape", None), "values", None) or ():
            found |= dict.fromkeys(_in_order(extent))
    return list(found)


def analyzer_of(bounds: Bounds) -> Any:
    """Return a TVM analyzer that knows these bounds."""
    analyzer = tvm.sym.Analyzer()
    for variable, (low, high) in bounds.items():
        dtype = str(variable.ty)
        top = tirx.const(high if high is not None else 1 << 40, dtype)
        analyzer.bind(variable, tvm.ir.Range.from_min_extent(tirx.const(low, dtype), top - low + 1))
    return analyzer


def interval(expr: Any, bounds: Bounds) -> tuple[int, int | None]:
    """Return the least and greatest value of an expression. The greatest is None if a variable in
    the expression has no upper bound."""
    if isinstance(expr, int | tirx.IntImm):
        return int(expr), int(expr)
    found = analyzer_of(bounds).const_int_bound(expr)
    unbounded = any(bounds.get(var, (0, None))[1] is None for var in variables_of(expr))
    return max(0, int(found.min_value)), None if unbounded else int(found.max_value)


def least(function: PrimFunc, extent: Any) -> int:
    """Return the least possible value of an extent in a PrimFunc."""
    if isinstance(extent, int | tirx.IntImm):
        return int(extent)
    return interval(extent, bounds_of(function))[0]


def most(function: PrimFunc, extent: Any) -> int:
    """Return the largest possible value of an extent in a PrimFunc; UNBOUNDED if there is none."""
    if isinstance(extent, int | tirx.IntImm):
        return int(extent)
    high = interval(extent, bounds_of(function))[1]
    return UNBOUNDED if high is None else high


def is_multiple(extent: Any, factor: int) -> bool:
    """Return whether an extent is known to be a multiple of `factor`."""
    if isinstance(extent, int | tirx.IntImm):
        return int(extent) % factor == 0
    return bool(tvm.sym.Analyzer().can_prove_equal(tirx.floormod(extent, factor), 0))


def unbound(inputs: Sequence[Sequence[Any]], result: Sequence[Any]) -> list[Any]:
    """Return the variables in the shapes of a function's inputs and result that are not, by
    themselves, an extent of any input. The function needs their values as arguments."""
    bound = {each for shape in inputs for each in shape if isinstance(each, tvm.ir.Var)}
    used = (_in_order(extent) for shape in (*inputs, result) for extent in shape)
    return [each for each in dict.fromkeys(itertools.chain(*used)) if each not in bound]


def tiles_in(extent: Size, tile: int) -> tuple[Size, bool]:
    """Return the number of tiles that cover an axis, and whether the last tile is known to be
    full."""
    if isinstance(extent, int):
        return -(-extent // tile), extent % tile == 0
    # TVM's schedules recognise that the tiles cover the axis only in these forms: the first for
    # extents such as n + 2, the second for n.
    count = tirx.floordiv(extent.expr + (tile - 1), tile)
    if isinstance(extent.expr, tvm.ir.Var):
        count = tirx.floordiv(extent.expr - 1, tile) + 1
    return Extent(count), is_multiple(extent.expr, tile)


def note_bounds(module: IRModule) -> IRModule:
    """Add the attribute BOUNDS to each PrimFunc with symbolic extents, from the calls to it in the
    module's Relax functions."""
    noted: dict[str, list[tuple[int, int | None]]] = {}
    for function in list(module.functions.values()):
        if not isinstance(function, relax.Function):
            continue
        bounds = bounds_of(function)
        if not bounds:
            continue
        for call in calls_in(function):
            called = module[call.args[0]]
            if not isinstance(called, PrimFunc) or not symbols_of(called):
                continue
            values = arguments_for(called, call)
            name = call.args[0].name_hint
            found = [
                interval(values[var], bounds) if var in values else (0, None) for var in values
            ]
            before = noted.get(name, found)
            noted[name] = [_around(one, other) for one, other in zip(before, found, strict=True)]
    for variable, function in list(module.functions_items()):
        if variable.name_hint in noted:
            pairs = [[low, -1 if high is None else high] for low, high in noted[variable.name_hint]]
            module.update_func(variable, function.with_attr(BOUNDS, pairs))
    return module


def _around(one: tuple[int, int | None], other: tuple[int, int | None]) -> tuple[int, int | None]:
    high = None if one[1] is None or other[1] is None else max(one[1], other[1])
    return min(one[0], other[0]), high


def new_results(call: Any) -> list[Any]:
    """Return the types of a kernel call's results, except those written to arguments' memory."""
    types = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]
    if call.op == KERNEL_CALLS[0]:
        return types
    places = map(int, call.attrs.inplace_indices)
    return [each for each, place in zip(types, places, strict=True) if place < 0]


def arguments_for(function: PrimFunc, call: Any) -> dict[Any, Any]:
    """Return the value of each of `symbols_of(function)` in a call to that kernel, as an expression
    in the caller's variables.

    Each variable must be an extent of some parameter, or a parameter itself; else ValueError is
    raised.
    """
    given = [*call.args[1].fields, *new_results(call)]
    values: dict[Any, Any] = dict.fromkeys(symbols_of(function))
    for parameter, value in zip(function.params, given, strict=True):
        if not tirx.is_buffer_var(parameter):
            values[parameter] = value
            continue
        shape = getattr(value, "ty", value).shape
        for extent, size in zip(parameter.shape, shape.values, strict=True):
            if isinstance(extent, tvm.ir.Var) and values[extent] is None:
                values[extent] = size
    missing = [var for var, value in values.items() if value is None]
    if missing:
        raise ValueError(f"a kernel call does not give its variables {missing} any value")
    return values
