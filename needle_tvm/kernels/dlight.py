"""TVM's default schedules for GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from needle_tvm._tvm.names import (
    INTERNAL_ERROR,
    SCHEDULE_ERROR,
    IRModule,
    PrimFunc,
    Target,
    s_tir,
    sequential,
)
from needle_tvm.tir.functions import NODES, nodes_in

# TVM's default rules for GPUs (`tvm.s_tir.dlight`), in their order.
DLIGHT = ("Matmul", "GEMV", "Reduction", "GeneralReduction", "Fallback")


def by_dlight(function: PrimFunc, target: Target, names: Sequence[str] = DLIGHT) -> PrimFunc | None:
    """Schedule a function with the first rule in `names` that fits; `names` are names of TVM's
    default rules. Return None if no rule fits.

    A rule that finds out only halfway that it does not fit raises one of many errors. With some
    rules, the misfit comes to light only when reductions across threads are lowered.
    """
    from tvm.s_tir.dlight import gpu

    lowered = sequential(
        [s_tir.transform.CanonicalizeLoop(), s_tir.transform.LowerCrossThreadReduction()]
    )
    for name in names:
        try:
            with target:
                found = getattr(gpu, name)().apply(function, target, False)
                if found is not None:
                    found = (found[0] if isinstance(found, list) else found).mod["main"]
                    lowered(IRModule({"main": found}))
                    found = found if _is_well_typed(found) else None
        except (SCHEDULE_ERROR, INTERNAL_ERROR, ValueError, TypeError, AssertionError):
            continue
        if found is not None:
            return found
    return None


def _is_well_typed(function: PrimFunc) -> bool:
    """Return whether the operands of each node have the same type. If a reduction has one term, TVM
    merges its initialisation and the cast of its result into one statement, whose operands then
    have different types: the type before the cast and the type after it."""
    pairs = [
        *((node.true_value, node.false_value) for node in nodes_in(function, NODES.select)),
        *(
            (node.a, node.b)
            for kind in (*NODES.arithmetic, *NODES.comparisons)
            for node in nodes_in(function, kind)
        ),
    ]
    return all(first.ty == second.ty for first, second in pairs)
