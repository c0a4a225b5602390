"""Locks that a forked child can still take."""

from __future__ import annotations

import os
import threading


def fork_safe_lock() -> threading.RLock:
    """A reentrant lock that no other thread holds while the process forks.

    A plain lock that another thread holds at that moment is locked in the child for ever, and what
    it guards may be half changed. os.fork takes these locks in the reverse order of their making:
    one under which another is taken must be made later.
    """
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )
    return lock
