"""The budget of a model: how much memory and work the numbers in its file may ask for.

A few bytes of a file (a shape, a scale, a count) can ask for more than any machine has. What they
ask for is compared with the budget before anything is allocated: MOST_ELEMENTS for each tensor
whose size they decide and for the tables that make it, or 64 times as many as all inputs of the
call have; MOST_ELEMENTS beyond four times what the file holds for the constants that are computed
when a model is loaded; and MOST_ITERATIONS for each loop of an eager call, with those of the loops
in it. The error says what was asked for, and the budget.
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
_GROWTH = 64  # what may be made of one element, such as an image eight times as large
MOST_ITERATIONS = 1 << 18

_room: ContextVar[int] = ContextVar("room", default=0)  # elements that a call may have anyway
_iterations: ContextVar[list[int] | None] = ContextVar("iterations", default=None)


@contextmanager
def call(shapes: Sequence[Sequence[Any]]) -> Iterator[None]:
    """Context of a call with inputs of these shapes."""
    token = _room.set(_GROWTH * sum(_least(shape) for shape in shapes))
    try:
        yield
    finally:
        _room.reset(token)


def _least(shape: Sequence[Any]) -> int:
    return prod(bounds_of(n)[0] for n in shape)


def bounded(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Return the extents of what a node makes; those that a Dim leaves open count with their least.

    Raises ModelError for a negative one, and UnsupportedError beyond the budget; the caller names
    the node.
    """
    extents = tuple(shape)
    if any(bounds_of(n)[0] < 0 for n in extents):
        raise ModelError(f"it makes a tensor of shape {list(extents)}, which is negative")
    if _least(extents) > _room.get():
        spend(_least(extents), f"a tensor of shape {list(extents)}")
    return extents


def spend(elements: int, what: str) -> None:
    """Raise UnsupportedError if `elements` are beyond the budget; `what` says of what."""
    if elements > MOST_ELEMENTS:
        raise UnsupportedError(
            f"it asks for {what}, {elements} elements; the budget for what the numbers of a file "
            f"ask for is {MOST_ELEMENTS} elements, or {_GROWTH} times those of a call's inputs"
        )


@contextmanager
def looping() -> Iterator[None]:
    """Context of a node whose subgraphs run: `iterate` counts iterations from the outermost on."""
    token = _iterations.set([0]) if _iterations.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            _iterations.reset(token)


def iterate() -> None:
    """Count an iteration. UnsupportedError if they are beyond the budget."""
    running = _iterations.get()
    if running is not None:
        running[0] += 1
        check_iterations(running[0])


def check_iterations(count: int) -> None:
    """Raise UnsupportedError for a number of iterations beyond the budget."""
    if count > MOST_ITERATIONS:
        raise UnsupportedError(
            f"it asks for {count} iterations; the budget of a loop, with the loops in it, is "
            f"{MOST_ITERATIONS} iterations"
        )
