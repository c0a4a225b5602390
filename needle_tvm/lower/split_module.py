"""Splits a module of kernels so that LLVM generates its code on several cores at once.

Each part is lowered by itself, so that LLVM works on one part while the next ones are lowered.

Functions that call each other through global variables stay together; functions that call through
symbols (`tasks.external`) may be separated. The split depends only on the module, so that a model
has the same code on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from needle_runtime.process.threads import available_cores
from needle_tvm._tvm.names import IRModule, relax, s_tir, tirx, tvm
from needle_tvm.tir.functions import NODES, calls_of, nodes_in

T = TypeVar("T")
R = TypeVar("R")
U = TypeVar("U")

_PARTS = 12  # the most parts: each costs the 15 ms that LLVM takes per module
_LEAST = 200  # stores in a part's loops; a smaller part is not worth the cost of a module
_SMALL = 1 << 14  # stores of a small kernel that runs once; 83 such kernels lose 0.2 ms unoptimised
_FEW = 4  # fewer small kernels than this are not worth a module


class Part(NamedTuple):
    """A module that does not need the other parts, and whether LLVM optimises it."""

    module: IRModule
    optimized: bool


def split(module: IRModule, once: Collection[str]) -> list[Part]:
    """Split a scheduled module into parts of about equal size. The first part has the function that
    takes LLVM longest. Small functions named in `once` form the last part, which LLVM compiles
    without optimisation, in a fifth of the time."""
    functions = dict(module.functions_items())
    small = [
        variable
        for variable, function in functions.items()
        if variable.name_hint in once and _stores(function.body, executed=True) <= _SMALL
    ]
    if len(small) < _FEW:
        small = []
    parts = _equal_parts({v: f for v, f in functions.items() if v not in small})
    made = [(part, True) for part in parts] + [(small, False)] * bool(small)
    return [
        Part(IRModule({v: functions[v] for v in part}, attrs=module.attrs), optimized)
        for part, optimized in made
    ]


def _equal_parts(functions: dict[Any, Any]) -> list[list[Any]]:
    """Split functions into parts of about equal size; functions that call each other stay in one
    part."""
    groups = _connected(functions)
    stores = [sum(1 + _stores(functions[each].body) for each in group) for group in groups]
    parts: list[list[Any]] = [[] for _ in range(max(1, min(_PARTS, int(sum(stores)) // _LEAST)))]
    filled = [0.0] * len(parts)
    for size, group in sorted(zip(stores, groups, strict=True), key=lambda each: -each[0]):
        least = filled.index(min(filled))
        parts[least] += group
        filled[least] += size
    return [part for part in parts if part]


def called_by_one(module: IRModule, name: str) -> set[str]:
    """Return the names of the kernels that only the Relax function `name` of a module calls."""
    called = {
        variable.name_hint: set(calls_of(module, variable.name_hint))
        for variable, function in module.functions_items()
        if isinstance(function, relax.Function)
    }
    return called.pop(name, set()).difference(*called.values())


def on_cores(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return a function's results for all items, computed on all cores. The function must release
    the GIL."""
    return pipelined(lambda item: item, function, items)


def pipelined(first: Callable[[T], U], then: Callable[[U], R], items: Iterable[T]) -> list[R]:
    """Return `then(first(item))` for each item. `first` runs in this thread, one item after the
    other, while other threads run `then` for earlier items. `then` must release the GIL."""
    items = list(items)
    if len(items) < 2:
        return [then(first(item)) for item in items]
    with ThreadPoolExecutor(available_cores()) as threads:
        started = [threads.submit(then, first(item)) for item in items]
        return [each.result() for each in started]


def _stores(body: Any, *, executed: bool = False) -> float:
    """Count the stores in a statement after its unrolled loops are expanded. With `executed`, count
    the stores that it executes (infinite if a loop's extent is symbolic)."""

    def inner(statement: Any) -> float:
        return _stores(statement, executed=executed)

    if isinstance(body, tirx.For):
        extent = int(body.extent) if isinstance(body.extent, tirx.IntImm) else math.inf
        unrolled = body.kind == tirx.ForKind.UNROLLED and extent < math.inf
        return inner(body.body) * (extent if executed or unrolled else 1)
    if isinstance(body, tirx.SeqStmt):
        return sum(map(inner, body.seq))
    if isinstance(body, s_tir.SBlockRealize):
        return inner(body.block.body)
    if isinstance(body, tirx.IfThenElse):
        return inner(body.then_case) + (inner(body.else_case) if body.else_case else 0)
    within = getattr(body, "body", None)
    return 1 if within is None else inner(within)


def _connected(functions: dict[Any, Any]) -> list[list[Any]]:
    """Return the groups of functions that call each other, in the module's order."""
    group_of = {variable: [variable] for variable in functions}
    for variable, function in functions.items():
        for call in nodes_in(function.body, NODES.call):
            if isinstance(call.op, tvm.ir.GlobalVar) and call.op in functions:
                one, other = group_of[variable], group_of[call.op]
                if one is not other:
                    one += other
                    group_of |= dict.fromkeys(other, one)
    return list({id(group): group for group in group_of.values()}.values())
