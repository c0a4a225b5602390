"""Readers and dependences in a function, and its work on parameters alone, done at load time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeGuard

from needle_tvm._tvm.names import relax, tvm


def is_op(expr: Any, name: str) -> TypeGuard[relax.Call]:
    """Whether `expr` calls the Relax operator `name`."""
    return isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get(name)


def operands(expr: Any) -> Sequence[Any]:
    """The operands of an expression: a call's arguments, a tuple's fields."""
    if isinstance(expr, relax.Call):
        return expr.args
    if isinstance(expr, relax.Tuple):
        return expr.fields
    return [expr.tuple_value] if isinstance(expr, relax.TupleGetItem) else []


def bindings_of(function: relax.Function) -> dict[Any, Any]:
    """The value bound to each variable of a function, in order."""
    return {
        binding.var: binding.value for block in function.body.blocks for binding in block.bindings
    }


def readers_of(function: relax.Function) -> defaultdict[Any, list[Any]]:
    """The expressions that read each variable, once per read; the function's result counts."""
    readers: defaultdict[Any, list[Any]] = defaultdict(list)
    for value in [*bindings_of(function).values(), function.body.body]:
        pending = [value]
        while pending:
            item = pending.pop()
            if isinstance(item, relax.Var):
                readers[item].append(value)
            pending.extend(operands(item))
    return readers


def parameters_of(function: relax.Function) -> set[Any]:
    """The arguments of a function that are parameters: those after its `num_input` inputs.

    Empty if the function has no `num_input`.
    """
    if "num_input" not in (function.attrs or {}):
        return set()
    return set(function.params[int(function.attrs["num_input"]) :])


def input_work_of(function: relax.Function) -> set[Any]:
    """The inputs of a function, and the variables that depend on them."""
    found = set(function.params[: int(function.attrs["num_input"])])
    for block in function.body.blocks:
        for binding in block.bindings:
            if not found.isdisjoint(relax.analysis.free_vars(binding.value)):
                found.add(binding.var)
    return found


def is_parameter_work(expr: Any, parameters: set[Any], lookup: Callable[[Any], Any | None]) -> bool:
    """Whether `expr` depends on parameters and constants alone, and on at least one parameter.

    `lookup` returns the value that a variable is bound to, or None for an argument. The walk does
    not recurse: a chain of any length may lead to a weight.
    """
    found = False
    for argument in arguments_behind(expr, lookup):
        if argument not in parameters:
            return False
        found = True
    return found


def arguments_behind(expr: Any, lookup: Callable[[Any], Any | None]) -> Iterator[Any]:
    """Yield the function's arguments that `expr` depends on; none for a constant."""
    pending, seen = [expr], set()
    while pending:
        item = pending.pop()
        if not isinstance(item, relax.Var):
            pending.extend(operands(item))
        elif item not in seen:
            seen.add(item)
            value = lookup(item)
            if value is None:
                yield item
            else:
                pending.append(value)
