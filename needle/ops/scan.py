"""Scans: each element is combined with all elements before it along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from typing import Any, ClassVar

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Spec, common_device, normalize_axis
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, scans
from ..backend_ndarray.dtypes import FLOAT_OF_INTEGER, is_floating, is_half
from ..errors import ShapeError
from ..op import in_float32, register
from ..op.samples import Arg, Sample, error, sample
from ..op.signatures import Expr, Gradients, TeNamespace, TeTensor
from . import _te
from ._scalars import takes_scalars
from ._scan import Along
from .arithmetic import where
from .elementwise import cast, exp
from .logical import isinf, logical_and
from .movement import pad
from .slicing import slice as slice_

_SAMPLES = (
    sample((5,)),
    sample((3, 4)),
    sample((3, 4), axis=0),
    sample((2, 3, 4), axis=1),
    sample((2, 70), axis=-1),
    sample((1, 3)),
    sample((0, 3)),
    sample((3, 0)),
)
_REVERSED = (sample((5,), reverse=True), sample((3, 2, 2), axis=1, reverse=True))


class _Accumulate(Along):
    """Base of scans with one input, whose output has the same shape."""

    reverse: bool

    samples: ClassVar[Sequence[Sample]] = (*_SAMPLES, *_REVERSED)

    def infer(self, x: Spec) -> Spec:
        normalize_axis(self.name, self.axis, x.ndim)
        return Spec(x.shape, self.dtype_of(x.dtype), x.device)

    def dtype_of(self, dtype: str) -> str:
        return dtype if is_floating(dtype) else "int64"

    def reference(self, x: np.ndarray) -> np.ndarray:
        x = x.astype(self.dtype_of(x.dtype.name))
        out: np.ndarray = getattr(scans, self.name)(x, self.axis, self.reverse)
        return out

    @in_float32
    def compute(self, x: NDArray) -> NDArray:
        dtype = x.view.dtype
        if (wanted := self.dtype_of(dtype)) != dtype:
            x = x.astype(wanted)
        out: NDArray = scans.run(self.name, x, axis=self.line_axis(x), reverse=self.reverse)
        return out

    def combined(self, k: TeNamespace, before: Expr, x: Expr) -> Expr:
        """Return the next running value, for `emit_te`."""
        raise NotImplementedError

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        dtype = self.dtype_of(_te.dtype_of(x))
        x = _te.cast(k, x, dtype)
        # The running value is kept in float64, so that errors do not grow with the length.
        wide = "float64" if is_floating(dtype) else dtype

        def step(
            ins: list[Any],
            outs: list[Any],
            states: list[Any],
            i: Expr,
            place: Expr,
            j: Expr,
            first: bool,
        ) -> None:
            value, running = k.tirx.Cast(wide, ins[0][place]), states[0]
            running[j] = value if first else self.combined(k, running[j], value)
            outs[0][place] = k.tirx.Cast(dtype, running[j])

        return self.lines(k, [x], [dtype], [wide], step, self.reverse)[0]


@register
class Cumsum(_Accumulate):
    """y[i] = x[0] + ... + x[i] along `axis`, or x[i] + ... + x[-1] if `reverse`. Bools and integers
    are summed in int64, floats in float64."""

    axis: int = -1
    reverse: bool = False

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return apply(Cumsum(self.axis, not self.reverse), (out_grad,))

    def combined(self, k: TeNamespace, before: Expr, x: Expr) -> Expr:
        return before + x


@register
class Cumprod(_Accumulate):
    """y[i] = x[0] * ... * x[i] along `axis`, or x[i] * ... * x[-1] if `reverse`. Bools and integers
    are multiplied in int64, floats in float64."""

    axis: int = -1
    reverse: bool = False

    reads = frozenset({"inputs", "output"})

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        """Return, for each x[i], the product of the elements before it, times the sum over j >= i
        of out_grad[j] * x[i + 1] * ... * x[j]. There is no division, so zeros need no special
        case."""
        (x,) = node.inputs
        later = apply(
            LinearScan(self.axis, not self.reverse),
            (_shifted(x, self.axis, not self.reverse), out_grad),
        )
        return _shifted(node, self.axis, self.reverse, 1) * later

    def combined(self, k: TeNamespace, before: Expr, x: Expr) -> Expr:
        return before * x


@register
class LogCumSumExp(_Accumulate):
    """y[i] = log(exp(x[0]) + ... + exp(x[i])) along `axis`, without overflow; the sum goes from i
    to the end if `reverse`. Integers give float64."""

    axis: int = -1
    reverse: bool = False

    name = "logcumsumexp"
    reads = frozenset({"inputs", "output"})
    samples = (*_SAMPLES, *_REVERSED, sample(Arg((2, 3), 900, 1000)))

    def dtype_of(self, dtype: str) -> str:
        return dtype if is_floating(dtype) else FLOAT_OF_INTEGER

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        """Return exp(x[i]) * sum of out_grad[j] / exp(y[j]) over j >= i. exp(y[i] - y[j]) is
        computed as a product of factors that are at most 1."""
        (x,) = node.inputs
        dtype, y = x.dtype, node
        if is_half(dtype):  # the exponential would magnify the rounding of y to half precision
            x, out_grad = cast(x, "float32"), cast(out_grad, "float32")
            y = apply(self, (x,))
        decay = _decay(y, self.axis, self.reverse)
        later = apply(LinearScan(self.axis, not self.reverse), (decay, out_grad))
        # Where all summands are -inf, exp(x) is 0, whatever the divisor is.
        return cast(exp(x - where(y == float("-inf"), 0.0, y)) * later, dtype)

    def combined(self, k: TeNamespace, before: Expr, x: Expr) -> Expr:
        top, low = k.tirx.max(before, x), k.tirx.min(before, x)
        both = top + k.tirx.log(1 + k.tirx.exp(low - top))
        both = k.tirx.Select(k.tirx.isinf(top), top, both)
        return k.tirx.Select(k.tirx.any(k.tirx.isnan(before), k.tirx.isnan(x)), before + x, both)


@register
class LinearScan(Along):
    """y[i] = a[i] * y[i - 1] + b[i] along `axis`, where the first y[i - 1] is 0. If `reverse`,
    y[i + 1] replaces y[i - 1]. Both inputs have the same shape and floating dtype."""

    axis: int = -1
    reverse: bool = False

    infer_first = True
    reads = frozenset({"inputs", "output"})
    samples = tuple(
        sample(shape, shape, axis=axis, reverse=reverse)
        for shape, axis in (((5,), 0), ((3, 4), -1), ((2, 3, 4), 1), ((0, 2), 0), ((2, 0), 1))
        for reverse in (False, True)
    )
    error_samples = (
        error(ShapeError, "out of range", (2, 3), (2, 3), axis=2),
        error(ShapeError, "not the same shape", (2, 3), (3,)),
        error(TypeError, "floating", Arg((2,), dtype="int32"), Arg((2,), dtype="int32")),
    )

    def infer(self, a: Spec, b: Spec) -> Spec:
        normalize_axis(self.name, self.axis, a.ndim)
        if a.shape != b.shape:
            raise ShapeError(f"{self.name}: {a.shape} and {b.shape} are not the same shape")
        if a.dtype != b.dtype or not is_floating(a.dtype):
            raise TypeError(f"{self.name}: {a.dtype} and {b.dtype} are not one floating dtype")
        return Spec(a.shape, a.dtype, common_device(self.name, a, b))

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return scans.linear_scan(a, b, self.axis, self.reverse)

    @in_float32
    def compute(self, a: NDArray, b: NDArray) -> NDArray:
        axis = self.axis % a.ndim
        out: NDArray = scans.run("linear_scan", a, b, axis=axis, reverse=self.reverse)
        return out

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        a, _ = node.inputs
        back = not self.reverse
        to_b = apply(LinearScan(self.axis, back), (_shifted(a, self.axis, back), out_grad))
        return to_b * _shifted(node, self.axis, self.reverse), to_b

    def emit_te(self, k: TeNamespace, a: TeTensor, b: TeTensor) -> TeTensor:
        dtype = _te.dtype_of(a)

        def step(
            ins: list[Any],
            outs: list[Any],
            states: list[Any],
            i: Expr,
            place: Expr,
            j: Expr,
            first: bool,
        ) -> None:
            running = states[0]
            factor, term = (k.tirx.Cast("float64", x[place]) for x in ins)
            running[j] = term if first else factor * running[j] + term
            outs[0][place] = k.tirx.Cast(dtype, running[j])

        return self.lines(k, [a, b], [dtype], ["float64"], step, self.reverse)[0]


def _shifted(x: Tensor, axis: int, reverse: bool, first: float = 0) -> Tensor:
    """Return x moved one step later along `axis`, or one earlier if `reverse`; `first` fills the
    gap."""
    axis = axis % x.ndim
    width = [(0, 0)] * x.ndim
    width[axis] = (0, 1) if reverse else (1, 0)
    part = slice(1, None) if reverse else slice(None, -1)
    kept: Any = (*[slice(None)] * axis, part)
    return pad(slice_(x, kept), width, first) if _has_steps(x, axis) else x


def _decay(y: Tensor, axis: int, reverse: bool) -> Tensor:
    """Return exp(y[i] - y[i + 1]) along `axis`, and 0 for the last element. With `reverse`, return
    exp(y[i] - y[i - 1]), and 0 for the first element. Between two equal infinities, the result is
    1."""
    axis = axis % y.ndim
    if not _has_steps(y, axis):
        return y
    head: Any = (*[slice(None)] * axis, slice(None, -1))
    tail: Any = (*[slice(None)] * axis, slice(1, None))
    width = [(0, 0)] * y.ndim
    width[axis] = (1, 0) if reverse else (0, 1)
    here, later = slice_(y, head), slice_(y, tail)
    is_same = logical_and(here == later, isinf(here))
    here, later = (where(is_same, 0.0, part) for part in (here, later))
    return pad(exp(later - here if reverse else here - later), width)


def _has_steps(x: Tensor, axis: int) -> bool:
    return not (isinstance(x.shape[axis], int) and x.shape[axis] == 0)


@takes_scalars
def cumsum(a: Tensor, axis: int, reverse: bool = False) -> Tensor:
    """Return, for each element, the sum of it and all elements before it along `axis` (after it if
    `reverse`).

    >>> ndl.cumsum(ndl.arange(4), 0).numpy().tolist()
    [0, 1, 3, 6]
    """
    return apply(Cumsum(as_int(axis), bool(reverse)), (a,))


@takes_scalars
def cumprod(a: Tensor, axis: int, reverse: bool = False) -> Tensor:
    """Return, for each element, the product of it and all elements before it along `axis` (after it
    if `reverse`).

    >>> ndl.cumprod(ndl.arange(1, 5), 0).numpy().tolist()
    [1, 2, 6, 24]
    """
    return apply(Cumprod(as_int(axis), bool(reverse)), (a,))


@takes_scalars
def logcumsumexp(a: Tensor, axis: int, reverse: bool = False) -> Tensor:
    """Return, for each element, the log of the sum of exp of it and all elements before it along
    `axis` (after it if `reverse`), without overflow."""
    return apply(LogCumSumExp(as_int(axis), bool(reverse)), (a,))


def linear_scan(a: Tensor, b: Tensor, axis: int = -1, reverse: bool = False) -> Tensor:
    """Return y[i] = a[i] * y[i - 1] + b[i] along `axis` (y[i + 1] in place of y[i - 1] if
    `reverse`): a linear recurrence, as in state space models. Raises ShapeError or TypeError unless
    `a` and `b` have the same shape and floating dtype."""
    return apply(LinearScan(as_int(axis), bool(reverse)), (a, b))
