"""Create arrays from shapes, and from the memory of other libraries."""

from __future__ import annotations

from typing import Any

from .masked import refuse_masked
from .ndarray import DeviceLike, NDArray, as_device, cuda, default_device, wrap

# DLPack's device types for host memory (plain, pinned) and for CUDA memory (plain, managed).
_CPU_MEMORY, _CUDA_MEMORY = (1, 3), (2, 13)


def empty(shape: Any, dtype: Any = "float32", device: DeviceLike | None = None) -> NDArray:
    """Return an uninitialised array of this `shape` and `dtype` on `device`. Raises ValueError for
    an invalid shape, and MemoryError if it does not fit."""
    return as_device(device).empty(shape, dtype)


def full(
    shape: Any, fill_value: float, dtype: Any = "float32", device: DeviceLike | None = None
) -> NDArray:
    """Return an array of this `shape` and `dtype` on `device` with every element `fill_value`."""
    return as_device(device).full(shape, fill_value, dtype)


def zeros(shape: Any, dtype: Any = "float32", device: DeviceLike | None = None) -> NDArray:
    """Return an array of zeros of this `shape` and `dtype` on `device`."""
    return full(shape, 0, dtype, device)


def ones(shape: Any, dtype: Any = "float32", device: DeviceLike | None = None) -> NDArray:
    """Return an array of ones of this `shape` and `dtype` on `device`."""
    return full(shape, 1, dtype, device)


def from_dlpack(source: Any, device: DeviceLike | None = None) -> NDArray:
    """Return an array that shares the memory of `source` (anything with __dlpack__), on its device.

    Raises TypeError if `source` lacks the protocol, has a mask, or has an element type that needle
    does not store; BufferError if its memory is read-only, not on `device`, or on an unusable
    device.
    """
    if not (hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__")):
        raise TypeError(f"from_dlpack: {type(source).__name__} does not support DLPack")
    refuse_masked(source, "from_dlpack")
    kind, index = (int(number) for number in source.__dlpack_device__())
    if kind not in _CPU_MEMORY and kind not in _CUDA_MEMORY:
        raise BufferError(f"from_dlpack: DLPack device type {kind} is not CPU or CUDA memory")
    here = cuda(index) if kind in _CUDA_MEMORY else default_device()
    device = as_device(device, here)
    if (device.name == "cuda") != (here.name == "cuda") or device.index != here.index:
        raise BufferError(f"from_dlpack: the memory is on {here}, not on {device}")
    if not device.enabled():
        raise BufferError(f"from_dlpack: the memory is on {device}, which cannot be used")
    # Order needle's work on the memory after the producer's.
    stream = {"stream": device.kernels.current_stream()} if device.name == "cuda" else {}
    try:
        capsule = source.__dlpack__(max_version=(1, 0), **stream)
    except TypeError:  # a producer older than DLPack 1.0
        capsule = source.__dlpack__(**stream)
    return wrap(device, device.kernels.from_dlpack(capsule))


def where(condition: NDArray, a: Any, b: Any) -> NDArray:
    """Return the elements of `a` where `condition` is true, and of `b` elsewhere. All three
    broadcast."""
    x, y = condition.operand(a), condition.operand(b)
    return wrap(condition.device, condition.device.kernels.where(condition.view, x, y))
