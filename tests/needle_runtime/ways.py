"""The two ways of a call: through the native caller, and through Python."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle_runtime.calls import Calls, _no_caller


class Counting:
    """A native caller that counts the calls it serves."""

    def __init__(self, caller: Any) -> None:
        self.caller, self.served = caller, 0

    def __call__(self, *args: Any) -> Any:
        result = self.caller(*args)
        self.served += result is not NotImplemented
        return result


@contextlib.contextmanager
def native_way(callee: Any) -> Iterator[Counting]:
    """Calls of `callee` in this context count those that the native caller serves."""
    calls = callee._calls
    caller = calls._local.caller = Counting(calls._new_caller())
    try:
        yield caller
    finally:
        del calls._local.caller


@contextlib.contextmanager
def python_way(callee: Any) -> Iterator[None]:
    """Calls of `callee` in this context go through Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Calls, "_new_caller", lambda self: _no_caller)
        callee._calls._local = threading.local()
        yield
    callee._calls._local = threading.local()


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the error it raises, in a form that can be compared."""
    try:
        return described(call())
    except Exception as error:
        return type(error), str(error)


def described(result: Any) -> Any:
    """Types, structure and bits of a result."""
    if isinstance(result, dict):
        return {name: described(each) for name, each in result.items()}
    if isinstance(result, (list, tuple)):
        return type(result), [described(each) for each in result]
    if isinstance(result, ndl.Tensor):
        about = type(result), result.device, result.requires_grad, result.is_leaf
        return about, described(result.numpy())
    if isinstance(result, np.ndarray):
        flags = result.flags
        about = flags.writeable, flags.c_contiguous, flags.f_contiguous, flags.aligned
        return type(result), result.dtype, result.shape, about, result.tobytes()
    return result


def both_ways(callee: Any, *args: Any, **kwargs: Any) -> tuple[bool, Any]:
    """Whether the native caller serves a call, and its outcome, which is the same both ways."""
    with native_way(callee) as caller:
        found = outcome(lambda: callee(*args, **kwargs))
    with python_way(callee):
        expected = outcome(lambda: callee(*args, **kwargs))
    assert found == expected, (found, expected)
    return bool(caller.served), found


def compiled(function: Any, *inputs: Any, stage: str = "noopt") -> tuple[Any, Any]:
    """The executable of a function, and its program: Tensors and NumPy arrays come of calls."""
    made = needle_tvm.compile(function, *inputs, stage=stage)
    return made, made.program


def like(array: Any, offset: int = 0) -> np.ndarray[Any, Any]:
    """A copy of an array whose memory begins `offset` bytes past a multiple of 64."""
    array = np.asarray(array)
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    copy = np.ndarray(array.shape, array.dtype, memory, start)
    copy[...] = array
    return copy


def drawn(*shape: int, dtype: Any = "float32", seed: int = 0) -> np.ndarray[Any, Any]:
    """An aligned array of small numbers."""
    values = np.random.default_rng(seed).integers(-20, 20, shape) / 4
    return like((values > 0 if dtype == "bool" else values).astype(dtype))


def arrays_in(result: Any) -> list[np.ndarray[Any, Any]]:
    """NumPy arrays over the memory of all arrays in a result."""
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        return [array for each in result for array in arrays_in(each)]
    return [result if isinstance(result, np.ndarray) else np.from_dlpack(result)]


class _Heap(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks "
        "keepcost".split()
    )


def heap() -> int:
    """The bytes that C code has allocated and not freed, in all threads."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("this C library does not count its allocations")
    library.mallinfo2.restype = _Heap
    now = library.mallinfo2()
    return int(now.uordblks + now.hblkhd)
