"""The budget of a model: how much memory and work the numbers in its file may request.

A few bytes of a file (a shape, a scale, a count) can request more memory than any machine has. So
each request is checked against the budget before anything is allocated. The budgets are:

- for each tensor whose size depends on such numbers, and for each table used to compute it:
  MOST_ELEMENTS or 64 times the elements of all inputs of the call, whichever is larger;
- for the constants that are computed when a model is loaded: MOST_ELEMENTS plus four times the
  elements of the constants in the file;
- for each loop of an eager call, including its inner loops: MOST_ITERATIONS.

The error names the request and the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Any

from ..errors import ModelError, UnsupportedError
from ..sizes.dims import bounds_of

MOST_ELEMENTS = 1 << 28  # 1 GiB of float32
_GROWTH = 64  # results per input element: enlarging an image 8 x 8 times makes 64
MOST_ITERATIONS = 1 << 18

_room: ContextVar[int] = ContextVar("room", default=0)  # elements allowed per tensor of a call
_iterations: ContextVar[list[int] | None] = ContextVar("iterations", default=None)


@contextmanager
def call(shapes: Sequence[Sequence[Any]]) -> Iterator[None]:
    """Return a context for a call with inputs of these shapes."""
    token = _room.set(_GROWTH * sum(_least(shape) for shape in shapes))
    try:
        yield
    finally:
        _room.reset(token)


def _least(shape: Sequence[Any]) -> int:
    return prod(bounds_of(n)[0] for n in shape)


def bounded(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Check the extents of a node's result and return them. An extent that depends on a Dim counts
    as its least value.

    Raises ModelError for a negative extent, and UnsupportedError for a result beyond the budget;
    the caller names the node.
    """
    extents = tuple(shape)
    if any(bounds_of(n)[0] < 0 for n in extents):
        raise ModelError(f"it makes a tensor of shape {list(extents)}, which has a negative extent")
    if _least(extents) > _room.get():
        spend(_least(extents), f"a tensor of shape {list(extents)}")
    return extents


def spend(elements: int, what: str) -> None:
    """Raise UnsupportedError if `elements` are beyond the budget; `what` describes the request."""
    if elements > MOST_ELEMENTS:
        raise UnsupportedError(
            f"it asks for {what}, {elements} elements; the budget for requests by the numbers in a "
            f"file is {MOST_ELEMENTS} elements, or {_GROWTH} times the elements of the inputs"
        )


@contextmanager
def looping() -> Iterator[None]:
    """Return a context in which a node's subgraphs run. The outermost such context starts the count
    of `iterate` at 0."""
    token = _iterations.set([0]) if _iterations.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            _iterations.reset(token)


def iterate() -> None:
    """Count an iteration. Raises UnsupportedError if the count exceeds the budget."""
    running = _iterations.get()
    if running is not None:
        running[0] += 1
        check_iterations(running[0])


def check_iterations(count: int) -> None:
    """Raise UnsupportedError if `count` iterations are beyond the budget."""
    if count > MOST_ITERATIONS:
        raise UnsupportedError(
            f"it asks for {count} iterations; the budget of a loop, with the loops in it, is "
            f"{MOST_ITERATIONS} iterations"
        )
