"""Silence the warnings of PyTorch's internals in all threads."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

from ..backend_ndarray.locks import lock_of_one_object

_lock = lock_of_one_object()
_threads = 0  # threads inside the context
_filters = contextlib.ExitStack()


@contextlib.contextmanager
def no_warnings() -> Iterator[None]:
    """Ignore warnings inside the context.

    Warning filters belong to the process, and `warnings.catch_warnings` restores the filters that
    were set when it was entered. With two threads inside, the first to leave would show the
    second's warnings, and the second would leave warnings ignored for good. Here the last thread to
    leave restores the filters.
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
