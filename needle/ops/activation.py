"""Activations: ops of one tensor, and functions composed of several ops."""

from __future__ import annotations

import math

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, numpy_functions
from ..backend_ndarray.arguments import finite
from ..backend_ndarray.dtypes import FLOAT_OF_INTEGER, is_floating
from ..op import in_float32, register
from ..op.signatures import TeNamespace, TeTensor
from . import _te
from ._arguments import check_tensors
from .arithmetic import where
from .composed import Clip
from .elementwise import _Float, abs, cast, exp, sigmoid, tanh
from .exponential import SOFTPLUS, erf, expm1, softplus
from .shape import reshape

_DENSITY = 1 / math.sqrt(2 * math.pi)
_SELU_ALPHA = 1.6732632423543772848170429916717  # Klambauer et al. 2017
_SELU_SCALE = 1.0507009873554804934193349852946


def _gelu(x: np.ndarray) -> np.ndarray:
    return (x * (0.5 * (1 + numpy_functions.erf(x * x.dtype.type(math.sqrt(0.5)))))).astype(x.dtype)


def _silu(x: np.ndarray) -> np.ndarray:
    return x * numpy_functions.sigmoid(x)


@register
class Gelu(_Float, twin=_gelu, relax="nn.gelu"):
    """y = x * Phi(x), where Phi is the normal distribution function, computed with erf, not
    tanh."""

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
        half, root = (_te.full_like(k, x, c) for c in (0.5, math.sqrt(0.5)))
        # (erf + 1) / 2 as one multiply-add; the halves are exact.
        below = k.topi.add(k.topi.multiply(_te.erf(k, k.topi.multiply(x, root)), half), half)
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


GELU, SILU = Gelu(), Silu()


def gelu(a: Tensor, approximate: str = "none") -> Tensor:
    """Return a * (1 + erf(a / sqrt(2))) / 2, elementwise, or with `approximate` "tanh" its
    approximation by tanh (Hendrycks and Gimpel 2016). Integers give float64. Raises ValueError for
    any other `approximate`."""
    if approximate == "none":
        return apply(GELU, (a,))
    if approximate != "tanh":
        raise ValueError(f"gelu: approximate {approximate!r} is not 'none' or 'tanh'")
    inner = (a + a * a * a * 0.044715) * math.sqrt(2 / math.pi)
    return a * 0.5 * (tanh(inner) + 1.0)


def silu(a: Tensor) -> Tensor:
    """Return a * sigmoid(a), elementwise; integers give float64."""
    return apply(SILU, (a,))


def _negative_part(x: Tensor) -> Tensor:
    """Return x where it is at most 0, else 0, so that computing with it does not overflow."""
    return where(x > 0, 0, x)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return x where it is above 0, else negative_slope * x."""
    return where(x > 0, x, x * finite("leaky_relu", "negative_slope", negative_slope))


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """Return x where it is above 0, else weight * x. `weight` has one element, or one for each
    channel (the second axis of `x`). Raises ValueError for any other number of elements."""
    check_tensors("prelu", x=x, weight=weight)
    if weight.ndim != 1 or (weight.shape[0] != 1 and x.shape[1:2] != weight.shape):
        raise ValueError(
            f"prelu: weight of shape {weight.shape} for x {x.shape}; it must have one element or "
            "one for each channel (axis 1)"
        )
    slope = weight if x.ndim < 2 else reshape(weight, (weight.shape[0], *[1] * (x.ndim - 2)))
    return where(x > 0, x, x * slope)


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return x where it is above 0, else alpha * (exp(x) - 1) (Clevert et al. 2015)."""
    return where(x > 0, x, expm1(_negative_part(x)) * finite("elu", "alpha", alpha))


def selu(x: Tensor) -> Tensor:
    """Return 1.0507 * elu(x, 1.6733), with more digits of both (Klambauer et al. 2017)."""
    return elu(x, _SELU_ALPHA) * _SELU_SCALE


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return x where it is above 0, else alpha * (exp(x / alpha) - 1) (Barron 2017). Raises
    ValueError for an alpha of 0."""
    if finite("celu", "alpha", alpha) == 0:
        raise ValueError("celu: alpha is 0, but it is a divisor")
    return where(x > 0, x, expm1(_negative_part(x) / float(alpha)) * float(alpha))


def logsigmoid(x: Tensor) -> Tensor:
    """Return log(sigmoid(x)), elementwise, without overflow."""
    return -apply(SOFTPLUS, (-x,))


def mish(x: Tensor) -> Tensor:
    """Return x * tanh(softplus(x)) (Misra 2019)."""
    return x * tanh(softplus(x))


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Return `x` limited to [min_val, max_val]. The gradient is 0 at both ends and beyond. Raises
    ValueError unless min_val < max_val."""
    if not min_val < max_val:
        raise ValueError(f"hardtanh: min_val {min_val} is not below max_val {max_val}")
    check_tensors("hardtanh", x=x)
    return apply(Clip(min_val, max_val, inclusive=False), (x,))


def relu6(x: Tensor) -> Tensor:
    """Return `x` limited to [0, 6]."""
    return hardtanh(x, 0, 6)


def hardsigmoid(x: Tensor) -> Tensor:
    """Return x / 6 + 1 / 2, limited to [0, 1]."""
    return hardtanh(x, -3, 3) / 6.0 + 0.5


def hardswish(x: Tensor) -> Tensor:
    """Return x * hardsigmoid(x) (Howard et al. 2019)."""
    return x * hardsigmoid(x)


def softsign(x: Tensor) -> Tensor:
    """Return x / (1 + |x|), elementwise."""
    return x / (abs(x) + 1.0)


def tanhshrink(x: Tensor) -> Tensor:
    """Return x - tanh(x), elementwise."""
    return x - tanh(x)


def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """Return x where it is above `threshold`, else `value`."""
    return where(x > threshold, x, value)
