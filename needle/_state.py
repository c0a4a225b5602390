"""What the current thread is doing: recording gradients or not, tracing or not."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from .trace import Trace

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


class _State(threading.local):
    # Class attributes are the defaults of every thread.
    grad: bool = True
    trace: Trace | None = None
    freeing: list[Any] | None = None  # nodes waiting to be let go (see Node.__del__)


state = _State()

_replacements = itertools.count(1)
_last = [0]


def replaced() -> int:
    """A number that is another one whenever a tensor's value, or an attribute of a module that may
    hold tensors, has been replaced."""
    return _last[0]


def note_replaced() -> None:
    """To be called after that has been done, by any thread."""
    _last[0] = next(_replacements)


def call_recording(recording: bool, fn: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """What `fn` returns, called while gradients are recorded on this thread, or are not.

    An interrupt (Ctrl-C) leaves the mode as it was whenever it comes: Python looks for one where a
    function begins, as a context manager's `__exit__` does, but not within `finally`.
    """
    previous = state.grad
    try:
        state.grad = recording
        return fn(*args, **kwargs)
    finally:
        state.grad = previous


class _GradMode:
    """Sets whether gradients are recorded on this thread; context manager and decorator."""

    __slots__ = ("_previous",)
    enabled: bool

    def __init__(self) -> None:
        self._previous: list[bool] = []  # a stack: one object may be entered more than once

    def __enter__(self) -> None:
        self._previous.append(state.grad)
        state.grad = self.enabled

    def __exit__(self, *_: object) -> None:
        state.grad = self._previous.pop()

    def __call__(self, fn: F) -> F:
        recording = self.enabled

        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return call_recording(recording, fn, *args, **kwargs)

        return cast(F, wrapper)


class no_grad(_GradMode):
    """Inside, ops record no graph: results do not require a gradient. Holds for this thread."""

    enabled = False


class enable_grad(_GradMode):
    """Inside, ops record again, also within `no_grad`. Holds for this thread."""

    enabled = True


def is_grad_enabled() -> bool:
    """Whether ops on this thread record what their gradients need."""
    return state.grad
