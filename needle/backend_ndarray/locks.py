"""Locks that stay usable in a forked child."""

from __future__ import annotations

import os
import threading


def fork_safe_lock() -> threading.RLock:
    """A reentrant lock that no other thread holds while the process forks.

    A plain lock that another thread holds during the fork stays locked in the child for ever, and
    the data it guards may be half changed. os.fork takes these locks in reverse order of creation:
    a lock under which another is taken must be created later.
    """
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )
    return lock
