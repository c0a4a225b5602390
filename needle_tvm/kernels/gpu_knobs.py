"""The candidates of a search over our GPU rules: each rule's knobs, and the choice of a rule.

A rule may rewrite a function before it schedules it, in which case no trace leads from the function
to the rule's result. A candidate is therefore the function with a note that names the rule and the
knobs: it has a trace, which the record store keeps. `realised` turns it into the module to compile.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from itertools import chain, islice, zip_longest
from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, Schedule, Target, structural_hash
from needle_tvm.kernels import gpu
from needle_tvm.kernels.dlight import DLIGHT, by_dlight
from needle_tvm.kernels.rule import GPU, Rule, rules
from needle_tvm.tir.functions import module_of

NOTE = "needle.rule"  # annotation of a function's root block

_MOST = 32  # knobs tried per rule, in the order that the rule gives


def _candidates(function: PrimFunc, target: Target) -> list[list[tuple[Rule, Any]]]:
    """Rows of candidates: every rule by itself, each rule with its knobs, and TVM's rules. The
    first row matters because, unmeasured, only the first of several rules that fit is taken."""
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
    """Yield a function of `gpu.prepared` with a note for each rule and knobs whose result differs
    from `gpu.schedule_function`'s and from all earlier ones. The rules take turns."""
    with target:
        seen = {_digest(gpu.schedule_function(function, target))}
        rows = _candidates(function, target)
    for each, knobs in filter(None, chain.from_iterable(zip_longest(*rows))):
        found = each.apply(function, target, knobs)
        digest = None if found is None else _digest(found.mod["main"])
        if digest is not None and digest not in seen:
            seen.add(digest)
            noted = Schedule(function)
            noted.annotate(noted.get_sblock("root"), NOTE, _text(each, knobs))
            yield noted


def realised(module: IRModule, target: Target) -> IRModule:
    """Return the module to compile for a module of one function, "main": by its note, if any.

    Raises ValueError if no rule has such knobs (any more), or they do not fit the function.
    """
    sch = Schedule(module)
    root = sch.get_sblock("root")
    note = sch.get(root).annotations.get(NOTE)
    if note is None:
        return module
    sch.unannotate(root, NOTE)
    function = sch.mod["main"]
    named = [each for each in (*rules(GPU), _TVMS) if json.dumps(each.name) in note]
    with target:
        for each in named:
            for knobs in chain([None], each.knobs(function, target)):
                if _text(each, knobs) == note:
                    found = each.apply(function, target, knobs)
                    if found is None:
                        raise ValueError(f"{note}: does not fit the function")
                    return found.mod
    raise ValueError(f"{note}: no rule has such knobs")


def is_noted(trace: str) -> bool:
    """Whether the text of a trace holds a note of `choices`: it schedules nothing by itself."""
    return f'"{NOTE}"' in trace


def _text(rule: Rule, knobs: Any) -> str:
    if knobs is None:
        return json.dumps(["rules", 1, rule.name])
    plain = knobs
    if dataclasses.is_dataclass(knobs) and not isinstance(knobs, type):
        plain = dataclasses.asdict(knobs)
    return json.dumps([rule.name, rule.revision, plain], sort_keys=True)


def _digest(scheduled: PrimFunc) -> str:
    """A hash of a function without its attributes."""
    for name in dict(scheduled.attrs or {}):
        scheduled = scheduled.without_attr(name)
    return structural_hash(module_of(scheduled))
