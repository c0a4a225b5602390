"""Schedule rules for CPUs: a function gets the first that fits it.

An op or a pass asks for a rule by annotating a block: `RULES` says which rule an annotation stands
for, and what in it is a matter of choice. Whatever carries no annotation gets `loops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from needle_tvm._tvm import IRModule, PrimFunc, Schedule, Target
from needle_tvm.schedule import attention, conv, products, winograd
from needle_tvm.schedule.blocks import annotated
from needle_tvm.schedule.columns import columns
from needle_tvm.schedule.loops import loops
from needle_tvm.schedule.partial import partial_results
from needle_tvm.schedule.reductions import rewritten
from needle_tvm.schedule.rows import keeps_few_partial_results
from needle_tvm.schedule.whole_vectors import whole_vectors
from needle_tvm.schedule.windows import windows


@dataclass(frozen=True)
class Rule:
    """`apply(schedule, block, target, knobs)` for functions with a block that is annotated so.

    The first of `knobs` is used where nothing is measured; a search measures all of them.
    """

    annotation: str
    apply: Callable[[Schedule, Any, Target, Any], None]
    knobs: tuple[Any, ...] = (None,)

    @property
    def name(self) -> str:
        """The annotation without its namespace."""
        return self.annotation.rpartition(".")[2]


RULES = (
    Rule(products.DENSE, products.dense, products.DENSE_VARIANTS),
    Rule(products.PAIRS, products.pairs, products.DENSE_VARIANTS),
    Rule(attention.ATTENTION, attention.schedule_attention),
    Rule(conv.CONV, conv.conv, conv.CONV_VARIANTS),
    Rule(conv.DEPTHWISE, conv.depthwise, conv.DEPTHWISE_VARIANTS),
    Rule(winograd.INPUT, winograd.transform_input),
    Rule(winograd.OUTPUT, winograd.transform_output),
)


def schedule(module: IRModule, target: Target, rules: Sequence[Rule] = RULES) -> IRModule:
    """The module with every PrimFunc scheduled that is not marked as scheduled already."""
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc) and not _is_scheduled(function):
            module.update_func(name, schedule_function(function, target, rules))
    return module


def schedule_function(
    function: PrimFunc, target: Target, rules: Sequence[Rule] = RULES
) -> PrimFunc:
    """One PrimFunc scheduled by the first rule that fits it."""
    sch = Schedule(function)
    if any(annotated(sch, rule.annotation) is not None for rule in rules):
        scheduled = next(variants(sch, target, rules)).mod["main"]
    else:
        sch = _with_reductions(function, target)
        loops(sch, target)
        scheduled = whole_vectors(sch.mod["main"])
    return mark_scheduled(scheduled, function)


def variants(sch: Schedule, target: Target, rules: Sequence[Rule] = RULES) -> Iterator[Schedule]:
    """Every way in which our rules schedule a function as a search can record it.

    The first of a rule is the one without a search. Where none fits, what `schedule_function` does
    besides `loops` is missing, since no trace of a schedule has it.
    """
    for rule in rules:
        if annotated(sch, rule.annotation) is None:
            continue
        for knobs in rule.knobs:
            variant = sch.copy()
            rule.apply(variant, annotated(variant, rule.annotation), target, knobs)
            yield variant
        return
    variant = sch.copy()
    loops(variant, target)
    yield variant


def _with_reductions(function: PrimFunc, target: Target) -> Schedule:
    """Its reductions written in vectors: of partial results only where these need not be kept for
    all rows."""
    along, *others = [partial(rule, target=target) for rule in (partial_results, windows, columns)]
    changed = Schedule(rewritten(function, [along, *others]))
    if keeps_few_partial_results(changed):
        return changed
    return Schedule(rewritten(function, others))


def mark_scheduled(scheduled: PrimFunc, original: PrimFunc) -> PrimFunc:
    """`scheduled` with the attributes of `original`, marked so that no later rule touches it.

    A function that was scheduled alone is called "main", and must not be in a module that has one.
    """
    if "global_symbol" not in (original.attrs or {}):
        scheduled = scheduled.without_attr("global_symbol")
    return scheduled.with_attrs({**dict(original.attrs or {}), "tirx.is_scheduled": True})


def _is_scheduled(function: PrimFunc) -> bool:
    return "tirx.is_scheduled" in (function.attrs or {})
