"""Locks for work that only one thread does at a time. This module uses only the standard
library."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Hashable
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

# The import registers the fork hook of `forks` before ours. Hooks before a fork run in reverse
# order, so ours runs first. While ours waits for the end of a turn, the thread whose turn it is may
# still enter `forks.loading`. While the hook of `forks` waits, no thread inside `loading` enters
# `compiling`.
from needle_runtime.process import forks  # noqa: F401

P = ParamSpec("P")
R = TypeVar("R")


class _Turn:
    """A reentrant lock for work that changes process-wide state while it runs.

    TVM's solver (Z3) sets a SIGINT handler and then restores the old one as C's `signal` does.
    After that, a signal no longer interrupts a wait for a lock, so Ctrl-C takes effect only when
    the wait is over.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        if callable(signal.getsignal(signal.SIGINT)):
            signal.siginterrupt(signal.SIGINT, True)
        self.lock.release()


# TVM's builders, parsers and tags keep unfinished work in process-wide variables, as does
# PyTorch's export. LLVM does not, so generating code needs no turn. A fork waits for the end of
# the turn, so that the child never sees unfinished work.
compiling = _Turn()

_choosing = threading.Lock()
_of_keys: WeakValueDictionary[Hashable, threading.RLock] = WeakValueDictionary()


def in_turn(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function`, wrapped so that only one thread at a time runs it or uses `compiling`."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with compiling:
            return function(*args, **kwargs)

    return called


def turn_of(key: Hashable) -> threading.RLock:
    """Return the lock of a key: the same object as long as any thread refers to it. In a forked
    child, which lacks the thread that may hold the lock, the key gets a new, free lock."""
    with _choosing:
        return _of_keys.setdefault(key, threading.RLock())


def _before_fork() -> None:
    compiling.lock.acquire()
    _choosing.acquire()


def _after_fork() -> None:
    _choosing.release()
    compiling.lock.release()


def _in_child() -> None:
    _of_keys.clear()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
