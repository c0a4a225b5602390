"""Keep the process from forking while its threads do certain work. This module uses only the
standard library.

A child has only the thread that forked. Locks that other threads held stay locked in it for ever:
Python's import locks, and locks in the C library, TVM and needle.
"""

from __future__ import annotations

# logging registers fork hooks of its own. If tvm_ffi imported it later, it might register them
# while a fork waits in our first hook, and would then release a lock that was not acquired.
import logging  # noqa: F401
import os
import threading


class Unforked:
    """A context manager for any number of threads at once; `os.fork` waits until all have left.

    Reentrant. A thread that forks inside waits only for the others.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0  # threads
        self._forking = 0  # threads that wait to fork; meanwhile no other thread enters
        self._own = threading.local()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before,
                after_in_parent=self._changed.release,
                after_in_child=self._in_child,
            )

    @property
    def _depth(self) -> int:
        return int(getattr(self._own, "depth", 0))

    def __enter__(self) -> None:
        if not self._depth:
            with self._changed:
                self._changed.wait_for(lambda: not self._forking)
                self._inside += 1
        self._own.depth = self._depth + 1

    def __exit__(self, *error: object) -> None:
        self._own.depth = self._depth - 1
        if not self._depth:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def _before(self) -> None:
        """Wait for the other threads, and hold the condition's lock until the fork is done, so
        that no thread enters."""
        self._changed.acquire()
        self._forking += 1
        try:
            self._changed.wait_for(lambda: self._inside <= bool(self._depth))
        finally:
            self._forking -= 1
            self._changed.notify_all()

    def _in_child(self) -> None:
        self._inside, self._forking = int(bool(self._depth)), 0
        self._changed.release()


loading = Unforked()  # for any work that brings an artifact's code into the process
