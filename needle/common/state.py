"""The state of the current thread: whether it records gradients, and its trace."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


class Recorder(Protocol):
    """The part of a trace's interface that ops, tensors and modules use; see
    `needle.trace.Trace`."""

    has_dims: bool
    recorded: int
    records_writes: bool

    @property
    def here(self) -> str: ...
    @property
    def where(self) -> str: ...
    def apply(self, op: Any, inputs: tuple[Any, ...]) -> Any: ...
    def leaf(self, tensor: Any) -> Any: ...
    def check_read(self, tensor: Any) -> None: ...
    def write(self, tensor: Any, value: Any, replaces: bool = False) -> bool: ...
    def refuse_write(self, tensor: Any) -> None: ...
    def overwritten(self, node: Any, name: str) -> None: ...

    def owner(self, tensor: Any) -> Any: ...
    def set_requires_grad(self, tensor: Any, value: bool) -> None: ...
    def assign(self, module: Any, name: str, value: Any) -> None: ...
    def array(self, owner: Any, name: str, find: Callable[[], Any]) -> Any: ...
    def name_of(self, tensor: Any) -> str | None: ...
    def on_failure(self, undo: Callable[[], object]) -> None: ...
    def at_each_call(self, do: Callable[[], None], feeds: bool = False) -> int: ...
    def guard(self, holds: Callable[[], bool], always: bool = False) -> None: ...
    def refuse_random(self, what: str) -> None: ...
    def entered(self, module: Any) -> AbstractContextManager[None]: ...
    def within(self, path: str) -> AbstractContextManager[None]: ...


class Caster(Protocol):
    """The part of the interface of `needle.autocast` that `apply` uses."""

    def cast(self, op: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]: ...
    def lowered(self, inputs: Iterable[Any]) -> tuple[Any, ...]: ...


class _State(threading.local):
    # Each thread starts with the class attributes as defaults.
    grad: bool = True
    trace: Recorder | None = None
    freeing: list[Any] | None = None  # nodes to be freed (see Node.__del__)
    recorded: Any = None  # the record of ops for `needle.checkpoint`
    accumulating: bool = False  # whether a backward pass is adding to the `grad` of leaves
    recomputing: bool = False  # whether `needle.checkpoint` is running a block again
    autocast: Caster | None = None


state = _State()

_replacements = itertools.count(1)
# Its only element changes whenever a tensor's value or a module's attribute is replaced, or a
# tensor begins or ceases to require a gradient.
last_replacement = [0]


def note_replaced() -> None:
    """Change `last_replacement`. Any thread that replaces a value calls this afterwards."""
    last_replacement[0] = next(_replacements)


_gradients = itertools.count(1)
# Its only element changes whenever a leaf gets a gradient outside of traces.
last_gradient = [0]


def note_gradient() -> None:
    """Change `last_gradient`. Any thread that gives a leaf a gradient calls this afterwards."""
    last_gradient[0] = next(_gradients)


def call_recording(recording: bool, fn: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Call `fn` with gradient recording on this thread switched on or off, and return its result.

    An interrupt (Ctrl-C) never leaves the mode changed: Python checks for interrupts when a
    function such as a context manager's `__exit__` begins, but not inside this `finally`.
    """
    previous = state.grad
    try:
        state.grad = recording
        return fn(*args, **kwargs)
    finally:
        state.grad = previous


class _GradMode:
    """A context manager and decorator that sets whether this thread records gradients."""

    __slots__ = ("_previous", "enabled")
    enabled: bool

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._previous: list[bool] = []  # a stack: an object may be entered more than once

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


class _FixedMode(_GradMode):
    """A gradient mode that is fixed by its class. The class itself may also decorate a function."""

    __slots__ = ()
    _recording: bool

    def __new__(cls, fn: Any = None) -> Any:
        mode = object.__new__(cls)
        if fn is None:
            return mode
        _GradMode.__init__(mode, cls._recording)
        return mode(fn)

    def __init__(self) -> None:
        super().__init__(self._recording)


class no_grad(_FixedMode):
    """A context in which ops on this thread record no graph; their results require no gradient.

    It also decorates a function `fn`: `@ndl.no_grad()` or `@ndl.no_grad`.

    >>> x = ndl.Tensor([1.0])
    >>> with ndl.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    __slots__ = ()
    _recording = False


class enable_grad(_FixedMode):
    """A context in which ops on this thread record their graph, even within `no_grad`. It also
    decorates a function `fn`."""

    __slots__ = ()
    _recording = True


class inference_mode(_GradMode):
    """PyTorch's name for `no_grad`; if `mode` is False, for `enable_grad`. Results are ordinary
    tensors, which later code may use in any way. It also decorates a function:
    `@ndl.inference_mode()` or `@ndl.inference_mode`."""

    __slots__ = ()

    def __new__(cls, mode: Any = True) -> Any:
        made = object.__new__(cls)
        if not callable(mode):
            return made
        _GradMode.__init__(made, False)
        return made(mode)

    def __init__(self, mode: bool = True) -> None:
        super().__init__(not _checked_mode("inference_mode", mode))


class set_grad_enabled(_GradMode):
    """Switch the recording of gradients on this thread on (`mode` True) or off (`mode` False). A
    `with` block restores the previous mode at its end; a decorator affects only the function.

    >>> with ndl.set_grad_enabled(False):
    ...     y = ndl.Tensor([1.0]) * 2
    >>> y.requires_grad, ndl.is_grad_enabled()
    (False, True)
    """

    __slots__ = ("_before",)

    def __init__(self, mode: bool) -> None:
        super().__init__(_checked_mode("set_grad_enabled", mode))
        self._before = state.grad
        state.grad = self.enabled

    def __enter__(self) -> None:
        self._previous.append(self._before)
        state.grad = self.enabled

    def __call__(self, fn: F) -> F:
        state.grad = self._before
        return super().__call__(fn)


def _checked_mode(owner: str, mode: Any) -> bool:
    if not isinstance(mode, bool):
        raise TypeError(f"{owner}: mode {mode!r} is a {type(mode).__name__}, not a bool")
    return mode


def is_grad_enabled() -> bool:
    """Return whether ops on this thread record their graph."""
    return state.grad
