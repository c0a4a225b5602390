"""No warnings of PyTorch's internals, in whatever thread they arise."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

from ..backend_ndarray.locks import lock_of_one_object

_lock = lock_of_one_object()
_threads = 0  # that are inside
_filters = contextlib.ExitStack()


@contextlib.contextmanager
def no_warnings() -> Iterator[None]:
    """Context in which warnings are ignored.

    Filters belong to the process, and `warnings.catch_warnings` puts back those that it found: of
    two threads inside, the first to leave would show the other's warnings, and the second would
    leave them ignored for good. Here the last one to leave puts them back.
    """
    global _threads
    with _lock:
        if not _threads:
            _filters.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
        _threads += 1
    try:
        yield
    finally:
        with _lock:
            _threads -= 1
            if not _threads:
                _filters.close()
