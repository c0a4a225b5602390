"""Sorting, and functions based on sorting."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index as as_int
from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Spec, common_device, normalize_axis
from ..autograd.tensor import Operand, Tensor, TensorTuple
from ..backend_ndarray import NDArray, scans
from ..backend_ndarray.dtypes import compute_dtype, is_floating, is_half, result_type
from ..errors import ShapeError
from ..op import Op, register
from ..op.samples import error, sample
from ..op.signatures import Expr, Gradients, Stmt, TeNamespace, TeTensor
from ..sizes.extents import same
from . import _te
from ._arguments import check_tensors
from ._operands import applied
from ._scalars import takes_scalars
from ._sorted import sorted_rows
from .along_axis import PutAlongAxis, _filled, take_along_axis
from .elementwise import cast
from .slicing import slice as slice_
from .tuples import make_tuple

_HALVED = 6  # instructions per step of a binary search
_MOST_PASSES = 62  # enough steps of a binary search for any extent


@register
class Sort(Op):
    """(values, int64 positions) of the elements in order along `axis`. Equal elements keep their
    order, even with `descending`; NaN counts as the largest. The gradient flows to the positions
    that the elements came from."""

    axis: int = -1
    descending: bool = False

    infer_first = True
    reads = frozenset({1})
    samples = tuple(
        sample(shape, axis=axis, descending=descending)
        for shape, axis in (
            ((5,), 0),
            ((3, 4), -1),
            ((3, 4), 0),
            ((2, 3, 4), 1),
            ((2, 37), -1),
            ((1, 1), 0),
            ((0, 3), 1),
            ((3, 0), 1),
        )
        for descending in (False, True)
    )
    error_samples = (
        error(ShapeError, "out of range", (2, 3), axis=2),
        error(ShapeError, "out of range", ()),
    )

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        normalize_axis(self.name, self.axis, x.ndim)
        return x, Spec(x.shape, "int64", x.device)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return scans.sort(x, self.axis, self.descending)

    def compute(self, x: NDArray) -> tuple[NDArray, ...]:
        wide = x.astype("float32") if is_half(x.dtype) else x
        values, places = scans.run(
            "sort", wide, axis=self.axis % x.ndim, descending=self.descending
        )
        return values.astype(x.dtype, copy=False), places

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> Tensor:
        grad = out_grad[0]
        zeros = _filled(grad, 0, grad.dtype, grad.shape)
        return apply(PutAlongAxis("add", self.axis), (zeros, node[1], grad))

    def emit_te(self, k: TeNamespace, x: TeTensor) -> tuple[TeTensor, ...]:
        dtype, ndim = _te.dtype_of(x), len(x.shape)
        axis = self.axis % ndim
        if any(_te.is_zero(n) for n in x.shape):
            places = k.te.compute(x.shape, lambda *_: k.tirx.const(0, "int64"))
            return k.topi.identity(x), places
        x = _te.cast(k, x, "int32") if dtype == "bool" else x
        turn = [*(i for i in range(ndim) if i != axis), axis]
        back = [turn.index(i) for i in range(ndim)]
        x = k.topi.transpose(x, turn) if axis != ndim - 1 else x
        found = sorted_rows(k, x, self.descending)
        if axis != ndim - 1:
            found = [k.topi.transpose(part, back) for part in found]
        return _te.cast(k, found[0], dtype), found[1]


@register
class Searchsorted(Op):
    """y = the int64 position at which each element of `values` would be inserted into the sorted x:
    the first such position, or the last if `right`. x is (n,), or (..., n) for values (..., m) with
    the same leading axes. NaN counts as the largest. No gradient flows back."""

    right: bool = False

    infer_first = True
    samples = tuple(
        sample((n,), shape, right=right)
        for n, shape in ((1, (4,)), (7, (2, 3)), (0, (2,)), (5, ()), (6, (0, 2)))
        for right in (False, True)
    ) + tuple(
        sample(line, shape, right=right)
        for line, shape in (((2, 5), (2, 3)), ((2, 1, 4), (2, 1, 6)), ((2, 0), (2, 3)))
        for right in (False, True)
    )
    error_samples = (
        error(ShapeError, r"\(2, 3\) for values \(3,\)", (2, 3), (3,)),
        error(ShapeError, r"\(2, 3\) for values \(\)", (2, 3), ()),
        error(ShapeError, r"\(\) for values \(3,\)", (), (3,)),
    )

    def infer(self, x: Spec, values: Spec) -> Spec:
        lines = x.shape[:-1]
        if x.ndim < 1 or (lines and not (values.ndim and same(lines, values.shape[:-1]))):
            raise ShapeError(
                f"{self.name}: sorted elements {x.shape} for values {values.shape}; the elements "
                "must have one axis, or the same axes as the values before the last"
            )
        return Spec(values.shape, "int64", common_device(self.name, x, values))

    def reference(self, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        dtype = result_type(x.dtype.name, values.dtype.name)
        return scans.searchsorted(x.astype(dtype), values.astype(dtype), self.right)

    def compute(self, x: NDArray, values: NDArray) -> NDArray:
        dtype = compute_dtype(result_type(x.dtype, values.dtype))
        both = [part.astype(dtype, copy=False) for part in (x, values)]
        out: NDArray = scans.run("searchsorted", *both, right=self.right)
        return out

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        return None, None

    def emit_te(self, k: TeNamespace, x: TeTensor, values: TeTensor) -> TeTensor:
        """Return the positions, found by a binary search for each value."""
        x, values = _te.without_bool(k, x, values)
        n, size = x.shape[-1], getattr(x.shape[-1], "value", None)
        in_line = values.shape[-1] if len(x.shape) > 1 else None  # number of values in a row
        if _te.is_zero(n) or any(_te.is_zero(m) for m in values.shape):
            return k.te.compute(values.shape, lambda *_: k.tirx.const(0, "int64"))
        passes = _MOST_PASSES if size is None else int(size).bit_length()
        count = prod(values.shape, start=k.tirx.const(1, "int64"))
        floating = is_floating(_te.dtype_of(x))

        def comes_before(a: Expr, v: Expr) -> Expr:
            """Return whether an element belongs before the value."""
            if self.right:  # not v < a
                return k.tirx.any(a <= v, k.tirx.isnan(v)) if floating else a <= v
            if not floating:
                return a < v
            # TVM folds a == a to true, so that test would miss NaN.
            return k.tirx.any(a < v, k.tirx.all(k.tirx.isnan(v), k.tirx.Not(k.tirx.isnan(a))))

        def write(s: Any, ins: Sequence[Any], outs: Sequence[Any]) -> None:
            line, wanted, out = map(s.buffer_proxy, (*ins, *outs))
            with _te.tasks(s, count, count * passes * _HALVED) as i:
                base = 0 if in_line is None else k.tirx.floordiv(i, in_line) * n
                ends = s.buffer_proxy(s.alloc_buffer((2,), "int64", scope="local"))
                ends[0], ends[1] = k.tirx.const(0, "int64"), _te.number(k, n)
                with s.serial(0, passes):
                    with s.If(ends[0] < ends[1]), s.Then():
                        middle = k.tirx.shift_right(ends[0] + ends[1], k.tirx.const(1, "int64"))
                        with s.If(comes_before(line[base + middle], wanted[i])):
                            with s.Then():
                                ends[0] = middle + 1
                            with s.Else():
                                ends[1] = middle
                out[i] = ends[0]

        def body(ins: Sequence[Any], outs: Sequence[Any]) -> Stmt:
            return k.statements(lambda s: write(s, ins, outs))

        return k.te.extern([values.shape], [x, values], body, dtype="int64", name="searchsorted")


@takes_scalars
def sort(a: Tensor, axis: int = -1, descending: bool = False) -> TensorTuple:
    """Return (values, int64 positions) of the elements of `a` in order along `axis`, the largest
    first if `descending`. Equal elements keep their order; NaN counts as the largest.

    >>> values, positions = ndl.sort(ndl.Tensor([3.0, 1.0, 2.0]))
    >>> values.numpy().tolist(), positions.numpy().tolist()
    ([1.0, 2.0, 3.0], [1, 2, 0])
    """
    return apply(Sort(as_int(axis), bool(descending)), (a,))


@takes_scalars
def argsort(a: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """Return the int64 positions of the elements in order along `axis`, as in `sort`: the largest
    first if `descending`.

    >>> ndl.argsort(ndl.Tensor([3.0, 1.0, 2.0]), descending=True).numpy().tolist()
    [0, 2, 1]
    """
    return sort(a, axis, descending)[1]


def kthvalue(a: Tensor, k: int, axis: int = -1, keepdims: bool = False) -> TensorTuple:
    """Return (value, int64 position) of the `k`-th smallest element along `axis`, counted from 1.
    Raises ShapeError if there are fewer than `k` elements.

    >>> value, position = ndl.kthvalue(ndl.Tensor([3.0, 1.0, 2.0]), 2)
    >>> value.item(), position.item()
    (2.0, 2)
    """
    axis, k = _checked("kthvalue", a, k, axis, 1)
    key: Any = (*[slice(None)] * axis, slice(k - 1, k) if keepdims else k - 1)
    values, places = sort(a, axis)
    return make_tuple(slice_(values, key), slice_(places, key))


def _checked(name: str, a: Tensor, k: int, axis: int, least: int) -> tuple[int, int]:
    """Return `axis` counted from the front, and `k`. Raises ShapeError unless `k` is in range."""
    check_tensors(name, a=a)
    axis, k = normalize_axis(name, as_int(axis), a.ndim), as_int(k)
    if not least <= k <= a.shape[axis]:
        raise ShapeError(f"{name}: k {k} is not within {least}..{a.shape[axis]}")
    return axis, k


def searchsorted(
    a: Tensor,
    values: Operand,
    right: bool = False,
    *,
    side: str | None = None,
    sorter: Tensor | None = None,
    out_int32: bool = False,
) -> Tensor:
    """Return the position at which each element of `values` would be inserted into the sorted `a`:
    the first such position, or the last if `right`. `side` ("left" or "right") may replace `right`.

    `a` is (n,), or (..., n) for values (..., m) with the same leading axes; each row of values is
    looked up in the same row of `a`. If `a` is not sorted, give `sorter`: int64 positions of a's
    shape that sort `a` along the last axis. The result is int64, or int32 with `out_int32`.
    Raises ShapeError for shapes that do not fit, ValueError for a `side` that is unknown or
    contradicts `right`.

    >>> ndl.searchsorted(ndl.Tensor([1.0, 3.0, 5.0]), ndl.Tensor([3.0, 4.0])).numpy().tolist()
    [1, 2]
    """
    if side not in (None, "left", "right"):
        raise ValueError(f"searchsorted: side {side!r} is not 'left' or 'right'")
    if side == "left" and right:
        raise ValueError("searchsorted: side 'left' contradicts right=True; give one of them")
    if sorter is not None:
        check_tensors("searchsorted", a=a, sorter=sorter)
        if not same(sorter.shape, a.shape):
            raise ShapeError(f"searchsorted: sorter has shape {sorter.shape}, not {a.shape}")
        a = take_along_axis(a, sorter, -1)
    found: Tensor = applied(Searchsorted(bool(right) or side == "right"), a, values)
    return cast(found, "int32") if out_int32 else found


def bucketize(
    a: Operand, boundaries: Tensor, right: bool = False, *, out_int32: bool = False
) -> Tensor:
    """Return the number i of each element's bucket: boundaries[i - 1] < a <= boundaries[i], or
    boundaries[i - 1] <= a < boundaries[i] if `right`. The result is int64, or int32 with
    `out_int32`. `boundaries` (n,) must be sorted. Raises ShapeError if they have another shape.
    """
    if isinstance(boundaries, Tensor) and boundaries.ndim != 1:
        raise ShapeError(f"bucketize: boundaries have shape {boundaries.shape}, not (n,)")
    return searchsorted(boundaries, a, right, out_int32=out_int32)
