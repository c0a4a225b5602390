"""The candidates of a search over our GPU rules: the choice of a rule, and each rule's knobs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from needle_runtime.target.kind import GPU
from needle_tvm._tvm.names import IRModule, PrimFunc, Schedule, Target
from needle_tvm.kernels import gpu, knob_candidates
from needle_tvm.kernels.dlight import DLIGHT, by_dlight
from needle_tvm.kernels.rule import Rule, rules

_MOST = 32  # knobs tried per rule, in the rule's order


def _candidates(function: PrimFunc, target: Target) -> list[list[tuple[Rule, Any]]]:
    """Return rows of candidates: all rules with their default knobs, then a row of knobs for each
    rule, then TVM's rules. The first row matters because, without a search, only the first of
    several fitting rules is used."""
    own = rules(GPU)
    rows: list[list[tuple[Rule, Any]]] = [[(each, None) for each in own]]
    rows += [
        [(each, knobs) for knobs in islice(each.knobs(function, target), _MOST)] for each in own
    ]
    return [*rows, [(_TVMS, name) for name in DLIGHT]]


def _by_one_of_dlights(function: PrimFunc, target: Target, name: str) -> Schedule | None:
    found = by_dlight(function, target, [name])
    return None if found is None else Schedule(found)


_TVMS = Rule("dlight", GPU, 0, _by_one_of_dlights, lambda *_: DLIGHT, 1, "TVM")


def choices(function: PrimFunc, target: Target) -> Iterator[Schedule]:
    """Return the `knob_candidates.choices` for a function of a module that `gpu.prepared` has
    prepared."""
    with target:
        default = gpu.schedule_function(function, target)
        rows = _candidates(function, target)
    return knob_candidates.choices(function, target, rows, default)


def realised(module: IRModule, target: Target) -> IRModule:
    """Return the module to compile for a choice, as `knob_candidates.realised` does."""
    return knob_candidates.realised(module, target, [*rules(GPU), _TVMS])
