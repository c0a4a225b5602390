"""What a search may try of our rules for GPUs: their knobs, and which rule to take at all.

A rule may write a function anew before it schedules it, so that no trace of a schedule leads from
the function to what the rule makes. A candidate is therefore the function with a note, of the rule
and the knobs: that has a trace, which the record store keeps, and `realised` makes of it what is
compiled.

A rule with knobs gets a row in `_KNOBS`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, Schedule, Target, structural_hash
from needle_tvm.kernels import gpu
from needle_tvm.kernels.dense.gpu_few_rows import NARROW_KNOBS, narrow
from needle_tvm.kernels.dense.gpu_tensor_core import tensor_core, warp_tiles
from needle_tvm.kernels.dense.gpu_tiles import tiled, tiles
from needle_tvm.kernels.dlight import DLIGHT, by_dlight
from needle_tvm.tir.functions import module_of

NOTE = "needle.rule"  # annotation of a function's root block

_MOST = 32  # of a rule's knobs: those which its author, or its arithmetic, puts first


@dataclass(frozen=True)
class Knobs:
    """A rule's: `of(function)` are JSON values, or dataclasses of them, the most promising first.

    `apply(function, target, knobs)` is the function's schedule with one of them, None where it does
    not fit. Both are called under the target. `revision` is raised when the same knobs come to mean
    another schedule: what was measured is of the old one.
    """

    rule: str
    of: Callable[[PrimFunc], Iterable[Any]]
    apply: Callable[[PrimFunc, Target, Any], Schedule | None]
    revision: int = 1

    def all_of(self, function: PrimFunc, target: Target) -> list[Any]:
        """Those for a function on a target."""
        with target:
            return list(self.of(function))

    def scheduled(self, function: PrimFunc, target: Target, knobs: Any) -> Schedule | None:
        """The function's schedule on a target."""
        with target:
            return self.apply(function, target, knobs)


def _by_one_of_dlights(function: PrimFunc, target: Target, name: str) -> Schedule | None:
    found = by_dlight(function, target, [name])
    return None if found is None else Schedule(found)


_KNOBS = (
    # Rules as they are: of several that fit, the first is taken where nothing is measured.
    Knobs(
        "rules",
        lambda function: gpu.NAMES,
        lambda function, target, name: gpu.RULES[gpu.NAMES.index(name)](function),
    ),
    Knobs("tensor_core", warp_tiles, lambda function, target, tile: tensor_core(function, tile)),
    Knobs("tiled", tiles, lambda function, target, tile: tiled(function, tile)),
    Knobs(
        "narrow",
        lambda function: NARROW_KNOBS,
        lambda function, target, knobs: narrow(function, knobs),
    ),
    Knobs("dlight", lambda function: DLIGHT, _by_one_of_dlights),
)


def choices(function: PrimFunc, target: Target) -> Iterator[Schedule]:
    """A function of `gpu.prepared` noted with each rule and knobs that make something else of it
    than `gpu.schedule_function` does, and than what came before. The rules take turns."""
    with target:
        seen = {_digest(gpu.schedule_function(function, target))}
    rows = [[(each, knobs) for knobs in islice(each.of(function), _MOST)] for each in _KNOBS]
    for each, knobs in filter(None, chain.from_iterable(zip_longest(*rows))):
        found = each.apply(function, target, knobs)
        digest = None if found is None else _digest(found.mod["main"])
        if digest is not None and digest not in seen:
            seen.add(digest)
            noted = Schedule(function)
            noted.annotate(noted.get_sblock("root"), NOTE, _text(each, knobs))
            yield noted


def realised(module: IRModule, target: Target) -> IRModule:
    """What is compiled of a module of one function, "main": by its note, where it has one.

    Raises ValueError where no rule has such knobs (any more), or they do not fit the function.
    """
    sch = Schedule(module)
    root = sch.get_sblock("root")
    note = sch.get(root).annotations.get(NOTE)
    if note is None:
        return module
    sch.unannotate(root, NOTE)
    function = sch.mod["main"]
    for each in _KNOBS:
        for knobs in each.all_of(function, target):
            if _text(each, knobs) == note:
                found = each.scheduled(function, target, knobs)
                if found is None:
                    raise ValueError(f"{note}: does not fit the function")
                return found.mod
    raise ValueError(f"{note}: no rule has such knobs")


def is_noted(trace: str) -> bool:
    """Whether the text of a trace is that of a choice: it schedules nothing by itself."""
    return f'"{NOTE}"' in trace


def _text(of: Knobs, knobs: Any) -> str:
    plain = knobs
    if dataclasses.is_dataclass(knobs) and not isinstance(knobs, type):
        plain = dataclasses.asdict(knobs)
    return json.dumps([of.rule, of.revision, plain], sort_keys=True)


def _digest(scheduled: PrimFunc) -> str:
    """Of a function's loops, without the attributes in which it may differ besides."""
    for name in dict(scheduled.attrs or {}):
        scheduled = scheduled.without_attr(name)
    return structural_hash(module_of(scheduled))
