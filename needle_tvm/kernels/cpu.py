"""Schedule rules for CPUs: a function gets the first that fits it.

An op or a pass asks for a rule by annotating a block: `RULES` says which rule an annotation stands
for, and what in it is a matter of choice. Whatever carries no annotation gets `loops`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, Schedule, Target
from needle_tvm.faults import blamed_on
from needle_tvm.kernels.attention import cpu as attention
from needle_tvm.kernels.blocks import annotated
from needle_tvm.kernels.conv import cpu as conv
from needle_tvm.kernels.conv import winograd_cpu as winograd
from needle_tvm.kernels.conv.windows import windows
from needle_tvm.kernels.dense import cpu as products
from needle_tvm.kernels.loops.cpu import loops
from needle_tvm.kernels.loops.whole_vectors import whole_vectors
from needle_tvm.kernels.mark import mark_scheduled, schedule_each
from needle_tvm.kernels.reduce.columns import columns
from needle_tvm.kernels.reduce.partial import partial_results
from needle_tvm.kernels.reduce.reductions import Nests, rewritten
from needle_tvm.kernels.reduce.rows import keeps_few_partial_results


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


REDUCTIONS = (partial_results, windows, columns)  # the first that fits a reduction writes it anew

NAMES = (
    *(rule.name for rule in RULES),
    *(write.__name__ for write in REDUCTIONS),
    whole_vectors.__name__,
)


def schedule(module: IRModule, target: Target, without: Collection[str] = ()) -> IRModule:
    """The module with every PrimFunc scheduled that is not marked as scheduled already.

    `without` names those of `NAMES` that are left out.
    """
    return schedule_each(
        module, lambda function: schedule_function(function, target, without), or_as_it_is=True
    )


def schedule_function(
    function: PrimFunc, target: Target, without: Collection[str] = ()
) -> PrimFunc:
    """One PrimFunc scheduled by the first rule that fits it, `without` those of `NAMES`."""
    sch = Schedule(function)
    rule = _rule_of(sch, without)
    if rule is not None:
        _apply(rule, sch, target, rule.knobs[0])
        return mark_scheduled(sch.mod["main"], function)
    writes = [
        partial(write, target=target) for write in REDUCTIONS if write.__name__ not in without
    ]
    sch = _with_reductions(function, writes)
    loops(sch, target)
    scheduled = sch.mod["main"]
    if whole_vectors.__name__ not in without:
        scheduled = whole_vectors(scheduled)
    return mark_scheduled(scheduled, function)


def variants(sch: Schedule, target: Target) -> Iterator[Schedule]:
    """Every way in which our rules schedule a function as a search can record it.

    The first of a rule is the one without a search. Where none fits, what `schedule_function` does
    besides `loops` is missing, since no trace of a schedule has it.
    """
    rule = _rule_of(sch)
    for knobs in (None,) if rule is None else rule.knobs:
        variant = sch.copy()
        if rule is None:
            loops(variant, target)
        else:
            _apply(rule, variant, target, knobs)
        yield variant


def _rule_of(sch: Schedule, without: Collection[str] = ()) -> Rule | None:
    rules = (rule for rule in RULES if rule.name not in without)
    return next((rule for rule in rules if annotated(sch, rule.annotation) is not None), None)


def _apply(rule: Rule, sch: Schedule, target: Target, knobs: Any) -> None:
    with blamed_on(f"schedule rule {rule.name!r}", rule.name):
        rule.apply(sch, annotated(sch, rule.annotation), target, knobs)


def _with_reductions(function: PrimFunc, writes: list[partial[Nests | None]]) -> Schedule:
    """Its reductions written in vectors: of partial results only where these need not be kept for
    all rows."""
    changed = Schedule(rewritten(function, writes))
    if keeps_few_partial_results(changed):
        return changed
    return Schedule(rewritten(function, [w for w in writes if w.func is not partial_results]))
