"""Splits a module of kernels so that LLVM generates its code on several cores at once.

Functions that call each other stay together: `tasks` are called without a symbol. The split depends
on the module alone, so that the same model has the same code on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from needle_tvm._tvm.names import IRModule, tirx, tvm
from needle_tvm.process.threads import available_cores
from needle_tvm.tir.functions import NODES, nodes_in

T = TypeVar("T")
R = TypeVar("R")

_PARTS = 4  # at most: each repeats what LLVM does once for a module
_LEAST = 200  # stores in a part's loops: less is not worth what a module costs by itself


def split(module: IRModule) -> list[IRModule]:
    """A lowered module as modules of about the same size, none of which calls into another."""
    functions = dict(module.functions_items())
    stores = {v: 1 + len(nodes_in(f.body, tirx.BufferStore)) for v, f in functions.items()}
    groups = _connected(functions)
    sizes = [sum(stores[variable] for variable in group) for group in groups]
    parts: list[list[Any]] = [[] for _ in range(max(1, min(_PARTS, sum(sizes) // _LEAST)))]
    filled = [0] * len(parts)
    for size, group in sorted(zip(sizes, groups, strict=True), key=lambda each: -each[0]):
        least = filled.index(min(filled))
        parts[least] += group
        filled[least] += size
    if len(parts) == 1:
        return [module]
    return [IRModule({v: functions[v] for v in part}, attrs=module.attrs) for part in parts if part]


def on_cores(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """The results of a function that leaves the GIL to others, for items on all cores."""
    items = list(items)
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(available_cores()) as threads:
        return list(threads.map(function, items))


def _connected(functions: dict[Any, Any]) -> list[list[Any]]:
    """The groups of functions that call each other, in the module's order."""
    group_of = {variable: [variable] for variable in functions}
    for variable, function in functions.items():
        for call in nodes_in(function.body, NODES.call):
            if isinstance(call.op, tvm.ir.GlobalVar) and call.op in functions:
                one, other = group_of[variable], group_of[call.op]
                if one is not other:
                    one += other
                    group_of |= dict.fromkeys(other, one)
    return list({id(group): group for group in group_of.values()}.values())
