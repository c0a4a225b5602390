"""Which expressions depend on a function's parameters alone: work to be done once, at load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from needle_tvm._tvm import relax


def parameters_of(function: relax.Function) -> set[Any]:
    """The arguments of a function that are parameters: those after its `num_input` inputs."""
    return set(function.params[int(function.attrs["num_input"]) :])


def is_parameter_work(expr: Any, parameters: set[Any], lookup: Callable[[Any], Any | None]) -> bool:
    """Whether `expr` depends on parameters and constants alone, and on one parameter at least.

    `lookup` gives what a variable is bound to, None for an argument. Walks without recursion: a
    chain of any length may stand behind a weight.
    """
    pending, seen, found = [expr], set(), False
    while pending:
        item = pending.pop()
        if item in parameters:
            found = True
        elif isinstance(item, relax.Var):
            if item in seen:
                continue
            seen.add(item)
            value = lookup(item)
            if value is None:
                return False  # an input
            pending.append(value)
        elif isinstance(item, relax.Call):
            pending.extend(item.args)
        elif isinstance(item, relax.Tuple):
            pending.extend(item.fields)
    return found
