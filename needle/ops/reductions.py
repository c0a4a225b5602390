"""Reductions built from other ops: argmin, counts, norms, quantiles and histograms."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from math import inf
from math import prod as product
from operator import index as as_int
from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Axes, normalize_axes
from ..autograd.tensor import Tensor, make_const
from ..backend_ndarray import NDArray
from ..backend_ndarray import array as nd_array
from ..backend_ndarray import full as nd_full
from ..backend_ndarray.dtypes import FLOAT_OF_INTEGER, is_floating
from ..common.state import state
from ..errors import ShapeError, TraceError
from ..op import register
from ..op.samples import error
from ..op.signatures import Expr, TeNamespace, TeTensor
from . import _te
from ._arguments import check_tensors
from ._scalars import takes_scalars
from .activation import abs as abs_
from .along_axis import put
from .arithmetic import compare, where
from .elementwise import cast, sign, sqrt
from .movement import unsqueeze
from .reduce import Argmax, max, min, summation, var
from .scan import cumprod
from .shape import broadcast_to, permute, reshape
from .slicing import slice as slice_
from .sorting import searchsorted, sort
from .tuples import stack


@register
class Argmin(Argmax):
    """y = the int64 index of the first smallest element along `axis` (None: in the flattened x);
    NaN counts as the smallest. No gradient flows back."""

    axis: int | None = None
    keepdims: bool = False

    error_samples = (
        error(ShapeError, "out of range", (2, 3), axis=2),
        error(ShapeError, "no elements", (2, 0), axis=1),
        error(ShapeError, "no elements", (0,)),
    )

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.argmin(x, self.axis, keepdims=self.keepdims), "int64")

    def compute(self, x: NDArray) -> NDArray:
        return x.argmin(self.axis, self.keepdims)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        """Return the argmax of -x, or of ~x for integers."""
        if _te.dtype_of(x) == "bool":
            x = _te.cast(k, x, "int32")
        turn = k.topi.negative if is_floating(_te.dtype_of(x)) else _inverted(k)
        out: TeTensor = super().emit_te(k, turn(x))
        return out


def _inverted(k: TeNamespace) -> Any:
    def turn(x: TeTensor) -> TeTensor:
        # -x would overflow for the least integer.
        def rule(v: Expr) -> Expr:
            return -1 - v

        return _te.elementwise(k, rule, x)

    return turn


@takes_scalars
def argmin(a: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the int64 index of the first smallest element along `axis` (None: in the flattened
    tensor); NaN counts as the smallest."""
    return apply(Argmin(None if axis is None else as_int(axis), keepdims), (a,))


@takes_scalars
def amax(a: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the largest element over `axes` (None: all), as `max` does."""
    return max(a, axes, keepdims)


@takes_scalars
def amin(a: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the smallest element over `axes` (None: all), as `min` does."""
    return min(a, axes, keepdims)


@takes_scalars
def count_nonzero(a: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the int64 number of nonzero elements over `axes` (None: all); NaN is nonzero."""
    return summation(cast(a, "bool"), axes, keepdims)


@takes_scalars
def any(a: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Return whether any element over `axes` (None: all) is nonzero; False over no elements."""
    return cast(count_nonzero(a, axes, keepdims), "bool")


@takes_scalars
def all(a: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Return whether all elements over `axes` (None: all) are nonzero; True over no elements."""
    check_tensors("all", a=a)
    zeros = count_nonzero(compare("equal", a, _constant(a, 0)), axes, keepdims)
    return compare("equal", zeros, _constant(zeros, 0))


@takes_scalars
def std(a: Tensor, axes: Axes = None, keepdims: bool = False, correction: int = 0) -> Tensor:
    """Return the standard deviation over `axes` (None: all): the square root of `var` with the same
    `correction`. The gradient is 0 where all elements are equal."""
    return _root(var(a, axes, keepdims, correction), 2)


@takes_scalars
def prod(a: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the product over `axes` (None: all), 1 over no elements; integers are multiplied in
    int64."""
    check_tensors("prod", a=a)
    lines, shape = _lines("prod", a, axes, keepdims)
    if not _is_known(lines.shape[-1], 0):
        return reshape(slice_(cumprod(lines, -1), (Ellipsis, -1)), shape)
    one = _constant(lines, 1, a.dtype if is_floating(a.dtype) else "int64")
    return broadcast_to(one, shape)


@takes_scalars
def norm(a: Tensor, ord: float = 2, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the vector norm over `axes` (None: all): the `ord`-th root of the sum of |a| ** ord.
    With `ord` inf it is the largest |a|, with -inf the smallest, with 0 the number of nonzero
    elements. The gradient is 0 where the norm is 0; it is also 0 for elements that are 0 if the
    slope of |a| ** ord at 0 is infinite. Raises TypeError unless `ord` is a number."""
    check_tensors("norm", a=a)
    if not isinstance(ord, (int, float)):
        raise TypeError(f"norm: ord is a {type(ord).__name__}, not a number")
    a = a if is_floating(a.dtype) else cast(a, FLOAT_OF_INTEGER)
    if ord == inf:
        return max(abs_(a), axes, keepdims)
    if ord == -inf:
        return min(abs_(a), axes, keepdims)
    if ord == 0:
        return summation(where(a == a, abs_(sign(a)), 1), axes, keepdims)  # NaN is nonzero
    if ord == 1:
        return summation(abs_(a), axes, keepdims)
    if ord == 2:
        return _root(summation(a * a, axes, keepdims), 2)
    size = abs_(a)
    if ord > 1:
        return _root(summation(size ** float(ord), axes, keepdims), ord)
    # The slope of |a| ** ord at 0 is infinite.
    zero = size == 0
    powers = where(zero, 0.0 if ord > 0 else inf, where(zero, 1, size) ** float(ord))
    return _root(summation(powers, axes, keepdims), ord)


def _root(total: Tensor, ord: float) -> Tensor:
    """Return total ** (1 / ord). Where the root's slope is infinite (at 0, or at inf for a negative
    ord), the gradient is 0: the root of 1 is computed there instead, and then replaced."""
    ends = total == (0 if ord > 0 else inf)
    inner = where(ends, 1, total)
    return where(ends, 0, sqrt(inner) if ord == 2 else inner ** (1 / float(ord)))


@takes_scalars
def median(a: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the median over `axes` (None: all): the lower of the two middle elements if the number
    of elements is even, and NaN if an element is NaN. Raises ShapeError if there are no
    elements."""
    check_tensors("median", a=a)
    lines, shape = _lines("median", a, axes, keepdims)
    _refuse_nothing("median", a, lines)
    ordered = sort(lines, -1)[0]
    middle = slice_(ordered, (Ellipsis, (lines.shape[-1] - 1) // 2))
    return reshape(_or_nan(middle, ordered), shape)


def quantile(
    a: Tensor, q: float | Sequence[float], axes: Axes = None, keepdims: bool = False
) -> Tensor:
    """Return the value below which a fraction `q` of the elements over `axes` (None: all) lies,
    interpolated between neighbours; it is NaN if an element is NaN. A list of `q` adds a first
    axis. Integers give float64. Raises ValueError for a `q` outside 0..1, ShapeError if there are
    no elements."""
    check_tensors("quantile", a=a)
    several = isinstance(q, (list, tuple))
    shares: Sequence[Any] = q if isinstance(q, (list, tuple)) else [q]
    for share in shares:
        if not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise ValueError(f"quantile: q {share!r} is not a number within 0..1")
    a = a if is_floating(a.dtype) else cast(a, FLOAT_OF_INTEGER)
    lines, shape = _lines("quantile", a, axes, keepdims)
    _refuse_nothing("quantile", a, lines)
    ordered, last = sort(lines, -1)[0], lines.shape[-1] - 1
    if not isinstance(last, int):
        raise TraceError("quantile: the number of elements is open; quantile needs a fixed number")
    quantiles = []
    for share in shares:
        low = int(share * last)
        high, weight = builtins.min(low + 1, last), share * last - low
        left, right = (slice_(ordered, (Ellipsis, place)) for place in (low, high))
        value = left * (1 - weight) + right * weight if weight else left
        quantiles.append(reshape(_or_nan(value, ordered), shape))
    if not several:
        return quantiles[0]
    return stack(quantiles, 0)


def bincount(
    a: Tensor, weights: Tensor | None = None, minlength: int = 0, length: int | None = None
) -> Tensor:
    """Return how often each of 0, 1, 2, ... occurs in the integers `a` (n,), or with `weights`
    (n,), the sum of its weights. The result has `length` elements; without a `length`, it has as
    many as the largest element needs, but at least `minlength`. Compiled code needs `length`.
    Raises IndexError for an element out of range."""
    check_tensors("bincount", a=a)
    if a.ndim != 1 or is_floating(a.dtype) or a.dtype == "bool":
        raise TypeError(f"bincount: {a.dtype}{list(a.shape)} must be integers along one axis")
    if length is None:
        largest = int(_value("bincount", "length=...", max(a))) if a.shape[0] else -1
        if a.shape[0] and int(_value("bincount", "length=...", min(a))) < 0:
            raise IndexError("bincount: an element is negative")
        length = builtins.max(minlength, largest + 1)
    if weights is not None:
        check_tensors("bincount", weights=weights)
    else:
        weights = broadcast_to(_constant(a, 1, "int64"), a.shape)
    return _added(weights, a, length)


def histogram(
    a: Tensor, bins: int = 10, range: tuple[float, float] | None = None
) -> tuple[Tensor, Tensor]:
    """Return (int64 counts, edges) of the elements in `bins` intervals of equal width within
    `range`. The last interval includes its upper end; elements outside the range are not counted.
    The default range is from the least to the largest element; compiled code needs a `range`. No
    gradient flows back."""
    check_tensors("histogram", a=a)
    if bins < 1:
        raise ValueError(f"histogram: bins {bins} is below 1")
    dtype = a.dtype if is_floating(a.dtype) else FLOAT_OF_INTEGER
    if range is None:
        lowest, highest = (_value("histogram", "range=...", f(a)) for f in (min, max))
        range = (lowest, highest) if lowest < highest else (lowest - 0.5, highest + 0.5)
    low, high = range
    if not low < high:
        raise ValueError(f"histogram: range {range} is empty")
    edges = make_const(nd_array(np.linspace(low, high, bins + 1), device=a.device).astype(dtype))
    line = cast(reshape(a, (product(a.shape),)), dtype)
    # Bucket 0 counts the elements below the range, bucket bins + 1 those above it, and NaN.
    bucket = searchsorted(edges, line, right=True)
    is_end = compare("equal", line, broadcast_to(slice_(edges, (-1,)), line.shape))
    bucket = bucket - cast(is_end, "int64")
    ones = broadcast_to(_constant(line, 1, "int64"), line.shape)
    return slice_(_added(ones, bucket, bins + 2), (slice(1, bins + 1),)), edges


def _added(x: Tensor, index: Tensor, length: int) -> Tensor:
    """Return zeros with the elements of x (n,) added at the positions of `index`."""
    zeros = broadcast_to(_constant(x, 0), (length,))
    return put(zeros, index, x, 0, "add")


def _is_known(n: Any, extent: int) -> bool:
    """Return whether `n` is a number and equal to `extent`."""
    return isinstance(n, int) and n == extent


def _constant(like: Tensor, value: float, dtype: str | None = None) -> Tensor:
    return make_const(nd_full((), value, dtype or like.dtype, like.device))


def _lines(name: str, a: Tensor, axes: Axes, keepdims: bool) -> tuple[Tensor, tuple[int, ...]]:
    """Return `a` with the reduced axes merged into one last axis, and the shape of the result."""
    gone = normalize_axes(name, axes, a.ndim)
    kept = [i for i in builtins.range(a.ndim) if i not in gone]
    turned = a if [*kept, *gone] == list(builtins.range(a.ndim)) else permute(a, (*kept, *gone))
    lines = reshape(turned, (*[a.shape[i] for i in kept], product(a.shape[i] for i in gone)))
    shape = [1 if i in gone else n for i, n in enumerate(a.shape) if keepdims or i not in gone]
    return lines, tuple(shape)


def _refuse_nothing(name: str, a: Tensor, lines: Tensor) -> None:
    if _is_known(lines.shape[-1], 0):
        raise ShapeError(f"{name}: shape {a.shape} has no elements along the axes")


def _or_nan(value: Tensor, ordered: Tensor) -> Tensor:
    """Return `value`, or NaN where the last element in order is NaN (sorting puts NaN last)."""
    last = slice_(ordered, (Ellipsis, -1))
    return (
        where(compare("not_equal", last, last), last, value) if is_floating(last.dtype) else value
    )


def _value(name: str, needs: str, a: Tensor) -> Any:
    if state.trace is not None:
        raise TraceError(
            f"{name}: values decide the result's shape or edges, so compiled code needs {needs}"
        )
    return a.item()


def isin(a: Tensor, values: Tensor) -> Tensor:
    """Return whether each element of `a` is one of `values`, a tensor of any shape."""
    check_tensors("isin", a=a, values=values)
    return any(compare("equal", unsqueeze(a, -1), reshape(values, (-1,))), -1)
