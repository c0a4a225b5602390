"""Marks functions that have a schedule, and schedules all others."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from needle_tvm._tvm.names import INTERNAL_ERROR, SCHEDULE_ERROR, IRModule, PrimFunc
from needle_tvm.errors import ScheduleWarning
from needle_tvm.faults import blamed_on

SCHEDULED = "tirx.is_scheduled"  # TVM's function attribute


def schedule_each(
    module: IRModule, schedule: Callable[[PrimFunc], PrimFunc], or_as_it_is: bool = False
) -> IRModule:
    """Replace every PrimFunc of a module that has no schedule yet by `schedule(function)`.

    With `or_as_it_is`, a function whose schedule TVM rejects stays unscheduled, with a
    ScheduleWarning: a slow and correct result is better than none. The campaign and the tests treat
    the warning as a failure.
    """
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc) and not is_scheduled(function):
            with blamed_on(f"the schedule of {name.name_hint}"):
                try:
                    scheduled = schedule(function)
                except (SCHEDULE_ERROR, INTERNAL_ERROR) as error:
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
    """Return `scheduled` with the attributes of `original`, marked so that no rule touches it.

    A function that was scheduled in a module of its own has the name "main". The name is dropped,
    since the function's module may have another "main".
    """
    if "global_symbol" not in (original.attrs or {}):
        scheduled = scheduled.without_attr("global_symbol")
    return scheduled.with_attrs({**dict(original.attrs or {}), SCHEDULED: True})


def is_scheduled(function: PrimFunc) -> bool:
    """Return whether a function is marked as scheduled."""
    return SCHEDULED in (function.attrs or {})
