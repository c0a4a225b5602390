"""Locks that stay usable in a forked child."""

from __future__ import annotations

import os
import threading
import weakref


def fork_safe_lock() -> threading.RLock:
    """Return a reentrant lock that no other thread holds while the process forks.

    A plain lock that another thread holds during a fork stays locked in the child for ever, and the
    data it guards may be half changed. os.fork acquires these locks in reverse order of creation.
    So if a thread acquires a lock while it holds another, the held one must have been created
    later.
    """
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )
    return lock


def lock_of_one_object() -> threading.RLock:
    """Return a reentrant lock that is free in a forked child, unless the forking thread holds it.

    It is for short-lived objects: the child may find their data half changed by another thread.
    """
    lock = threading.RLock()
    _of_objects.add(lock)
    return lock


_of_objects: weakref.WeakSet[threading.RLock] = weakref.WeakSet()


def _free() -> None:
    for lock in _of_objects:
        if not lock._is_owned():  # type: ignore[attr-defined]
            lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)
