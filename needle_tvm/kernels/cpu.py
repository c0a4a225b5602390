"""Schedules functions for CPUs: by the first rule that fits, or else by `loops`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from itertools import islice

from needle_runtime.target.kind import CPU
from needle_tvm._tvm.names import IRModule, PrimFunc, Schedule, Target
from needle_tvm.kernels import knob_candidates
from needle_tvm.kernels.conv.cpu_windows import windows
from needle_tvm.kernels.loops.cpu import loops
from needle_tvm.kernels.loops.split_loops import split_loops
from needle_tvm.kernels.loops.statements import statements
from needle_tvm.kernels.loops.whole_vectors import whole_vectors
from needle_tvm.kernels.reduce.cpu_columns import columns
from needle_tvm.kernels.reduce.cpu_nests import Nests, rewritten
from needle_tvm.kernels.reduce.cpu_partial import partial_results
from needle_tvm.kernels.reduce.cpu_rows import keeps_few_partial_results
from needle_tvm.kernels.rule import rules
from needle_tvm.kernels.scheduled import mark_scheduled, schedule_each
from needle_tvm.tir.extents import note_bounds, symbols_of

REDUCTIONS = (partial_results, windows, columns)  # the first that fits rewrites a reduction


def names() -> tuple[str, ...]:
    """Return the names of rules and other steps, which `schedule` accepts as `without`."""
    others = (*REDUCTIONS, split_loops, whole_vectors)
    return (*(each.name for each in rules(CPU)), *(each.__name__ for each in others))


def schedule(module: IRModule, target: Target, without: Collection[str] = ()) -> IRModule:
    """Schedule every PrimFunc of a module that is not marked as scheduled.

    `without` lists the `names()` to leave out.
    """
    module = note_bounds(module)
    return schedule_each(
        module, lambda function: schedule_function(function, target, without), or_as_it_is=True
    )


def schedule_function(
    function: PrimFunc, target: Target, without: Collection[str] = ()
) -> PrimFunc:
    """Schedule one PrimFunc by the first rule that fits it. `without` is as in `schedule`."""
    scheduled = statements(_scheduled(function, target, without).mod["main"])
    for step in (split_loops, whole_vectors):
        if step.__name__ not in without:
            scheduled = step(scheduled)
    return mark_scheduled(scheduled, function)


def _scheduled(function: PrimFunc, target: Target, without: Collection[str]) -> Schedule:
    for rule in rules(CPU):
        found = None if rule.name in without else rule.apply(function, target, None)
        if found is not None:
            return found
    writes = [
        partial(write, target=target) for write in REDUCTIONS if write.__name__ not in without
    ]
    sch = _with_reductions(function, writes)
    loops(sch, target)
    return sch


def variants(function: PrimFunc, target: Target) -> Iterator[Schedule]:
    """Yield all schedules of a function that follow our rules and that a search can record.

    The first schedule is by the rule that fits, with the rule's default knobs. If no rule fits,
    only `loops` is applied. The schedule without a search differs slightly from both: the other
    steps of `schedule_function`, such as `whole_vectors`, leave no trace that a record could hold.
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


def choices(function: PrimFunc, target: Target) -> Iterator[Schedule]:
    """Return the `knob_candidates.choices` for a function with symbolic extents, for which TVM's
    search has no candidates. Return none for other functions: they have `variants`."""
    if not symbols_of(function):
        return iter(())
    fitting = (r for r in rules(CPU) if r.apply(function, target, None) is not None)
    rows = [
        [(rule, knobs) for knobs in rule.knobs(function, target)] for rule in islice(fitting, 1)
    ]
    default = schedule_function(function, target)
    return knob_candidates.choices(function, target, rows, default, whole_vectors)


def realised(module: IRModule, target: Target) -> IRModule:
    """Return the module to compile for a choice, as `knob_candidates.realised` does."""
    return knob_candidates.realised(module, target, rules(CPU), whole_vectors)


def _with_reductions(function: PrimFunc, writes: list[partial[Nests | None]]) -> Schedule:
    """Rewrite a function's reductions in vectors. Use partial results only if the function need not
    keep them for all rows at once."""
    changed = Schedule(rewritten(function, writes))
    if keeps_few_partial_results(changed):
        return changed
    return Schedule(rewritten(function, [w for w in writes if w.func is not partial_results]))
