"""Activation functions, and the elementwise functions they are built from."""

from __future__ import annotations

import math

import numpy as np

from ..apply import apply
from ..backend_ndarray import NDArray
from ..backend_ndarray.dtypes import FLOAT_OF_INTEGER, is_floating
from ..op import Elementwise, in_float32, register
from ..op_types import Expr, TeNamespace, TeTensor
from ..samples import Arg, error, unary
from ..tensor import Tensor
from . import _te
from .elementwise import _TWO_INPUTS, _Float, _sigmoid, cast, exp, sigmoid

_DENSITY = 1 / math.sqrt(2 * math.pi)  # the normal density at 0


@register
class Abs(Elementwise):
    """y = |x|. The gradient at 0 is 0."""

    reads = frozenset({"inputs"})
    reference = np.absolute
    samples = unary()
    error_samples = (_TWO_INPUTS,)

    def compute(self, x: NDArray) -> NDArray:
        return x.abs()

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return out_grad * sign(node.inputs[0])

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        return k.topi.identity(x) if _te.dtype_of(x) == "bool" else k.topi.abs(x)


@register
class Sign(Elementwise):
    """y = -1, 0 or 1, as x is below, at or above 0; NaN for NaN. TypeError for bool."""

    infer_first = True
    reference = np.sign
    samples = unary()
    error_samples = (error(TypeError, "bool", Arg((2,), dtype="bool")), _TWO_INPUTS)

    def dtype_of(self, dtype: str) -> str:
        if dtype == "bool":
            raise TypeError(f"{self.name}: the input is bool; cast it to a number first")
        return dtype

    def compute(self, x: NDArray) -> NDArray:
        return x.sign()

    def gradient(self, out_grad: Tensor, node: Tensor) -> None:
        return None

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        zero, one, minus = (_te.full_like(k, x, c) for c in (0, 1, -1))

        def fn(v: Expr) -> Expr:
            # x itself if it is neither above nor below zero, so that NaN stays NaN.
            other = k.tirx.Select(v < zero, minus, v)
            return k.tirx.Select(v > zero, one, other)

        return _te.elementwise(k, fn, x)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x.astype("float64"))).astype(x.dtype)


def _gelu(x: np.ndarray) -> np.ndarray:
    return (x * (0.5 * (1 + _erf(x * x.dtype.type(math.sqrt(0.5)))))).astype(x.dtype)


def _silu(x: np.ndarray) -> np.ndarray:
    return x * _sigmoid(x)


@register
class Erf(
    _Float,
    twin=_erf,
    by_input=lambda g, x: g * (exp(-(x * x)) * (2 / math.sqrt(math.pi))),
    te=_te.erf,
):
    """y = erf(x), the error function."""


@register
class Gelu(_Float, twin=_gelu, relax="nn.gelu"):
    """y = x * Phi(x) with the normal distribution function Phi, by erf and not by tanh."""

    reads = frozenset({"inputs"})

    @in_float32
    def compute(self, x: NDArray) -> NDArray:
        x = x if is_floating(x.dtype) else x.astype(FLOAT_OF_INTEGER)
        return x * (((x * math.sqrt(0.5)).erf() + 1.0) * 0.5)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        (x,) = node.inputs
        below = (erf(x * math.sqrt(0.5)) + 1) * 0.5
        return out_grad * (below + x * exp(x * x * -0.5) * _DENSITY)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        x = _te.as_float(k, x)
        one, half, root = (_te.full_like(k, x, c) for c in (1, 0.5, math.sqrt(0.5)))
        below = k.topi.multiply(k.topi.add(_te.erf(k, k.topi.multiply(x, root)), one), half)
        return k.topi.multiply(x, below)


@register
class Silu(_Float, twin=_silu, relax="nn.silu"):
    """y = x * sigmoid(x)."""

    reads = frozenset({"inputs"})

    @in_float32
    def compute(self, x: NDArray) -> NDArray:
        return x * x.sigmoid()

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        (x,) = node.inputs
        s = sigmoid(x)
        return cast(out_grad * (s * (x * (1 - s) + 1)), x.dtype)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        x = _te.as_float(k, x)
        return k.topi.multiply(x, k.topi.sigmoid(x))


ABS, SIGN, ERF, GELU, SILU = Abs(), Sign(), Erf(), Gelu(), Silu()


def abs(a: Tensor) -> Tensor:
    """|a|, elementwise."""
    return apply(ABS, (a,))


def sign(a: Tensor) -> Tensor:
    """-1, 0 or 1, elementwise; NaN for NaN. TypeError for bool."""
    return apply(SIGN, (a,))


def erf(a: Tensor) -> Tensor:
    """The error function, elementwise; integers give float64."""
    return apply(ERF, (a,))


def gelu(a: Tensor) -> Tensor:
    """a * (1 + erf(a / sqrt(2))) / 2, elementwise; integers give float64."""
    return apply(GELU, (a,))


def silu(a: Tensor) -> Tensor:
    """a * sigmoid(a), elementwise; integers give float64."""
    return apply(SILU, (a,))
