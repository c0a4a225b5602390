"""Exponentials, logarithms and the error function."""

from __future__ import annotations

import math

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, numpy_functions
from ..backend_ndarray.arguments import finite
from ..backend_ndarray.dtypes import FLOAT_OF_INTEGER, is_floating
from ..op import in_float32, register
from ..op.signatures import Expr, TeNamespace, TeTensor
from . import _functions, _te
from ._arguments import check_tensors
from .arithmetic import where
from .elementwise import _Float, exp, sigmoid

_LN2, _LN10 = math.log(2), math.log(10)


def _coefficients(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


# P. J. Wichura, "Algorithm AS 241: The percentage points of the normal distribution", Applied
# Statistics 37, 1988: coefficients of the numerator and the denominator in the middle, in the
# tails and far out, starting with the constant.
_MIDDLE = (
    _coefficients(
        "3.3871328727963666080e0 1.3314166789178437745e2 1.9715909503065514427e3 "
        "1.3731693765509461125e4 4.5921953931549871457e4 6.7265770927008700853e4 "
        "3.3430575583588128105e4 2.5090809287301226727e3"
    ),
    _coefficients(
        "1.0 4.2313330701600911252e1 6.8718700749205790830e2 "
        "5.3941960214247511077e3 2.1213794301586595867e4 3.9307895800092710610e4 "
        "2.8729085735721942674e4 5.2264952788528545610e3"
    ),
)
_TAIL = (
    _coefficients(
        "1.42343711074968357734e0 4.63033784615654529590e0 5.76949722146069140550e0 "
        "3.64784832476320460504e0 1.27045825245236838258e0 2.41780725177450611770e-1 "
        "2.27238449892691845833e-2 7.74545014278341407640e-4"
    ),
    _coefficients(
        "1.0 2.05319162663775882187e0 1.67638483018380384940e0 "
        "6.89767334985100004550e-1 1.48103976427480074590e-1 1.51986665636164571966e-2 "
        "5.47593808499534494600e-4 1.05075007164441684324e-9"
    ),
)
_FAR = (
    _coefficients(
        "6.65790464350110377720e0 5.46378491116411436990e0 1.78482653991729133580e0 "
        "2.96560571828504891230e-1 2.65321895265761230930e-2 1.24266094738807843860e-3 "
        "2.71155556874348757815e-5 2.01033439929228813265e-7"
    ),
    _coefficients(
        "1.0 5.99832206555887937690e-1 1.36929880922735805310e-1 "
        "1.48753612908506148525e-2 7.86869131145613259100e-4 1.84631831751005468180e-5 "
        "1.42151175831644588870e-7 2.04426310338993978564e-15"
    ),
)


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, np.zeros((), x.dtype))


def _te_softplus(k: TeNamespace, x: TeTensor) -> TeTensor:
    zero = _te.full_like(k, x, 0)

    def fn(v: Expr) -> Expr:
        far = _functions.log1p(k, k.tirx.exp(zero - k.tirx.abs(k.tirx.convert(v))))
        return _te.greater_or_nan(k, v, zero, _te.dtype_of(x)) + far

    return _te.elementwise(k, fn, x)


def _te_erfinv(k: TeNamespace, x: TeTensor) -> TeTensor:
    """Return erfinv of x, computed in float64 as in the kernel."""
    wide = _te.cast(k, x, "float64")

    def const(value: float) -> Expr:
        return k.tirx.const(value, "float64")

    def ratio(coefficients: tuple[tuple[float, ...], ...], r: Expr) -> Expr:
        parts = []
        for row in coefficients:
            y = const(row[-1])
            for c in row[-2::-1]:
                y = y * r + const(c)
            parts.append(y)
        return parts[0] / parts[1]

    def root(v: Expr) -> Expr:
        return k.tirx.sqrt(-k.tirx.log(const(0.5) - k.tirx.abs(v * const(0.5))))

    # Two steps, because a single expression would compute the root again at every use.
    roots = _te.elementwise(k, root, wide)

    def fn(*i: Expr) -> Expr:
        v, r = wide[i], roots[i]
        q = v * const(0.5)
        middle = q * ratio(_MIDDLE, const(0.180625) - q * q)
        tail = k.tirx.Select(r <= const(5), ratio(_TAIL, r - const(1.6)), ratio(_FAR, r - const(5)))
        tail = k.tirx.Select(q < const(0), -tail, tail)
        inner = k.tirx.Select(k.tirx.abs(q) <= const(0.425), middle, tail) * const(math.sqrt(0.5))
        size = k.tirx.abs(v)
        ends = k.tirx.Select(size == const(1), v * const(math.inf), const(math.nan))
        return k.tirx.Select(size < const(1), inner, ends)

    return _te.cast(k, k.te.compute(x.shape, fn), _te.dtype_of(x))


@register
class Exp2(
    _Float,
    twin=np.exp2,
    by_output=lambda g, y: g * (y * _LN2),
    element=lambda k, x: k.tirx.exp2(x),
    relax="",
):
    """y = 2 ** x."""


@register
class Expm1(
    _Float, twin=np.expm1, by_output=lambda g, y: g * (y + 1), element=_functions.expm1, relax=""
):
    """y = exp(x) - 1, without cancellation near 0."""


@register
class Log2(
    _Float,
    twin=np.log2,
    samples=(0.2, 4),
    by_input=lambda g, x: g / (x * _LN2),
    element=lambda k, x: k.tirx.log2(x),
    relax="",
):
    """y = log2(x)."""


@register
class Log10(
    _Float,
    twin=np.log10,
    samples=(0.2, 4),
    by_input=lambda g, x: g / (x * _LN10),
    element=lambda k, x: k.tirx.log10(x),
    relax="",
):
    """y = log10(x)."""


@register
class Log1p(
    _Float,
    twin=np.log1p,
    samples=(-0.7, 4),
    by_input=lambda g, x: g / (x + 1),
    element=_functions.log1p,
    relax="",
):
    """y = ln(1 + x), without cancellation near 0."""


@register
class Softplus(
    _Float, twin=_softplus, by_input=lambda g, x: g * sigmoid(x), te=_te_softplus, relax=""
):
    """y = ln(1 + exp(x))."""

    @in_float32
    def compute(self, x: NDArray) -> NDArray:
        x = x if is_floating(x.dtype) else x.astype(FLOAT_OF_INTEGER)
        return x.relu() + (-x.abs()).exp().log1p()


@register
class Erf(
    _Float,
    twin=numpy_functions.erf,
    by_input=lambda g, x: g * (exp(-(x * x)) * (2 / math.sqrt(math.pi))),
    te=_te.erf,
):
    """y = erf(x), the error function."""


@register
class Erfinv(
    _Float,
    twin=numpy_functions.erfinv,
    samples=(-0.9, 0.9),
    by_output=lambda g, y: g * (exp(y * y) * (math.sqrt(math.pi) / 2)),
    te=_te_erfinv,
    relax="",
):
    """y = the inverse of the error function: erf(y) = x (Wichura 1988)."""


EXP2, EXPM1, LOG2, LOG10, LOG1P = Exp2(), Expm1(), Log2(), Log10(), Log1p()
SOFTPLUS, ERF, ERFINV = Softplus(), Erf(), Erfinv()


def exp2(a: Tensor) -> Tensor:
    """Return 2 ** a, elementwise; integers give float64."""
    return apply(EXP2, (a,))


def expm1(a: Tensor) -> Tensor:
    """Return exp(a) - 1 without cancellation near 0, elementwise; integers give float64."""
    return apply(EXPM1, (a,))


def log2(a: Tensor) -> Tensor:
    """Return the logarithm to base 2, elementwise; integers give float64."""
    return apply(LOG2, (a,))


def log10(a: Tensor) -> Tensor:
    """Return the logarithm to base 10, elementwise; integers give float64."""
    return apply(LOG10, (a,))


def log1p(a: Tensor) -> Tensor:
    """Return ln(1 + a) without cancellation near 0, elementwise; integers give float64."""
    return apply(LOG1P, (a,))


def erf(a: Tensor) -> Tensor:
    """Return the error function, elementwise; integers give float64."""
    return apply(ERF, (a,))


def erfinv(a: Tensor) -> Tensor:
    """Return the inverse of the error function, elementwise; NaN outside [-1, 1]."""
    return apply(ERFINV, (a,))


def softplus(a: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return ln(1 + exp(beta * a)) / beta, or `a` itself where beta * a is above `threshold`.
    Raises ValueError for a beta of 0."""
    if finite("softplus", "beta", beta) == 0:
        raise ValueError("softplus: beta is 0, but it is a divisor")
    check_tensors("softplus", a=a)
    scaled = a if beta == 1 else a * float(beta)
    y = apply(SOFTPLUS, (scaled,))
    y = y if beta == 1 else y / float(beta)
    if finite("softplus", "threshold", threshold) >= 20 and y.dtype != "float64":
        return y  # above the threshold, y is `a` rounded
    return where(scaled > float(threshold), a, y)
