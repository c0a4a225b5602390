"""Helpers for several `emit_te` rules. `k` is the rule's argument; nothing here imports TVM.

TVM's own operators differ from NumPy's in NaN, bools and dtype promotion; these helpers do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from types import ModuleType
from typing import Any

from ..backend_ndarray.dtypes import (
    FLOAT_OF_INTEGER,
    SMALL_INTEGER,
    compute_dtype,
    is_floating,
    result_type,
)
from ..op.signatures import Expr, Extent, TeNamespace, TeTensor
from . import _functions

WORK = "needle.work"  # annotates a parallel loop with the instruction count of all its tasks

Reducer = Callable[..., TeTensor]  # te.sum, or the result of te.comm_reducer

_MOST_TERMS = 1 << 12  # a longer float32 sum is accumulated in float64

_FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127


def dtype_of(x: TeTensor) -> str:
    """Return the dtype name of a te.Tensor."""
    return str(x.dtype)


def cast(k: TeNamespace, x: TeTensor, dtype: str) -> TeTensor:
    """Return x in another dtype; a cast to bool compares with zero, so that NaN is true."""
    old = dtype_of(x)
    if old == dtype:
        return x
    if dtype == "bool":
        return elementwise(k, lambda v: not_equal(k, v, k.tirx.const(0, old), old), x)
    if old == "bool":
        # Cast by way of an integer: the code generator treats bool as one bit wide.
        return elementwise(k, lambda v: k.tirx.Cast(dtype, k.tirx.Cast("int32", v)), x)
    if dtype in SMALL_INTEGER and is_floating(old):
        x = k.topi.cast(x, "int32")  # the cast below keeps the low bits, as in NumPy
    return k.topi.cast(x, dtype)


def as_float(k: TeNamespace, x: TeTensor) -> TeTensor:
    """Return the operand of a float-valued function, with integers and bools as float64."""
    return x if is_floating(dtype_of(x)) else cast(k, x, FLOAT_OF_INTEGER)


def promote(k: TeNamespace, a: TeTensor, b: TeTensor) -> tuple[TeTensor, TeTensor]:
    """Return both operands in their common dtype."""
    dtype = result_type(dtype_of(a), dtype_of(b))
    return cast(k, a, dtype), cast(k, b, dtype)


def without_bool(k: TeNamespace, a: TeTensor, b: TeTensor) -> tuple[TeTensor, TeTensor]:
    """Return both operands in their common dtype, with bools as int32."""
    a, b = promote(k, a, b)
    return (cast(k, a, "int32"), cast(k, b, "int32")) if dtype_of(a) == "bool" else (a, b)


def elementwise(k: TeNamespace, fn: Callable[[Expr], Expr], x: TeTensor) -> TeTensor:
    """Return a te.compute of fn(element)."""
    return k.te.compute(x.shape, lambda *i: fn(x[i]))


def by_element(fn: Callable[[TeNamespace, Expr], Expr], k: TeNamespace, x: TeTensor) -> TeTensor:
    """Return a te.compute of fn(k, element)."""
    return elementwise(k, lambda v: fn(k, k.tirx.convert(v)), x)


def full_like(k: TeNamespace, x: TeTensor, value: float) -> Expr:
    """Return a scalar in x's dtype for te and topi expressions; infinity if the dtype cannot hold
    the value."""
    dtype = dtype_of(x)
    if is_floating(dtype) and dtype != "float64" and abs(value) > _FLOAT32_MAX:
        value = math.copysign(math.inf, value)
    return k.tirx.const(value, dtype)


def not_equal(k: TeNamespace, a: Expr, b: Expr, dtype: str) -> Expr:
    """Return a != b for two expressions of `dtype`, true if one is NaN (TVM's != is false)."""
    if not is_floating(dtype):
        return a != b
    return k.tirx.any(a != b, k.tirx.isnan(a), k.tirx.isnan(b))


def greater_or_nan(k: TeNamespace, a: Expr, b: Expr, dtype: str) -> Expr:
    """Return max(a, b) for two expressions of `dtype`, NaN if either is NaN.

    The inner Select is one instruction on x86, which returns b if either operand is NaN. If b is a
    constant number, that instruction is enough.
    """
    if not is_floating(dtype):
        return k.tirx.max(a, b)
    if _is_number(k, b):
        return k.tirx.Select(b > a, b, a)
    return k.tirx.Select(k.tirx.isnan(a), a, k.tirx.Select(a > b, a, b))


def less_or_nan(k: TeNamespace, a: Expr, b: Expr, dtype: str) -> Expr:
    """Return min(a, b) for two expressions of `dtype`, NaN if either is NaN."""
    if not is_floating(dtype):
        return k.tirx.min(a, b)
    if _is_number(k, b):
        return k.tirx.Select(b < a, b, a)
    return k.tirx.Select(k.tirx.isnan(a), a, k.tirx.Select(a < b, a, b))


def _is_number(k: TeNamespace, x: Expr) -> bool:
    """Return whether x is a constant other than NaN."""
    return isinstance(x, k.tirx.FloatImm) and not math.isnan(x.value)


def maximum_over(k: TeNamespace, x: TeTensor, axes: Sequence[int], keepdims: bool) -> TeTensor:
    """Return the maximum over `axes` (normalized), which propagates NaN."""
    reducer, lowest = largest(k, dtype_of(x))
    return reduce_over(k, reducer, x, axes, keepdims, lowest)


def minimum_over(k: TeNamespace, x: TeTensor, axes: Sequence[int], keepdims: bool) -> TeTensor:
    """Return the minimum over `axes` (normalized), which propagates NaN."""
    dtype = dtype_of(x)
    highest = k.tirx.const(float("inf"), dtype) if is_floating(dtype) else k.tirx.max_value(dtype)
    reducer = _reducer(k, "min", less_or_nan, highest, dtype)
    return reduce_over(k, reducer, x, axes, keepdims, highest)


def largest(k: TeNamespace, dtype: str) -> tuple[Reducer, Expr]:
    """Return a max reducer that propagates NaN, and its initial value."""
    lowest = k.tirx.const(float("-inf"), dtype) if is_floating(dtype) else k.tirx.min_value(dtype)
    return _reducer(k, "max", greater_or_nan, lowest, dtype), lowest


def _reducer(
    k: TeNamespace, name: str, pick: Callable[..., Expr], start: Expr, dtype: str
) -> Reducer:
    return k.te.comm_reducer(lambda a, b: pick(k, a, b, dtype), lambda _: start, name=name)


def reduce_over(
    k: TeNamespace,
    reducer: Reducer,
    x: TeTensor,
    axes: Sequence[int],
    keepdims: bool,
    identity: Expr | None = None,
    wide: bool = True,
) -> TeTensor:
    """Apply `reducer` (te.sum, or the result of te.comm_reducer) over `axes` (normalized).

    `identity` (None: zero) is the result over no elements. If `wide`, a long float32 sum is
    accumulated in float64, because the generated code adds the terms one after the other.
    """
    if wide and reducer is k.te.sum and dtype_of(x) == "float32" and _is_long(x, axes):
        total = reduce_over(k, reducer, cast(k, x, "float64"), axes, keepdims)
        return cast(k, total, "float32")
    over = {a: k.te.reduce_axis((0, x.shape[a]), name=f"r{a}") for a in axes}
    if not over:
        return k.topi.identity(x)
    kept = [1 if a in over else n for a, n in enumerate(x.shape) if keepdims or a not in over]

    if any(is_zero(x.shape[a]) for a in over):  # TVM's reduction would write nothing
        empty = full_like(k, x, 0) if identity is None else identity
        return k.te.compute(kept, lambda *_: empty)

    def body(*out: Expr) -> Expr:
        rest = list(out)
        index = []
        for a in range(len(x.shape)):
            if a not in over:
                index.append(rest.pop(0))
            else:
                index.append(over[a].var)
                if keepdims:
                    rest.pop(0)
        return reducer(x[tuple(index)], axis=list(over.values()))

    return k.te.compute(kept, body)


def _is_long(x: TeTensor, axes: Sequence[int]) -> bool:
    """Return whether a sum may have many terms; a symbolic extent may be any number."""
    extents = [getattr(x.shape[a], "value", _MOST_TERMS + 1) for a in axes]
    return math.prod(extents) > _MOST_TERMS


def last_axes_first(axes: Sequence[int], ndim: int) -> list[tuple[int, ...]]:
    """Return `axes` in groups to sum over one after the other: first those at the end of the `ndim`
    axes, then the others. This is more accurate: adding thousands of float32 numbers one after the
    other loses two digits."""
    inner = tuple(a for a in axes if all(later in axes for later in range(a, ndim)))
    outer = tuple(a for a in axes if a not in inner)
    return [some for some in (inner, outer) if some]


def moments(
    k: TeNamespace, x: TeTensor, axes: Sequence[int]
) -> tuple[TeTensor, TeTensor, TeTensor]:
    """Return the mean, x - mean and the biased variance of a floating x over `axes`; the mean and
    the variance keep these axes with extent 1."""

    def mean_of(y: TeTensor) -> TeTensor:
        count = k.tirx.const(1, "int64")
        for a in axes:
            count = count * k.tirx.Cast("int64", x.shape[a])
        for some in last_axes_first(axes, len(x.shape)):
            y = reduce_over(k, k.te.sum, y, some, True)
        return divided(k, y, count)

    mean = mean_of(x)
    if all(is_one(x.shape[a]) for a in axes):
        # TVM folds x - x to 0, which is wrong for NaN and infinities.
        zero, nan = full_like(k, x, 0), full_like(k, x, float("nan"))
        centred = elementwise(k, lambda v: k.tirx.Select(k.tirx.isfinite(v), zero, nan), x)
    else:
        centred = k.topi.subtract(x, mean)
    return mean, centred, mean_of(k.topi.multiply(centred, centred))


def divided(k: TeNamespace, x: TeTensor, number: float | Expr) -> TeTensor:
    """Return x / number, elementwise in x's dtype; `number` may be an expression.

    TVM rejects a divisor that is known to be 0.
    """
    value = number
    while hasattr(value, "value"):  # a constant, or a cast constant
        value = value.value
    if isinstance(value, Real) and value == 0:  # true for -0.0 too
        return k.topi.multiply(x, full_like(k, x, math.copysign(math.inf, value)))
    divisor = k.tirx.Cast(dtype_of(x), number) if hasattr(number, "ty") else full_like(k, x, value)
    return k.topi.divide(x, divisor)


def number(k: TeNamespace, n: Extent, dtype: str = "int64") -> Expr:
    """Return an int or an expression as an expression of `dtype`."""
    return k.tirx.const(n, dtype) if isinstance(n, int) else k.tirx.Cast(dtype, n)


def is_one(n: Extent) -> bool:
    """Return whether an extent is known to be 1 (a symbolic one is not)."""
    return _is_known(n, 1)


def is_zero(n: Extent) -> bool:
    """Return whether an extent is known to be 0."""
    return _is_known(n, 0)


def _is_known(n: Extent, extent: int) -> bool:
    value = getattr(n, "value", n)  # IntImm or int
    return isinstance(value, int) and value == extent


def result(a: TeTensor, b: TeTensor) -> str:
    """Return the common dtype of two te.Tensors."""
    return result_type(dtype_of(a), dtype_of(b))


def broadcast(
    k: TeNamespace, fn: Callable[[Expr, Expr], Expr], a: TeTensor, b: TeTensor
) -> TeTensor:
    """Return a te.compute of fn(a element, b element) with NumPy broadcasting."""
    ndim = max(len(a.shape), len(b.shape))
    shapes = [[1] * (ndim - len(x.shape)) + list(x.shape) for x in (a, b)]
    shape = [n if is_one(m) else m for n, m in zip(*shapes, strict=True)]

    def at(x: TeTensor, index: Sequence[Expr]) -> Expr:
        own = index[ndim - len(x.shape) :]
        return x[tuple(0 if is_one(n) else i for n, i in zip(x.shape, own, strict=True))]

    return k.te.compute(shape, lambda *i: fn(at(a, i), at(b, i)))


def tanh(k: TeNamespace, x: TeTensor) -> TeTensor:
    """Return tanh of x. NaN stays NaN (TVM clamps it), and float64 keeps all digits near 0."""
    if dtype_of(x) == "float64":
        return by_element(_functions.tanh, k, x)
    return elementwise(k, lambda v: tanh_or_nan(k, v), x)


def tanh_or_nan(k: TeNamespace, x: Expr) -> Expr:
    """Return TVM's tanh of an expression, but NaN for NaN."""
    return k.tirx.Select(k.tirx.isnan(x), x, k.tirx.tanh(x))


def erf(k: TeNamespace, x: TeTensor) -> TeTensor:
    """Return erf of x; NaN stays NaN."""
    return elementwise(k, lambda v: k.tirx.Select(k.tirx.isnan(v), v, k.tirx.erf(v)), x)


def rsqrt(k: TeNamespace, x: TeTensor) -> TeTensor:
    """Return 1 / sqrt(x)."""
    return k.topi.divide(full_like(k, x, 1), k.topi.sqrt(x))


def same_number(r: ModuleType, a: Expr, b: Expr) -> bool | None:
    """Return True if two Relax expressions have the same dtype and it is not bool, else None."""
    left, right = str(a.ty.dtype), str(b.ty.dtype)
    return True if left == right and left != "bool" else None


def number_of(x: Expr, scalar: float) -> bool | None:
    """Return True if a Relax expression is not bool and keeps its dtype with this scalar, else
    None."""
    dtype = str(x.ty.dtype)
    weak = is_floating(dtype) or not isinstance(scalar, float)
    fits = dtype == "float64" or not _FLOAT32_MAX < abs(scalar) < math.inf
    return True if weak and fits and dtype != "bool" else None


def sum_of_few(
    k: TeNamespace,
    shape: Sequence[Extent],
    count: Extent,
    part: Callable[..., Expr],
    dtype: str,
    name: str,
) -> TeTensor:
    """Return the sums of part(t, *indices) over t below a small `count`, cast to `dtype`; the parts
    have the dtype in which `dtype` is computed. If `count` is a number, the sum is unrolled, so
    that it fuses with the ops that follow."""
    wide, number = compute_dtype(dtype), getattr(count, "value", count)
    if not isinstance(number, int):
        t = k.te.reduce_axis((0, count), name="t")
        sums = k.te.compute(shape, lambda *o: k.te.sum(part(t, *o), axis=[t]), name=name)
        return cast(k, sums, dtype)

    def element(*o: Expr) -> Expr:
        total = k.tirx.const(0, wide)
        for i in range(number):
            total = total + part(i, *o)
        return k.tirx.Cast(dtype, total)

    return k.te.compute(shape, element, name=name)


def unravel(k: TeNamespace, flat: Expr, extents: Sequence[Extent]) -> list[Expr]:
    """Return the index along each axis of the element with the row-major index `flat`."""
    places: list[Expr] = []
    for number, n in reversed(list(enumerate(extents))):
        places.insert(0, k.tirx.floormod(flat, n) if number else flat)
        flat = k.tirx.floordiv(flat, n)
    return places


def any_in(
    k: TeNamespace, s: Any, flag: Any, count: int, condition: Callable[[Expr], Expr]
) -> None:
    """Write statements that set flag[0], an int32, to whether condition(j) holds for any j below a
    small `count`. They are unrolled, so that comparisons of neighbours become vector instructions.
    """
    flag[0] = k.tirx.const(0, "int32")
    with s.unroll(0, count) as j:
        flag[0] = flag[0] | k.tirx.Cast("int32", condition(j))


def all_in(
    k: TeNamespace, s: Any, flag: Any, count: int, condition: Callable[[Expr], Expr]
) -> None:
    """Write statements that set flag[0], an int32, to whether condition(j) holds for all j below a
    small `count`. (TVM replaces `not a >= b` with `a < b`, which differs for NaN.)"""
    flag[0] = k.tirx.const(1, "int32")
    with s.unroll(0, count) as j:
        flag[0] = flag[0] & k.tirx.Cast("int32", condition(j))


def tasks(s: Any, count: Extent, work: Extent) -> Any:
    """Return a loop of statements (`TeNamespace.statements`) over `count` tasks that threads
    divide. `work` is the number of instructions of all tasks. If it is small, a CPU runs all tasks
    on one thread, because other threads would start too late."""
    known = getattr(work, "value", work)
    notes = {WORK: known} if isinstance(known, int) else {}
    return s.parallel(0, count, annotations=notes)
