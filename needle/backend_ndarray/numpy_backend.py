"""The reference device: every kernel of the device interface, written with NumPy.

It aims to be obviously correct rather than fast; the native modules are tested against it. The
interface is a module of functions over `View`s. A kernel allocates its result, accepts any strides
(including zero and negative ones), reads its inputs before it writes, and raises its errors before
it changes anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import numpy_convolution, numpy_layers
from .dtypes import (
    FLOATING,
    astype,
    compute_dtype,
    dtype_name,
    is_half,
)
from .indexing import compact_strides
from .numpy_elementwise import *  # noqa: F403  (kernels of this module's interface)
from .numpy_elementwise import (
    Array,
    Scalar,
    narrow,
    operands,
    own,
    scalar,
    wide,
)
from .numpy_indexing import along, places, put
from .numpy_moves import *  # noqa: F403  (more kernels)
from .numpy_view import Buffer, Counters, View, check_shape

Shape = Sequence[int]


def empty(shape: Shape, dtype: str) -> View:
    """Return an uninitialised array. Raises MemoryError if it does not fit, and ValueError for an
    invalid shape."""
    shape = tuple(shape)
    check_shape(shape, np.dtype(dtype).itemsize)
    base = np.empty(math.prod(shape), dtype_name(dtype))
    return View(Buffer(base), shape, compact_strides(shape), 0)


def as_strided(view: View, shape: Shape, strides: Shape, offset: int) -> View:
    """Return another view of the same buffer, without a copy."""
    return View(view.buffer, shape, strides, int(offset))


def from_numpy(x: Array) -> View:
    return own(x)


def to_numpy(view: View) -> Array:
    return view.np.copy(order="C")


def copy(src: View, dst: View) -> None:
    """Assign dst[...] = src with broadcasting and a cast. src and dst may overlap."""
    with np.errstate(all="ignore"):
        dst.np[...] = astype(np.broadcast_to(src.np, dst.shape), dst.dtype)
    dst.buffer.mark_written()


def fill(dst: View, value: Scalar) -> None:
    with np.errstate(all="ignore"):
        dst.np[...] = scalar(value, dst.dtype)
    dst.buffer.mark_written()


def cast(x: View, dtype: str) -> View:
    """Return a compact copy in another dtype (always a copy)."""
    with np.errstate(all="ignore"):
        return own(astype(x.np, dtype_name(dtype)))


def compact(x: View) -> View:
    """Return x itself if it is row-major, else a row-major copy."""
    return x if x.is_compact else own(x.np)


def where(condition: View, a: View | Scalar, b: View | Scalar) -> View:
    """Return a where condition (of any dtype) is non-zero, else b."""
    with np.errstate(all="ignore"):
        x, y, dtype = operands(a, b)
        return own(narrow(np.where(astype(condition.np, "bool"), x, y), dtype))


def _reduce(fn: Callable[..., Any], accumulate: bool) -> Callable[[View, Shape, bool], View]:
    def kernel(x: View, axes: Shape, keepdims: bool) -> View:
        with np.errstate(all="ignore"):
            if not accumulate:
                return own(narrow(fn(wide(x.np), axis=tuple(axes), keepdims=keepdims), x.dtype))
            # A float64 accumulator keeps float32 sums over long axes accurate.
            sums, dtype = ("float64", x.dtype) if x.dtype in FLOATING else ("int64", "int64")
            total = fn(wide(x.np), axis=tuple(axes), keepdims=keepdims, dtype=sums)
            return own(astype(total, dtype))

    return kernel


sum = _reduce(np.sum, accumulate=True)
prod = _reduce(np.prod, accumulate=True)
max = _reduce(np.max, accumulate=False)
min = _reduce(np.min, accumulate=False)


def argmax(x: View, axis: int, keepdims: bool) -> View:
    """Return the int64 index of the first maximum along one axis. NaN counts as the maximum."""
    return own(np.argmax(wide(x.np), axis=axis, keepdims=keepdims).astype("int64"))


def argmin(x: View, axis: int, keepdims: bool) -> View:
    """Return the int64 index of the first minimum along one axis. NaN counts as the minimum."""
    return own(np.argmin(wide(x.np), axis=axis, keepdims=keepdims).astype("int64"))


def matmul(a: View, b: View) -> View:
    """Multiply (..., m, k) @ (..., k, n) -> (..., m, n). Batch axes broadcast; an operand with one
    axis is a vector."""
    if not a.ndim or not b.ndim:
        raise ValueError(f"matmul: 0-d operand ({a.shape} @ {b.shape})")
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else -1]:
        raise ValueError(f"matmul: shapes {a.shape} and {b.shape} do not match (k differs)")
    with np.errstate(all="ignore"):
        x, y, dtype = operands(a, b)
        return own(narrow(np.matmul(x, y), dtype))


def _convolution(fn: Callable[..., Array]) -> Callable[..., View]:
    def kernel(a: View, b: View, *window: Shape) -> View:
        if a.ndim != 4 or b.ndim != 4 or a.dtype != b.dtype or a.dtype not in FLOATING:
            raise ValueError(
                f"{fn.__name__}: {a.dtype} {a.shape} and {b.dtype} {b.shape} do not match"
            )
        with np.errstate(all="ignore"):
            return own(fn(a.np, b.np, *window))

    return kernel


conv2d = _convolution(numpy_convolution.conv2d)
conv2d_input = _convolution(numpy_convolution.conv2d_input)
conv2d_weight = _convolution(numpy_convolution.conv2d_weight)


def _layer(fn: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[View, ...]]:
    def kernel(*arguments: View | float | None) -> tuple[View, ...]:
        given = [a.np if isinstance(a, View) else a for a in arguments]
        with np.errstate(all="ignore"):
            return tuple(own(part) for part in fn(*given))

    return kernel


batch_norm = _layer(numpy_layers.batch_norm)
batch_norm_grad = _layer(numpy_layers.batch_norm_grad)
lstm_gates = _layer(numpy_layers.lstm_gates)
lstm_gates_grad = _layer(numpy_layers.lstm_gates_grad)
lstm_sequence = _layer(numpy_layers.lstm_sequence)
lstm_sequence_grad = _layer(numpy_layers.lstm_sequence_grad)


def gather(x: View, index: View, axis: int) -> View:
    """Return np.take(x, index, axis), whose shape is x.shape[:axis] + index.shape + x.shape[axis +
    1:]."""
    return own(np.take(x.np, places(index.np, x.shape[axis], "gather"), axis=axis))


def _at(dst: View, index: View, src: View, axis: int, what: str) -> tuple[Any, Array]:
    where = (*[slice(None)] * axis, places(index.np, dst.shape[axis], what))
    shape = (*dst.shape[:axis], *index.shape, *dst.shape[axis + 1 :])
    if np.broadcast_shapes(src.shape, shape) != shape:
        raise ValueError(f"{what}: source {src.shape} does not broadcast to {shape}")
    with np.errstate(all="ignore"):
        return where, astype(np.broadcast_to(src.np, shape), dst.dtype)


def scatter(dst: View, index: View, src: View, axis: int) -> None:
    """Assign dst[..., index, ...] = src in place. If indices repeat, the last one wins."""
    where, values = _at(dst, index, src, axis, "scatter")
    dst.np[where] = values
    dst.buffer.mark_written()


def scatter_add(dst: View, index: View, src: View, axis: int) -> None:
    """Compute dst[..., index, ...] += src in place. Repeated indices accumulate, half precision in
    float32."""
    where, values = _at(dst, index, src, axis, "scatter_add")
    if not is_half(dst.dtype):
        np.add.at(dst.np, where, values)
    else:
        with np.errstate(all="ignore"):
            dst.np[...] = narrow(put(wide(dst.np), where, wide(values), "add"), dst.dtype)
    dst.buffer.mark_written()


def take_along(x: View, index: View, axis: int) -> View:
    """Return out[..., j, ...] = x[..., index[..., j, ...], ...] along the axis."""
    return own(x.np[along(x.np, index.np, axis, "take_along")])


def put_along(x: View, index: View, src: View, axis: int, how: str) -> View:
    """Return a copy of x in which the elements at the positions `index` along the axis are combined
    with the elements of src: `how` is set, add, mul, max or min. src broadcasts to the shape of the
    index."""
    where = along(x.np, index.np, axis, "put_along")
    with np.errstate(all="ignore"):
        values = np.broadcast_to(astype(src.np, x.dtype), index.shape)
        return own(narrow(put(wide(x.np), where, wide(values), how), x.dtype))


def _check_same(what: str, param: View, grad: View, *states: View | None) -> None:
    if param.dtype not in FLOATING:
        raise TypeError(f"{what}: parameters must be floating point, not {param.dtype}")
    kept = compute_dtype(param.dtype)
    for other, dtype in ((grad, param.dtype), *((state, kept) for state in states)):
        if other is not None and (other.shape, other.dtype) != (param.shape, dtype):
            raise ValueError(
                f"{what}: {other.dtype} {other.shape} given, but a parameter of {param.dtype} "
                f"{param.shape} takes {dtype} {param.shape}"
            )


def _decayed(g: Any, p: Any, weight_decay: float) -> Any:
    return g + p.dtype.type(weight_decay) * p if weight_decay else g  # 0 * inf would be NaN


def sgd_step(
    param: View,
    grad: View,
    velocity: View | None,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
) -> None:
    """Update in place: g = grad + weight_decay * param; v = momentum * v + (1 - dampening) * g;
    param -= lr * v (v = g without a velocity buffer). For a half-precision parameter, v is
    float32."""
    _check_same("sgd_step", param, grad, velocity)
    p = wide(param.np)
    t = p.dtype.type
    g = _decayed(wide(grad.np), p, weight_decay)
    if velocity is not None:
        velocity.np[...] = t(momentum) * velocity.np + t(1 - dampening) * g
        velocity.buffer.mark_written()
        g = velocity.np
    param.np[...] = narrow(p - t(lr) * g, param.dtype)
    param.buffer.mark_written()


def adam_step(
    param: View,
    grad: View,
    m: View,
    v: View,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    correction1: float,
    correction2: float,
    decoupled: bool,
) -> None:
    """Update in place: m and v are moving averages of g and g * g; param -= lr * (m / correction1)
    / (sqrt(v / correction2) + eps).

    Weight decay is added to the gradient or, if `decoupled` (AdamW), subtracted from the parameter.
    For a half-precision parameter, m and v are float32.
    """
    _check_same("adam_step", param, grad, m, v)
    g, p = wide(grad.np), wide(param.np)
    t = p.dtype.type
    if decoupled:
        p = p * t(1 - lr * weight_decay)
    else:
        g = _decayed(g, p, weight_decay)
    m.np[...] = t(beta1) * m.np + t(1 - beta1) * g
    v.np[...] = t(beta2) * v.np + t(1 - beta2) * g * g
    update = (m.np / t(correction1)) / (np.sqrt(v.np / t(correction2)) + t(eps))
    param.np[...] = narrow(p - t(lr) * update, param.dtype)
    for written in (param, m, v):
        written.buffer.mark_written()


def to_dlpack(x: View, versioned: bool) -> Any:
    """Return a DLPack capsule that keeps the memory alive."""
    return x.np.__dlpack__(max_version=(1, 0)) if versioned else x.np.__dlpack__()


class _Exporter:
    """A wrapper around a capsule, because np.from_dlpack does not take bare capsules."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def from_dlpack(capsule: Any) -> View:
    """Return a view of foreign memory if it is writable and contiguous, else a copy."""
    x = np.from_dlpack(_Exporter(capsule))
    dtype_name(x.dtype)
    if not (x.flags.writeable and x.flags.c_contiguous):
        return own(x)
    return View(Buffer(x.reshape(-1), foreign=True), x.shape, compact_strides(x.shape), 0)


def mark_written(*views: View) -> None:
    """Count one in-place write to each of `views`, which other code has written to."""
    for view in views:
        view.buffer.mark_written()


def writes() -> int:
    """Return the number of in-place writes so far, to any memory."""
    return Counters.writes


def memory_allocated() -> int:
    """Return the number of bytes of all live arrays."""
    return Counters.live


def max_memory_allocated() -> int:
    """Return the peak of `memory_allocated` since the program started or the peak was reset."""
    return Counters.peak


def reset_peak_memory() -> None:
    with Counters.lock:
        Counters.peak = Counters.live


def memory_cached() -> int:
    """Return 0, because NumPy caches no memory."""
    return 0


def empty_cache() -> None:
    pass


def set_num_threads(_: int) -> None:
    """Do nothing, because NumPy manages its own threads."""


def get_num_threads() -> int:
    return 1


def synchronize() -> None:
    """Do nothing, because this device runs nothing asynchronously."""
