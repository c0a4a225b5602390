"""Ops of a tensor and a Python scalar, which is an attribute of the op.

The scalar is weak: it changes the dtype only if its kind is higher (a float for an int tensor).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import ClassVar

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.dtypes import checked_scalar, scalar_dtype
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray
from ..backend_ndarray.dtypes import FLOAT_OF_INTEGER, is_floating
from ..op import Elementwise, register
from ..op.samples import Arg, ErrorSample, Sample, error, sample, unary
from ..op.signatures import Expr, TeNamespace, TeTensor
from . import _te

_SHAPES = ((), (3, 4), (0, 3))
_STRING = error(TypeError, "scalar is a str", (2,), scalar="2")
_TWO_INPUTS = error(TypeError, "takes 1 input", (2,), (2,), scalar=2.0)


def _samples(*scalars: float, low: float = -2, high: float = 2) -> tuple[Sample, ...]:
    return tuple(s for c in scalars for s in unary(low, high, _SHAPES, math.isfinite(c), scalar=c))


class _WithScalar(Elementwise):
    """Base of ops of a tensor and a Python number, `scalar`."""

    scalar: float

    error_samples: ClassVar[Sequence[ErrorSample]] = (_STRING, _TWO_INPUTS)

    def __post_init__(self) -> None:
        scalar = self.scalar.item() if isinstance(self.scalar, np.generic) else self.scalar
        if not isinstance(scalar, (bool, int, float)):
            kind = type(scalar).__name__
            raise TypeError(f"{self.name}: scalar is a {kind}, not a Python number")
        object.__setattr__(self, "scalar", scalar)

    def dtype_of(self, dtype: str) -> str:
        dtype = scalar_dtype(dtype, self.scalar)
        checked_scalar(self.name, self.scalar, dtype)
        return dtype

    def both(self, k: TeNamespace, x: TeTensor) -> tuple[TeTensor, Expr]:
        """Return x and the scalar in their common dtype (int32 for bool), for `emit_te`."""
        dtype = scalar_dtype(_te.dtype_of(x), self.scalar)
        x = _te.cast(k, x, "int32" if dtype == "bool" else dtype)
        return x, _te.full_like(k, x, self.scalar)

    def finish(self, k: TeNamespace, x: TeTensor, out: TeTensor) -> TeTensor:
        """Return `out` in the dtype that `infer` returns."""
        return _te.cast(k, out, self.dtype_of(_te.dtype_of(x)))


@register
class AddScalar(_WithScalar):
    """y = x + scalar."""

    scalar: float

    samples = _samples(1.5, 2, float("nan"), float("inf"))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x + self.scalar

    def compute(self, x: NDArray) -> NDArray:
        return x + self.scalar

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return out_grad

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        return self.finish(k, x, k.topi.add(*self.both(k, x)))

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        return _te.number_of(x, self.scalar) and r.op.add(x, r.const(self.scalar, x.ty.dtype))


@register
class MulScalar(_WithScalar):
    """y = x * scalar."""

    scalar: float

    samples = _samples(1.5, -2, 0, float("nan"), float("inf"))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x * self.scalar

    def compute(self, x: NDArray) -> NDArray:
        return x * self.scalar

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return out_grad * self.scalar

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        a, scalar = self.both(k, x)
        if self.scalar == 0 and is_floating(_te.dtype_of(a)):
            # TVM folds x * 0 to 0, which is wrong for NaN and infinities.
            nan = _te.full_like(k, a, float("nan"))
            return _te.elementwise(k, lambda v: k.tirx.Select(k.tirx.isfinite(v), scalar, nan), a)
        return self.finish(k, x, k.topi.multiply(a, scalar))

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        if self.scalar == 0 or not _te.number_of(x, self.scalar):
            return None
        return r.op.multiply(x, r.const(self.scalar, x.ty.dtype))


@register
class DivideScalar(_WithScalar):
    """y = x / scalar; integers are divided in float64."""

    scalar: float

    samples = _samples(1.5, -2)

    def dtype_of(self, dtype: str) -> str:
        return dtype if is_floating(dtype) else FLOAT_OF_INTEGER

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x / self.scalar

    def compute(self, x: NDArray) -> NDArray:
        return x / self.scalar

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return out_grad / self.scalar

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        x = _te.as_float(k, x)
        return _te.divided(k, x, self.scalar)

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        known = self.scalar != 0 and is_floating(str(x.ty.dtype))
        if not known or not _te.number_of(x, self.scalar):
            return None
        return r.op.divide(x, r.const(self.scalar, x.ty.dtype))


@register
class PowerScalar(_WithScalar):
    """y = x ** scalar (sqrt(x) for 0.5). Raises ValueError for integers to a negative power."""

    scalar: float

    infer_first = True
    reads = frozenset({"inputs"})
    samples = (
        *_samples(2, 3, 1, 0, 2.0, -1.0),
        sample(Arg((2, 3), dtype="int32"), scalar=65),
        *_samples(0.5, -0.5, 1.7, low=0.3, high=3),
    )
    error_samples = (
        _STRING,
        _TWO_INPUTS,
        error(ValueError, "not defined", Arg((2,), dtype="int32"), scalar=-1),
        error(TypeError, "bool", Arg((2,), dtype="bool"), scalar=2),
    )

    def dtype_of(self, dtype: str) -> str:
        out = super().dtype_of(dtype)
        if dtype == "bool":
            raise TypeError(f"{self.name}: the input is bool; cast it to a number first")
        if not is_floating(out) and self.scalar < 0:
            raise ValueError(
                f"{self.name}: {dtype} ** {self.scalar} is not defined; cast it to a float dtype"
            )
        return out

    def reference(self, x: np.ndarray) -> np.ndarray:
        if self.scalar == 0.5:
            return np.sqrt(x if is_floating(x.dtype.name) else x.astype("float64"))
        # The exponent is an array, because NumPy takes shortcuts for some scalars.
        return np.power(x, np.full_like(x, self.scalar, self.dtype_of(x.dtype.name)))

    def compute(self, x: NDArray) -> NDArray:
        return x.sqrt() if self.scalar == 0.5 else x**self.scalar

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        if self.scalar == 0:
            return out_grad * 0
        return out_grad * (power_scalar(node.inputs[0], self.scalar - 1) * self.scalar)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        x, scalar = self.both(k, x)
        exponent = float(self.scalar)
        is_short = 0 < exponent <= 4 or not is_floating(_te.dtype_of(x))  # pow is inexact for ints
        if exponent.is_integer() and exponent > 0 and is_short:
            return _repeated(k, x, int(exponent))
        if exponent == 0:
            return _te.elementwise(k, lambda _: _te.full_like(k, x, 1), x)
        if exponent == 0.5:
            return k.topi.sqrt(x)
        return k.topi.power(x, scalar)


def _repeated(k: TeNamespace, x: TeTensor, exponent: int) -> TeTensor:
    """Return x ** exponent by squaring, which is exact for integers, unlike TVM's pow."""
    out = None
    while exponent:
        if exponent & 1:
            out = k.topi.identity(x) if out is None else k.topi.multiply(out, x)
        exponent >>= 1
        if exponent:
            x = k.topi.multiply(x, x)
    return out


def add_scalar(a: Tensor, scalar: float) -> Tensor:
    """Return a + scalar."""
    return apply(AddScalar(scalar), (a,))


def mul_scalar(a: Tensor, scalar: float) -> Tensor:
    """Return a * scalar."""
    return apply(MulScalar(scalar), (a,))


def divide_scalar(a: Tensor, scalar: float) -> Tensor:
    """Return a / scalar; integers give float64."""
    return apply(DivideScalar(scalar), (a,))


def power_scalar(a: Tensor, scalar: float) -> Tensor:
    """Return a ** scalar. Raises ValueError for an integer tensor to a negative integer power."""
    return apply(PowerScalar(scalar), (a,))
