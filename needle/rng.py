"""The random numbers behind init, Dropout, shuffling and augmentation.

Before the first call of `manual_seed` they come from NumPy's global generator, so that
np.random.seed controls them. Afterwards they come from needle's own generators: a counter-based
generator (Philox) for tensors, with the same numbers in eager and in compiled code, and a generator
on the host for everything else. Compiled code always draws from the counter-based generator.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from .backend_ndarray import NDArray, cpu, zeros
from .backend_ndarray.arguments import count
from .backend_ndarray.locks import fork_safe_lock
from .common.state import state
from .common.user_code import user_line
from .errors import TraceError

_lock = fork_safe_lock()
_generator: np.random.Generator | None = None


class Counter:
    """The counter-based generator: an int64 array with its key and the number of the next block."""

    trace_name = "random"

    def __init__(self) -> None:
        self._made: NDArray | None = None

    @property
    def array(self) -> NDArray:
        """The array, whose key comes from NumPy's global generator unless a key was set."""
        if self._made is None:
            self.set(int(np.random.randint(0, 2**62)), 0)
        assert self._made is not None
        return self._made

    def set(self, key: int, block: int) -> None:
        """Continue at block number `block` of the stream of `key`."""
        made = self._made
        if made is None:
            made = self._made = zeros((2,), "int64", cpu())
        np.from_dlpack(made)[...] = key, block

    def numbers(self) -> tuple[int, int]:
        """Return the key, and the number of the next block."""
        key, block = np.from_dlpack(self.array)
        return int(key), int(block)


counter = Counter()


class Rows(NamedTuple):
    """The rows `first` to `end` - 1 of a batch of `total` rows."""

    first: int
    end: int
    total: int


# The rows of the batch that this process computes, if other processes compute the rest (see
# `distributed`).
rows: Rows | None = None


class _Own(threading.local):
    # The calling thread's generator, set by `using`.
    generator: np.random.Generator | None = None


_own = _Own()


def manual_seed(seed: int) -> None:
    """Seed needle's own generator, which all threads use from this call on.

    Raises TypeError or ValueError unless `seed` is an integer in 0..2**63 - 1, and TraceError while
    tracing.

    >>> ndl.manual_seed(1)
    >>> first = ndl.rand(3)
    >>> ndl.manual_seed(1)
    >>> (ndl.rand(3) == first).numpy().tolist()
    [True, True, True]
    """
    global _generator
    _refuse_in_trace("seeds the generator of random numbers")
    seed = count("manual_seed", "seed", seed, 0)
    with _lock:
        _generator = np.random.Generator(np.random.PCG64(seed))
        counter.set(seed, 0)


@contextlib.contextmanager
def using(generator: np.random.Generator) -> Iterator[None]:
    """Make the calling thread draw from `generator` in this context. Other threads are not
    affected. Raises TraceError while tracing."""
    _refuse_in_trace("draws random numbers from a generator of its own")
    before, _own.generator = _own.generator, generator
    try:
        yield
    finally:
        _own.generator = before


def get_state() -> dict[str, Any]:
    """Return the state of the generator as JSON values, for `set_state`."""
    with _lock:
        if _generator is not None:
            state_of_bits = dict(_generator.bit_generator.state)
            numbers = list(counter.numbers())
            return {"kind": "needle", "state": state_of_bits, "counter": numbers}
        state_of_numpy: Any = np.random.get_state(legacy=False)
    inner = state_of_numpy["state"]
    inner = {"key": inner["key"].tolist(), "pos": int(inner["pos"])}
    return {"kind": "numpy", "state": {**state_of_numpy, "state": inner}}


def set_state(saved: Mapping[str, Any]) -> None:
    """Restore a state from `get_state`. Raises ValueError if `saved` is not such a state,
    TraceError while tracing."""
    global _generator
    _refuse_in_trace("restores the generator of random numbers")
    try:
        kind, inner = saved["kind"], dict(saved["state"])
        with _lock:
            if kind == "needle":
                bits: Any = np.random.PCG64()
                bits.state = inner
                key, block = saved.get("counter", (0, 0))
                counter.set(int(key), int(block))
                _generator = np.random.Generator(bits)
            elif kind == "numpy":
                key = np.asarray(inner["state"]["key"], np.uint32)
                np.random.set_state({**inner, "state": {**inner["state"], "key": key}})
                _generator = None
            else:
                raise ValueError(f"unknown kind {kind!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"set_state: the state is not a generator's: {error!r}") from None


def whole_batch(shape: tuple[int, ...], axis: int = 0) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    """Return the shape to draw for a request of `shape`, and the part of the draw to return.

    If this process computes some rows of a batch, and their number divides the extent of `axis`,
    each row draws an equal part of that axis. The numbers of all rows of the batch are then drawn,
    so that each row gets the same numbers as in a process that computes the whole batch. All other
    draws are the same in each process.
    """
    if rows is None or _own.generator is not None or len(shape) <= axis:
        return shape, ()
    each, rest = divmod(shape[axis], rows.end - rows.first)
    if rest:
        return shape, ()
    drawn = (*shape[:axis], each * rows.total, *shape[axis + 1 :])
    return drawn, (*[slice(None)] * axis, slice(each * rows.first, each * rows.end))


def uniform(shape: tuple[int, ...], low: float, high: float, axis: int = 0) -> np.ndarray[Any, Any]:
    """Return float64 values from [low, high), drawn on the host. `axis` is the axis of a batch's
    rows, if the shape has one (see `whole_batch`). Raises TraceError while tracing."""
    drawn, part = whole_batch(shape, axis)
    return _draw("uniform", "uniform", low, high, drawn)[part]


def normal(shape: tuple[int, ...], mean: float, std: float) -> np.ndarray[Any, Any]:
    """Return normally distributed float64 values, drawn on the host. Raises TraceError while
    tracing."""
    drawn, part = whole_batch(shape)
    return _draw("normal", "normal", mean, std, drawn)[part]


def draws_on_the_host() -> bool:
    """Return whether NumPy draws all numbers of this thread, as it does before `manual_seed` and in
    `using`."""
    return _own.generator is not None or _generator is None


def next_blocks(count: int) -> tuple[int, int]:
    """Reserve `count` blocks of the counter-based generator; return its key and the first block."""
    with _lock:
        key, block = counter.numbers()
        counter.set(key, block + count)
    return key, block


def integers(shape: tuple[int, ...], low: int, high: int) -> np.ndarray[Any, Any]:
    """Return int64 values from low..high - 1. Raises TraceError while tracing."""
    drawn, part = whole_batch(shape)
    return _draw("integers", "randint", low, high, drawn)[part]


def permutation(count: int) -> np.ndarray[Any, Any]:
    """Return 0..count - 1 in random order."""
    return _draw("permutation", "permutation", count)


def _refuse_in_trace(what: str) -> None:
    if state.trace is not None:
        raise TraceError(
            f"tracing: {state.trace.here} {what}, which compiled code would not do at its calls: "
            f"do it outside the traced function{user_line()}"
        )


def _draw(name: str, numpy_name: str, *arguments: Any) -> np.ndarray[Any, Any]:
    """Draw with the generator's method `name`; np.random calls it `numpy_name`."""
    if state.trace is not None:
        state.trace.refuse_random(name)
    if _own.generator is not None:
        return np.asarray(getattr(_own.generator, name)(*arguments))
    with _lock:
        draw: Any = (
            getattr(np.random, numpy_name) if _generator is None else getattr(_generator, name)
        )
        return np.asarray(draw(*arguments))
