"""The random numbers behind init and Dropout.

Until `manual_seed` is called they come from NumPy's global generator, so that np.random.seed steers
them; afterwards from a generator of needle's own.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ._state import state

_lock = threading.Lock()
_generator: np.random.Generator | None = None


def manual_seed(seed: int) -> None:
    """Seeds needle's own generator, which is used from now on (by all threads)."""
    global _generator
    with _lock:
        _generator = np.random.Generator(np.random.PCG64(seed))


def uniform(shape: tuple[int, ...], low: float, high: float) -> np.ndarray[Any, Any]:
    """float64 values from [low, high). TraceError while tracing."""
    _refuse("uniform")
    with _lock:
        values: Any = (np.random if _generator is None else _generator).uniform(low, high, shape)
    return np.asarray(values)


def normal(shape: tuple[int, ...], mean: float, std: float) -> np.ndarray[Any, Any]:
    """float64 values, normally distributed. TraceError while tracing."""
    _refuse("normal")
    with _lock:
        values: Any = (np.random if _generator is None else _generator).normal(mean, std, shape)
    return np.asarray(values)


def _refuse(what: str) -> None:
    if state.trace is not None:
        state.trace.refuse_random(what)


def permutation(count: int) -> np.ndarray[Any, Any]:
    """0..count - 1 in random order."""
    _refuse("permutation")
    with _lock:
        values: Any = (np.random if _generator is None else _generator).permutation(count)
    return np.asarray(values)
