"""Represents the candidates of a search as notes, each of which names a rule and its knobs.

A rule may rewrite a function before it schedules it. Then no trace leads from the function to the
rule's result. A candidate is therefore the function annotated with a note that names the rule and
the knobs. It has a trace, which the record store keeps. `realised` turns it into the module to
compile.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, Schedule, Target, structural_hash
from needle_tvm.kernels.rule import Rule
from needle_tvm.tir.functions import module_of

NOTE = "needle.rule"  # annotation of a function's root block

Finish = Callable[[PrimFunc], PrimFunc]  # the steps between a rule and compiling its result


def choices(
    function: PrimFunc,
    target: Target,
    rows: Sequence[Iterable[tuple[Rule, Any]]],
    default: PrimFunc,
    finish: Finish = lambda found: found,
) -> Iterator[Schedule]:
    """Yield the function with a note for each rule and its knobs (None: the rule's default) whose
    result differs from `default` and from all earlier results. The `rows` take turns."""
    seen = {_digest(default)}
    for each, knobs in filter(None, chain.from_iterable(zip_longest(*rows))):
        found = each.apply(function, target, knobs)
        digest = None if found is None else _digest(finish(found.mod["main"]))
        if digest is not None and digest not in seen:
            seen.add(digest)
            noted = Schedule(function)
            noted.annotate(noted.get_sblock("root"), NOTE, _text(each, knobs))
            yield noted


def realised(
    module: IRModule,
    target: Target,
    rules: Sequence[Rule],
    finish: Finish = lambda found: found,
) -> IRModule:
    """Apply the note of a module's only function, "main"; return a module without a note unchanged.

    Raises ValueError if none of `rules` has such knobs (any more), or if the rule does not fit the
    function.
    """
    sch = Schedule(module)
    root = sch.get_sblock("root")
    note = sch.get(root).annotations.get(NOTE)
    if note is None:
        return module
    sch.unannotate(root, NOTE)
    function = sch.mod["main"]
    named = [each for each in rules if json.dumps(each.name) in note]
    with target:
        for each in named:
            for knobs in chain([None], each.knobs(function, target)):
                if _text(each, knobs) == note:
                    found = each.apply(function, target, knobs)
                    if found is None:
                        raise ValueError(f"{note}: does not fit the function")
                    return module_of(finish(found.mod["main"]))
    raise ValueError(f"{note}: no rule has such knobs")


def is_noted(trace: str) -> bool:
    """Return whether a trace has a note from `choices`; such a trace alone schedules nothing."""
    return f'"{NOTE}"' in trace


def _text(rule: Rule, knobs: Any) -> str:
    if knobs is None:
        return json.dumps(["rules", 1, rule.name])
    plain = knobs
    if dataclasses.is_dataclass(knobs) and not isinstance(knobs, type):
        plain = dataclasses.asdict(knobs)
    return json.dumps([rule.name, rule.revision, plain], sort_keys=True)


def _digest(scheduled: PrimFunc) -> str:
    """Return a hash of a function without its attributes."""
    for name in dict(scheduled.attrs or {}):
        scheduled = scheduled.without_attr(name)
    return structural_hash(module_of(scheduled))
