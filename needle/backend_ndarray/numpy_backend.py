"""The reference device: every kernel of the device interface, written with NumPy.

It is meant to be obviously right rather than fast; the native modules are tested against it. The
interface is a module of functions over `View`s. A kernel allocates its result, takes any strides
(zero and negative too), reads its inputs before it writes, and raises before anything changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .dtypes import FLOAT_OF_INTEGER, FLOATING, dtype_name
from .indexing import compact_strides
from .numpy_view import View, check_shape

Scalar = bool | int | float
Shape = Sequence[int]
Array = np.ndarray[Any, Any]


def _own(x: Any) -> View:
    """A view over a compact array that nothing else refers to."""
    x = np.asarray(x)
    x = np.array(x, dtype=dtype_name(x.dtype), order="C", copy=True)
    return View(x.reshape(-1), x.shape, compact_strides(x.shape), 0)


def empty(shape: Shape, dtype: str) -> View:
    """Uninitialised. MemoryError when the memory cannot be had, ValueError for a bad shape."""
    shape = tuple(shape)
    check_shape(shape, np.dtype(dtype).itemsize)
    base = np.empty(math.prod(shape), dtype_name(dtype))
    return View(base, shape, compact_strides(shape), 0)


def as_strided(view: View, shape: Shape, strides: Shape, offset: int) -> View:
    """Another view of the same buffer (no copy)."""
    return View(view.base, shape, strides, int(offset))


def from_numpy(x: Array) -> View:
    return _own(x)


def to_numpy(view: View) -> Array:
    return view.np.copy(order="C")


def copy(src: View, dst: View) -> None:
    """dst[...] = src, broadcast and cast; right when the two overlap."""
    with np.errstate(all="ignore"):
        dst.np[...] = np.broadcast_to(src.np, dst.shape).astype(dst.dtype)


def fill(dst: View, value: Scalar) -> None:
    with np.errstate(all="ignore"):
        dst.np[...] = np.full((), value, dtype=dst.dtype)


def cast(x: View, dtype: str) -> View:
    """A compact copy of another dtype (always a copy)."""
    with np.errstate(all="ignore"):
        return _own(x.np.astype(dtype_name(dtype)))


def compact(x: View) -> View:
    """x itself when it is row-major, else a row-major copy."""
    return x if x.is_compact else _own(x.np)


def _floating(x: Any) -> Any:
    """Operand of a float-valued function: integers and bools are computed in float64."""
    return x.astype(FLOAT_OF_INTEGER) if x.dtype.name not in FLOATING else x


def _unary(fn: Callable[[Any], Any], floating: bool = False) -> Callable[[View], View]:
    def kernel(x: View) -> View:
        operand = _floating(x.np) if floating else x.np
        with np.errstate(all="ignore"):
            return _own(fn(operand))

    return kernel


def _stable_sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def _erf(x: Any) -> Any:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x.astype("float64"))).astype(x.dtype)


negative = _unary(np.negative)
abs = _unary(np.absolute)
sign = _unary(np.sign)
relu = _unary(lambda x: np.maximum(x, np.zeros((), x.dtype)))
square = _unary(np.square)
floor = _unary(np.floor)
ceil = _unary(np.ceil)
exp = _unary(np.exp, floating=True)
expm1 = _unary(np.expm1, floating=True)
log = _unary(np.log, floating=True)
log1p = _unary(np.log1p, floating=True)
sin = _unary(np.sin, floating=True)
cos = _unary(np.cos, floating=True)
tanh = _unary(np.tanh, floating=True)
sqrt = _unary(np.sqrt, floating=True)
rsqrt = _unary(lambda x: 1 / np.sqrt(x), floating=True)
reciprocal = _unary(lambda x: 1 / x, floating=True)
sigmoid = _unary(_stable_sigmoid, floating=True)
erf = _unary(_erf, floating=True)
logical_not = _unary(np.logical_not)
isnan = _unary(np.isnan)
isfinite = _unary(np.isfinite)


def _operands(a: View | Scalar, b: View | Scalar) -> tuple[Any, Any]:
    return a.np if isinstance(a, View) else a, b.np if isinstance(b, View) else b


def _binary(fn: Callable[[Any, Any], Any]) -> Callable[[View | Scalar, View | Scalar], View]:
    def kernel(a: View | Scalar, b: View | Scalar) -> View:
        x, y = _operands(a, b)
        with np.errstate(all="ignore"):
            return _own(fn(x, y))

    return kernel


add = _binary(np.add)
subtract = _binary(np.subtract)
multiply = _binary(np.multiply)
divide = _binary(np.true_divide)
power = _binary(np.power)
maximum = _binary(np.maximum)
minimum = _binary(np.minimum)
equal = _binary(np.equal)
not_equal = _binary(np.not_equal)
less = _binary(np.less)
less_equal = _binary(np.less_equal)
greater = _binary(np.greater)
greater_equal = _binary(np.greater_equal)
logical_and = _binary(np.logical_and)
logical_or = _binary(np.logical_or)


def where(condition: View, a: View | Scalar, b: View | Scalar) -> View:
    """a where condition (bool, or any dtype: non-zero is true) holds, else b."""
    x, y = _operands(a, b)
    return _own(np.where(condition.np.astype(bool), x, y))


def _reduce(fn: Callable[..., Any], accumulate: bool) -> Callable[[View, Shape, bool], View]:
    def kernel(x: View, axes: Shape, keepdims: bool) -> View:
        with np.errstate(all="ignore"):
            if not accumulate:
                return _own(fn(x.np, axis=tuple(axes), keepdims=keepdims))
            # Wide accumulator: float32 sums over long axes keep float32 accuracy.
            wide, narrow = ("float64", x.dtype) if x.dtype in FLOATING else ("int64", "int64")
            return _own(fn(x.np, axis=tuple(axes), keepdims=keepdims, dtype=wide).astype(narrow))

    return kernel


sum = _reduce(np.sum, accumulate=True)
prod = _reduce(np.prod, accumulate=True)
max = _reduce(np.max, accumulate=False)
min = _reduce(np.min, accumulate=False)


def argmax(x: View, axis: int, keepdims: bool) -> View:
    """int64 index of the first maximum along one axis; NaN counts as the maximum."""
    return _own(np.argmax(x.np, axis=axis, keepdims=keepdims).astype("int64"))


def argmin(x: View, axis: int, keepdims: bool) -> View:
    """int64 index of the first minimum along one axis; NaN counts as the minimum."""
    return _own(np.argmin(x.np, axis=axis, keepdims=keepdims).astype("int64"))


def matmul(a: View, b: View) -> View:
    """(..., m, k) @ (..., k, n) -> (..., m, n), batch extents broadcast."""
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul: shapes {a.shape} and {b.shape} do not match (k of a, b differ)")
    with np.errstate(all="ignore"):
        return _own(np.matmul(a.np, b.np))


def _index(index: View, extent: int, what: str) -> Array:
    if index.dtype not in ("int32", "int64"):
        raise TypeError(f"{what}: index must be int32 or int64, not {index.dtype}")
    bad = index.np[(index.np < -extent) | (index.np >= extent)]
    if bad.size:
        raise IndexError(f"{what}: index {bad[0]} is out of bounds for an axis of extent {extent}")
    return np.where(index.np < 0, index.np + extent, index.np)


def gather(x: View, index: View, axis: int) -> View:
    """np.take(x, index, axis): shape x.shape[:axis] + index.shape + x.shape[axis + 1:]."""
    return _own(np.take(x.np, _index(index, x.shape[axis], "gather"), axis=axis))


def _at(dst: View, index: View, src: View, axis: int, what: str) -> tuple[Any, Array]:
    where = (*[slice(None)] * axis, _index(index, dst.shape[axis], what))
    shape = (*dst.shape[:axis], *index.shape, *dst.shape[axis + 1 :])
    if np.broadcast_shapes(src.shape, shape) != shape:
        raise ValueError(f"{what}: source {src.shape} does not broadcast to {shape}")
    with np.errstate(all="ignore"):
        return where, np.broadcast_to(src.np, shape).astype(dst.dtype)


def scatter(dst: View, index: View, src: View, axis: int) -> None:
    """dst[..., index, ...] = src in place; of repeated indices the last one stands."""
    where, values = _at(dst, index, src, axis, "scatter")
    dst.np[where] = values


def scatter_add(dst: View, index: View, src: View, axis: int) -> None:
    """dst[..., index, ...] += src in place; repeated indices accumulate."""
    where, values = _at(dst, index, src, axis, "scatter_add")
    np.add.at(dst.np, where, values)


def _check_same(what: str, first: View, *rest: View | None) -> None:
    if first.dtype not in FLOATING:
        raise TypeError(f"{what}: parameters must be floating point, not {first.dtype}")
    for other in rest:
        if other is not None and (other.shape, other.dtype) != (first.shape, first.dtype):
            raise ValueError(
                f"{what}: {other.dtype} {other.shape} does not match the parameter's "
                f"{first.dtype} {first.shape}"
            )


def sgd_step(
    param: View,
    grad: View,
    velocity: View | None,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
) -> None:
    """In place: g = grad + weight_decay * param; v = momentum * v + (1 - dampening) * g;
    param -= lr * v (v = g without a velocity buffer)."""
    _check_same("sgd_step", param, grad, velocity)
    t = param.np.dtype.type
    g = grad.np + t(weight_decay) * param.np
    if velocity is not None:
        velocity.np[...] = t(momentum) * velocity.np + t(1 - dampening) * g
        g = velocity.np
    param.np[...] = param.np - t(lr) * g


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
    """In place: m, v moving averages of g and g * g;
    param -= lr * (m / correction1) / (sqrt(v / correction2) + eps).

    Weight decay is added to the gradient, or (decoupled, AdamW) taken from the parameter.
    """
    _check_same("adam_step", param, grad, m, v)
    t = param.np.dtype.type
    g, p = grad.np, param.np
    if decoupled:
        p = p * t(1 - lr * weight_decay)
    else:
        g = g + t(weight_decay) * p
    m.np[...] = t(beta1) * m.np + t(1 - beta1) * g
    v.np[...] = t(beta2) * v.np + t(1 - beta2) * g * g
    update = (m.np / t(correction1)) / (np.sqrt(v.np / t(correction2)) + t(eps))
    param.np[...] = p - t(lr) * update


def to_dlpack(x: View, versioned: bool) -> Any:
    """A DLPack capsule that keeps the memory alive."""
    return x.np.__dlpack__(max_version=(1, 0)) if versioned else x.np.__dlpack__()


class _Exporter:
    """What np.from_dlpack wants to be handed: an object, not a capsule."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def from_dlpack(capsule: Any) -> View:
    """Views foreign memory when it is writable and can be a one-dimensional base, else copies."""
    x = np.from_dlpack(_Exporter(capsule))
    dtype_name(x.dtype)
    if not (x.flags.writeable and x.flags.c_contiguous):
        return _own(x)
    return View(x.reshape(-1), x.shape, compact_strides(x.shape), 0)


def set_num_threads(_: int) -> None:
    """NumPy's threads are its own affair."""


def get_num_threads() -> int:
    return 1


def synchronize() -> None:
    """Nothing runs asynchronously here."""
