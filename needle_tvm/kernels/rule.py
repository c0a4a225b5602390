"""One protocol for all schedule rules: whether a rule fits, its schedule, and its knobs.

A rule is a decorated function in a file of a kernel's folder (a package, with an `__init__.py`).
All such files are imported, so a rule needs no other registration:

    @rule(GPU, order=30, knobs=tiles)
    def tiled(function: PrimFunc, target: Target, tile: Tile | None = None) -> Schedule | None: ...

    @annotated(CONV, knobs=CONV_VARIANTS)
    def conv(sch: Schedule, block: Any, target: Target, knobs: ConvKnobs) -> None: ...

Rules of the first form are tried on any function. Rules of the second form are for functions with
an annotated block: an op or a pass annotates the block to ask for the rule.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from needle_runtime.target.kind import CPU
from needle_tvm import kernels
from needle_tvm._tvm.names import PrimFunc, Schedule, Target
from needle_tvm.faults import blamed_on
from needle_tvm.kernels import blocks
from needle_tvm.tir.functions import NODES, nodes_in

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Rule:
    """A schedule rule. `apply(function, target, knobs)` returns a schedule, or None if the rule
    does not fit.

    Rules of a `kind` of target are tried in their `order`. If `apply` is called with knobs of None,
    the rule chooses its own. `knobs(function, target)` lists the other values that a search may
    try, the most promising first: JSON values, or dataclasses of JSON values. Both may be called
    with any function. Increase `revision` when the same knobs come to mean another schedule, since
    earlier measurements belong to the old schedule.
    """

    name: str
    kind: str
    order: int
    apply: Callable[[PrimFunc, Target, Any], Schedule | None]
    knobs: Callable[[PrimFunc, Target], Iterable[Any]]
    revision: int
    home: str  # qualified name of the decorated function


_RULES: dict[tuple[str, str], Rule] = {}


def rule(
    kind: str,
    order: int,
    knobs: Callable[[PrimFunc, Target], Iterable[Any]] = lambda function, target: (),
    revision: int = 1,
) -> Callable[[F], F]:
    """Register `write(function, target[, knobs])` as a rule; it returns a schedule, or None if the
    rule does not fit.

    Raises ValueError if another rule of the same kind has the same name.
    """

    def enter(write: F) -> F:
        def apply(function: PrimFunc, target: Target, chosen: Any) -> Schedule | None:
            with target:
                given = (function, target) if chosen is None else (function, target, chosen)
                return write(*given)

        _enter(Rule(write.__name__, kind, order, apply, knobs, revision, _home(write)))
        return write

    return enter


def annotated(
    annotation: str,
    knobs: Sequence[Any] = (None,),
    kind: str = CPU,
    order: int = 10,
    revision: int = 1,
) -> Callable[[F], F]:
    """Register `write(schedule, block, target, knobs)` as the rule for functions with a block that
    has `annotation`. If `write` returns False, the rule does not fit.

    The first of `knobs` is the default. The rule's name is the annotation without its namespace.
    Raises ValueError if another rule of the same kind has that name.
    """
    name = annotation.rpartition(".")[2]

    def enter(write: F) -> F:
        def apply(function: PrimFunc, target: Target, chosen: Any) -> Schedule | None:
            # Making a schedule takes half a millisecond, and most functions have no such block.
            noted = (annotation in each.annotations for each in nodes_in(function, NODES.sblock))
            if not any(noted):
                return None
            sch = Schedule(function)
            block = blocks.annotated(sch, annotation)
            with target, blamed_on(f"schedule rule {name!r}", name):
                fits = write(sch, block, target, knobs[0] if chosen is None else chosen)
            return None if fits is False else sch

        others = knobs[1:]
        made = Rule(name, kind, order, apply, lambda *_: others, revision, _home(write))
        _enter(made)
        return write

    return enter


def _home(write: Callable[..., Any]) -> str:
    return f"{write.__module__}.{write.__qualname__}"


def _enter(made: Rule) -> None:
    other = _RULES.get((made.kind, made.name))
    if other is not None and other.home != made.home:
        raise ValueError(
            f"schedule rule {made.name!r} of {made.kind} exists already ({other.home}): "
            "choose another name"
        )
    _RULES[made.kind, made.name] = made


@functools.cache
def _load() -> None:
    for file in pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}."):
        if file.name.count(".") > kernels.__name__.count(".") + 1:  # in a kernel's folder
            importlib.import_module(file.name)


def rules(kind: str) -> list[Rule]:
    """Return all rules of one kind, in the order in which they are tried."""
    _load()
    found = [each for each in _RULES.values() if each.kind == kind]
    return sorted(found, key=lambda each: (each.order, each.name))
