"""Schedules for CPUs: a function gets the first rule that fits it, and `loops` where none does."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

from needle_tvm._tvm.names import IRModule, PrimFunc, Schedule, Target
from needle_tvm.kernels.conv.cpu_windows import windows
from needle_tvm.kernels.loops.cpu import loops
from needle_tvm.kernels.loops.whole_vectors import whole_vectors
from needle_tvm.kernels.mark import mark_scheduled, schedule_each
from needle_tvm.kernels.reduce.cpu_columns import columns
from needle_tvm.kernels.reduce.cpu_nests import Nests, rewritten
from needle_tvm.kernels.reduce.cpu_partial import partial_results
from needle_tvm.kernels.reduce.cpu_rows import keeps_few_partial_results
from needle_tvm.kernels.rule import CPU, rules

REDUCTIONS = (partial_results, windows, columns)  # the first that fits a reduction writes it anew


def names() -> tuple[str, ...]:
    """What may be left out: the rules, and what is done to functions that none of them fits."""
    others = (*REDUCTIONS, whole_vectors)
    return (*(each.name for each in rules(CPU)), *(each.__name__ for each in others))


def schedule(module: IRModule, target: Target, without: Collection[str] = ()) -> IRModule:
    """The module with every PrimFunc scheduled that is not marked as scheduled already.

    `without` names those of `names()` that are left out.
    """
    return schedule_each(
        module, lambda function: schedule_function(function, target, without), or_as_it_is=True
    )


def schedule_function(
    function: PrimFunc, target: Target, without: Collection[str] = ()
) -> PrimFunc:
    """One PrimFunc scheduled by the first rule that fits it, `without` those of `names()`."""
    for rule in rules(CPU):
        found = None if rule.name in without else rule.apply(function, target, None)
        if found is not None:
            return mark_scheduled(found.mod["main"], function)
    writes = [
        partial(write, target=target) for write in REDUCTIONS if write.__name__ not in without
    ]
    sch = _with_reductions(function, writes)
    loops(sch, target)
    scheduled = sch.mod["main"]
    if whole_vectors.__name__ not in without:
        scheduled = whole_vectors(scheduled)
    return mark_scheduled(scheduled, function)


def variants(function: PrimFunc, target: Target) -> Iterator[Schedule]:
    """Every way in which our rules schedule a function as a search can record it.

    The first of a rule is the one without a search. Where none fits, what `schedule_function` does
    besides `loops` is missing, since no trace of a schedule has it.
    """
    for rule in rules(CPU):
        found = rule.apply(function, target, None)
        if found is not None:
            yield found
            others = (rule.apply(function, target, knobs) for knobs in rule.knobs(function, target))
            yield from filter(None, others)
            return
    sch = Schedule(function)
    loops(sch, target)
    yield sch


def _with_reductions(function: PrimFunc, writes: list[partial[Nests | None]]) -> Schedule:
    """Its reductions written in vectors: of partial results only where these need not be kept for
    all rows."""
    changed = Schedule(rewritten(function, writes))
    if keeps_few_partial_results(changed):
        return changed
    return Schedule(rewritten(function, [w for w in writes if w.func is not partial_results]))
