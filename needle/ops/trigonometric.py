"""Trigonometric and hyperbolic functions, and their inverses. Angles are in radians."""

from __future__ import annotations

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.tensor import Operand, Tensor
from ..backend_ndarray import NDArray, numpy_functions
from ..backend_ndarray.dtypes import FLOAT_OF_INTEGER, is_floating, result_type
from ..errors import ShapeError
from ..op import Binary, register, unbroadcast
from ..op.samples import binary, error
from ..op.signatures import Gradients, TeNamespace, TeTensor
from . import _functions, _te
from ._operands import applied
from .arithmetic import where
from .elementwise import _Float, rsqrt


@register
class Sin(_Float, twin=np.sin, samples=(-4, 4), by_input=lambda g, x: g * cos(x)):
    """y = sin(x)."""


@register
class Cos(_Float, twin=np.cos, samples=(-4, 4), by_input=lambda g, x: -g * sin(x)):
    """y = cos(x)."""


@register
class Tan(_Float, twin=np.tan, samples=(-1.2, 1.2), by_output=lambda g, y: g * (y * y + 1)):
    """y = tan(x)."""


@register
class Asin(_Float, twin=np.arcsin, samples=(-0.9, 0.9), by_input=lambda g, x: g * rsqrt(1 - x * x)):
    """y = the angle in [-pi / 2, pi / 2] whose sine is x; NaN outside [-1, 1]."""


@register
class Acos(
    _Float, twin=np.arccos, samples=(-0.9, 0.9), by_input=lambda g, x: -g * rsqrt(1 - x * x)
):
    """y = the angle in [0, pi] whose cosine is x; NaN outside [-1, 1]."""


@register
class Atan(_Float, twin=np.arctan, samples=(-4, 4), by_input=lambda g, x: g / (x * x + 1)):
    """y = the angle in [-pi / 2, pi / 2] whose tangent is x."""


@register
class Sinh(_Float, twin=np.sinh, element=_functions.sinh, by_input=lambda g, x: g * cosh(x)):
    """y = (exp(x) - exp(-x)) / 2."""


@register
class Cosh(_Float, twin=np.cosh, element=_functions.cosh, by_input=lambda g, x: g * sinh(x)):
    """y = (exp(x) + exp(-x)) / 2."""


@register
class Asinh(
    _Float,
    twin=np.arcsinh,
    samples=(-4, 4),
    by_input=lambda g, x: g * rsqrt(x * x + 1),
    element=_functions.asinh,
):
    """y = the inverse hyperbolic sine of x: sinh(y) = x."""


@register
class Acosh(
    _Float,
    twin=np.arccosh,
    samples=(1.2, 4),
    by_input=lambda g, x: g * rsqrt(x * x - 1),
    element=_functions.acosh,
):
    """y = the inverse hyperbolic cosine of x: cosh(y) = x, y >= 0; NaN below 1."""


@register
class Atanh(
    _Float,
    twin=np.arctanh,
    samples=(-0.9, 0.9),
    by_input=lambda g, x: g / (1 - x * x),
    element=_functions.atanh,
):
    """y = the inverse hyperbolic tangent of x: tanh(y) = x; NaN outside [-1, 1]."""


@register
class Atan2(Binary):
    """y = the angle of the point (b, a), in [-pi, pi]."""

    reads = frozenset({"inputs"})
    reference = staticmethod(numpy_functions.atan2)
    samples = binary(0.3, 2)
    error_samples = (error(ShapeError, r"shapes \(2, 3\) and \(4,\)", (2, 3), (4,)),)

    def dtype_of(self, a: str, b: str) -> str:
        dtype = result_type(a, b)
        return dtype if is_floating(dtype) else FLOAT_OF_INTEGER

    def compute(self, a: NDArray, b: NDArray) -> NDArray:
        return a.atan2(b)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        a, b = node.inputs
        square = a * a + b * b
        scaled = out_grad / where(square == 0, 1, square)  # at (0, 0) the gradients are 0
        return (
            unbroadcast(scaled * b, a) if a.requires_grad else None,
            unbroadcast(-scaled * a, b) if b.requires_grad else None,
        )

    def emit_te(self, k: TeNamespace, a: TeTensor, b: TeTensor) -> TeTensor:
        a, b = (_te.as_float(k, x) for x in _te.promote(k, a, b))
        return _te.broadcast(k, k.tirx.atan2, a, b)


SIN, COS, TAN, ASIN, ACOS, ATAN = Sin(), Cos(), Tan(), Asin(), Acos(), Atan()
SINH, COSH, ASINH, ACOSH, ATANH, ATAN2 = Sinh(), Cosh(), Asinh(), Acosh(), Atanh(), Atan2()


def sin(a: Tensor) -> Tensor:
    """Return the sine of an angle in radians, elementwise; integers give float64."""
    return apply(SIN, (a,))


def cos(a: Tensor) -> Tensor:
    """Return the cosine of an angle in radians, elementwise; integers give float64."""
    return apply(COS, (a,))


def tan(a: Tensor) -> Tensor:
    """Return the tangent of an angle in radians, elementwise; integers give float64."""
    return apply(TAN, (a,))


def asin(a: Tensor) -> Tensor:
    """Return the inverse sine in radians, elementwise; integers give float64."""
    return apply(ASIN, (a,))


def acos(a: Tensor) -> Tensor:
    """Return the inverse cosine in radians, elementwise; integers give float64."""
    return apply(ACOS, (a,))


def atan(a: Tensor) -> Tensor:
    """Return the inverse tangent in radians, elementwise; integers give float64."""
    return apply(ATAN, (a,))


def sinh(a: Tensor) -> Tensor:
    """Return the hyperbolic sine, elementwise; integers give float64."""
    return apply(SINH, (a,))


def cosh(a: Tensor) -> Tensor:
    """Return the hyperbolic cosine, elementwise; integers give float64."""
    return apply(COSH, (a,))


def asinh(a: Tensor) -> Tensor:
    """Return the inverse hyperbolic sine, elementwise; integers give float64."""
    return apply(ASINH, (a,))


def acosh(a: Tensor) -> Tensor:
    """Return the inverse hyperbolic cosine, elementwise; integers give float64."""
    return apply(ACOSH, (a,))


def atanh(a: Tensor) -> Tensor:
    """Return the inverse hyperbolic tangent, elementwise; integers give float64."""
    return apply(ATANH, (a,))


def atan2(a: Operand, b: Operand) -> Tensor:
    """Return the angle of the point (b, a) in radians, from -pi to pi, with broadcasting; integers
    give float64."""
    return applied(ATAN2, a, b)
