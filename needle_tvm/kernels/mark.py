"""Which functions of a module have their schedule already, and giving it to those that do not."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from needle_tvm._tvm.names import SCHEDULE_ERROR, IRModule, PrimFunc
from needle_tvm.errors import ScheduleWarning
from needle_tvm.faults import blamed_on

SCHEDULED = "tirx.is_scheduled"  # TVM's attribute of functions


def schedule_each(
    module: IRModule, schedule: Callable[[PrimFunc], PrimFunc], or_as_it_is: bool = False
) -> IRModule:
    """The module with every PrimFunc that has no schedule yet replaced by its own.

    A function whose schedule TVM refuses runs `or_as_it_is`, with a ScheduleWarning: right and slow
    is better than not at all. The campaign and the tests take that for a failure.
    """
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc) and not is_scheduled(function):
            with blamed_on(f"the schedule of {name.name_hint}"):
                try:
                    scheduled = schedule(function)
                except SCHEDULE_ERROR as error:
                    if not or_as_it_is:
                        raise
                    said = str(error).strip().partition("\n")[0]
                    warnings.warn(
                        f"{name.name_hint} is slow, since its schedule failed ({said})",
                        ScheduleWarning,
                        stacklevel=2,
                    )
                    scheduled = mark_scheduled(function, function)
                module.update_func(name, scheduled)
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
