"""Which functions of a module have their schedule already, and giving it to those that do not."""

from __future__ import annotations

from collections.abc import Callable

from needle_tvm._tvm import IRModule, PrimFunc
from needle_tvm.faults import blamed_on

SCHEDULED = "tirx.is_scheduled"  # TVM's attribute of functions


def schedule_each(module: IRModule, schedule: Callable[[PrimFunc], PrimFunc]) -> IRModule:
    """The module with every PrimFunc that has no schedule yet replaced by its own."""
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc) and not is_scheduled(function):
            with blamed_on(f"the schedule of {name.name_hint}"):
                module.update_func(name, schedule(function))
    return module


def mark_scheduled(scheduled: PrimFunc, original: PrimFunc) -> PrimFunc:
    """`scheduled` with the attributes of `original`, marked so that no later rule touches it.

    A function that was scheduled alone is called "main", and must not be in a module that has one.
    """
    if "global_symbol" not in (original.attrs or {}):
        scheduled = scheduled.without_attr("global_symbol")
    return scheduled.with_attrs({**dict(original.attrs or {}), SCHEDULED: True})


def is_scheduled(function: PrimFunc) -> bool:
    """Whether a function has its schedule already."""
    return SCHEDULED in (function.attrs or {})
