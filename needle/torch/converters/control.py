"""Converters of control flow: conditions, loops, scans and maps.

In a trace they become needle's `cond`, `while_loop` and `scan`. An eager call runs the branch that
the condition selects, and runs a loop until its condition is false.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import loops
from ...autograd.tensor import Tensor
from ...common.state import state
from ...conversion import budget
from ...conversion.values import known_number
from ..loops import WHILE_LOOP, as_tree, of_tree, run_body
from ..operands import is_tensor
from ..program import Node, Program
from ..registry import complex_converter, converter


@converter("higher_order.cond")
@complex_converter("higher_order.cond")
def cond(
    node: Node, predicate: Any, taken: Program, other: Program, operands: tuple[Any, ...] = ()
) -> tuple[Any, ...]:
    """Return the results of one of two graphs."""
    if not is_tensor(predicate):
        return run_body(taken if predicate else other, operands)
    if state.trace is None or not isinstance(predicate, Tensor):
        chosen = taken if known_number(node, predicate, "the condition") else other
        return run_body(chosen, operands)

    def branch(body: Program) -> Callable[[], Any]:
        return lambda: as_tree(run_body(body, operands))

    return of_tree(loops.cond(predicate, branch(taken), branch(other)))


@converter(WHILE_LOOP)
@complex_converter(WHILE_LOOP)
def while_loop(
    node: Node,
    condition: Program,
    body: Program,
    carried: tuple[Any, ...],
    extra: tuple[Any, ...],
    trips: int | None,
) -> tuple[Any, ...]:
    """Return the final carried values of a loop. `trips` is its number of iterations, if known."""
    carried = tuple(np.array(each) if type(each) is int else each for each in carried)
    if trips is not None:
        return _scanned(body, carried, None, extra, trips)
    if state.trace is None:
        count = 0
        while _again(node, condition, (*carried, *extra)):
            count += 1
            budget.check_iterations(count)
            carried = run_body(body, (*carried, *extra))
        return carried

    def again(now: Any) -> Any:
        (found,) = as_tree(run_body(condition, (*of_tree(now), *extra)))
        return found

    def step(now: Any) -> Any:
        return as_tree(run_body(body, (*of_tree(now), *extra)))

    return of_tree(loops.while_loop(again, step, as_tree(carried)))


def _again(node: Node, condition: Program, operands: tuple[Any, ...]) -> bool:
    (found,) = run_body(condition, operands)
    return bool(known_number(node, found, "the condition") if is_tensor(found) else found)


@converter("higher_order.scan")
@complex_converter("higher_order.scan")
def scan(
    node: Node,
    body: Program,
    carried: tuple[Any, ...],
    sequences: tuple[Any, ...],
    extra: tuple[Any, ...] = (),
) -> tuple[Any, ...]:
    """Return the final carried values of a loop, and its outputs stacked along axis 0."""
    return _scanned(body, carried, sequences, extra)


@converter("higher_order.map_impl")
@complex_converter("higher_order.map_impl")
def map_(
    node: Node, body: Program, sequences: tuple[Any, ...], extra: tuple[Any, ...] = ()
) -> tuple[Any, ...]:
    """Return the outputs of a graph for each element along axis 0, stacked."""
    return _scanned(body, (), sequences, extra)


def _scanned(
    body: Program,
    carried: tuple[Any, ...],
    sequences: tuple[Any, ...] | None,
    extra: tuple[Any, ...],
    length: int | None = None,
) -> tuple[Any, ...]:
    """Run a loop as one op. Its body returns the next carried values, then the outputs."""
    count = len(carried)

    def cell(now: Any, x: Any) -> Any:
        made = as_tree(run_body(body, (*of_tree(now), *of_tree(x or ()), *extra)))
        return made[:count], made[count:]

    xs = None if sequences is None else as_tree(sequences)
    last, whole = loops.scan(cell, as_tree(carried), xs, length)
    return (*of_tree(last), *of_tree(whole))


@converter("higher_order.invoke_subgraph")
@complex_converter("higher_order.invoke_subgraph")
def invoke_subgraph(node: Node, body: Program, name: Any, *operands: Any) -> tuple[Any, ...]:
    return run_body(body, operands)
