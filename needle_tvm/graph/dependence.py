"""Finds readers and dependences in a function, and the work on parameters, which is done only
once, at load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeGuard

from needle_tvm._tvm.names import relax, tvm


def is_op(expr: Any, name: str) -> TypeGuard[relax.Call]:
    """Return whether `expr` calls the Relax operator `name`."""
    return isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get(name)


def operands(expr: Any) -> Sequence[Any]:
    """Return the operands of an expression: a call's arguments or a tuple's fields."""
    if isinstance(expr, relax.Call):
        return expr.args
    if isinstance(expr, relax.Tuple):
        return expr.fields
    return [expr.tuple_value] if isinstance(expr, relax.TupleGetItem) else []


def bindings_of(function: relax.Function) -> dict[Any, Any]:
    """Return the value bound to each variable of a function, in order."""
    return {
        binding.var: binding.value for block in function.body.blocks for binding in block.bindings
    }


def readers_of(function: relax.Function) -> defaultdict[Any, list[Any]]:
    """Return the expressions that read each variable, once per read. The function's result counts
    as a reader."""
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
    """Return the arguments of a function that are parameters: all after its `num_input` inputs.

    Empty if the function has no `num_input`.
    """
    if "num_input" not in (function.attrs or {}):
        return set()
    return set(function.params[int(function.attrs["num_input"]) :])


def input_work_of(function: relax.Function) -> set[Any]:
    """Return the inputs of a function, and the variables that depend on them."""
    found = set(function.params[: int(function.attrs["num_input"])])
    for block in function.body.blocks:
        for binding in block.bindings:
            if not found.isdisjoint(relax.analysis.free_vars(binding.value)):
                found.add(binding.var)
    return found


class Origins:
    """Finds whether an expression depends on inputs, on parameters, or only on constants.

    `lookup` returns the value bound to a variable, or None for an argument of the function. Each
    variable is visited once, without recursion, so that chains may have any length.
    """

    def __init__(self, parameters: Collection[Any], lookup: Callable[[Any], Any | None]) -> None:
        self._parameters = parameters
        self._lookup = lookup
        self._known: dict[Any, tuple[bool, bool]] = {}  # depends on (inputs, parameters)

    def is_parameter_work(self, expr: Any) -> bool:
        """Return whether `expr` depends on parameters and constants alone, and on at least one
        parameter."""
        return self._of(expr) == (False, True)

    def is_known(self, expr: Any) -> bool:
        """Return whether `expr` depends on parameters and constants alone."""
        return not self._of(expr)[0]

    def _of(self, expr: Any) -> tuple[bool, bool]:
        wanted = self._read(expr)
        pending = list(wanted)
        while pending:
            variable = pending[-1]
            value = None if variable in self._known else self._lookup(variable)
            behind = [] if value is None else self._read(value)
            missing = [each for each in behind if each not in self._known]
            if missing:
                pending += missing
                continue
            if variable not in self._known:
                is_parameter = variable in self._parameters
                argument = (not is_parameter, is_parameter)
                self._known[variable] = argument if value is None else self._together(behind)
            pending.pop()
        return self._together(wanted)

    def _together(self, variables: Sequence[Any]) -> tuple[bool, bool]:
        known = [self._known[each] for each in variables]
        return any(inputs for inputs, _ in known), any(parameters for _, parameters in known)

    @staticmethod
    def _read(expr: Any) -> list[Any]:
        """Return the variables in an expression."""
        found, pending = [], [expr]
        while pending:
            item = pending.pop()
            if isinstance(item, relax.Var):
                found.append(item)
            else:
                pending.extend(operands(item))
        return found
