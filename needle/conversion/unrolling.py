"""Unrolled loops: limits on their iterations, and conversions between sequences and lists of their
elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import ops
from ..common.state import state
from . import budget
from .node import NamedNode
from .values import Value, along, is_known, tensor

LARGEST_COUNT = 10_000  # the most iterations that are unrolled while tracing
LARGEST_COST = 6000  # the most operations in a loop and its inner loops; they compile in a minute
_OWN_COST = 4  # operations that an iteration adds: it slices sequences and stacks results
_PARTS = 32  # the most results of one op: a kernel with many results compiles slowly


def check_count(node: NamedNode, count: int) -> None:
    """Raise UnsupportedError if `count` is above the number of iterations that may be unrolled."""
    budget.check_iterations(count)
    if state.trace is not None and count > LARGEST_COUNT:
        raise node.unsupported(f"{count} iterations; at most {LARGEST_COUNT} are unrolled")


class Room:
    """Limits the operations that a loop's iterations record while tracing, because compile time and
    memory grow faster than the number of operations. `advice` is added to the error."""

    def __init__(self, node: NamedNode, advice: str = "") -> None:
        self._node, self._cost, self._advice = node, 0, advice
        self._last = self._recorded()

    def _recorded(self) -> int:
        return 0 if state.trace is None else int(state.trace.recorded)

    def check(self, done: int, count: int) -> None:
        """Raise UnsupportedError if the loop will have too many operations, judging by `done` of
        its `count` iterations."""
        budget.iterate()
        now = self._recorded()
        each, self._last = now - self._last, now
        cost = each + _OWN_COST if each else 0
        self._cost += cost
        if self._cost + cost * (count - done) > LARGEST_COST:
            raise self._node.unsupported(
                f"{count} iterations of {each} operations; at most {LARGEST_COST // cost} "
                "iterations are unrolled and compiled, so give it fewer steps" + self._advice
            )


def stacked(values: Sequence[Value], axis: int) -> Value:
    """Return the values of all iterations as one value, stacked along a new axis."""
    if all(is_known(value) for value in values):
        return np.stack(values, axis)
    return ops.stack([tensor(value) for value in values], axis)


def elements(node: NamedNode, source: Value, axis: int, steps: int) -> list[Value]:
    """Return the `steps` elements of a sequence along an axis."""
    check_count(node, steps)
    if steps == 0:
        raise node.unsupported("a sequence of no elements")
    if isinstance(source, np.ndarray):
        found: list[Value] = list(np.moveaxis(source, axis, 0))
    else:
        starts = range(0, steps, _PARTS)
        groups = [source[along(axis, slice(i, i + _PARTS))] for i in starts]
        found = [x for group in groups for x in ops.split(group, axis)]
    return found
