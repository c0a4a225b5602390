"""Rules for elementwise functions of one tensor."""

from __future__ import annotations

import math
from typing import Any

from ... import ops
from ...backend_ndarray.dtypes import is_floating
from ._dtypes import has_kernel
from ._rules import Site, rule
from ._writer import Value, Writer

# Ops that become a single operator, computed in the dtype of the result.
_SAME: dict[type[Any], str] = {
    ops.Exp: "Exp",
    ops.Log: "Log",
    ops.Tanh: "Tanh",
    ops.Sigmoid: "Sigmoid",
    ops.Sqrt: "Sqrt",
    ops.Erf: "Erf",
    ops.Sin: "Sin",
    ops.Cos: "Cos",
    ops.Asin: "Asin",
    ops.Acos: "Acos",
    ops.Atan: "Atan",
}


@rule(*_SAME)
def same(s: Site, x: Value) -> Value:
    return s.w.op(_SAME[type(s.op)], s.w.cast(x, s.out.dtype))


def like(w: Writer, x: Value, number: float) -> Value:
    """Return a `number` in the dtype of `x` as a constant of `w`."""
    return w.constant(number, x.dtype)


def floats(s: Site, x: Value) -> Value:
    """Return `x` in the dtype of the result at `s`, or in float32 for half precision, so that
    composed functions are rounded once."""
    dtype = s.out.dtype
    return s.w.cast(x, dtype if dtype == "float64" else "float32")


def rounded(s: Site, y: Value) -> Value:
    """Return the result `y` of a composed function in the dtype of the op's result at `s`."""
    return s.w.cast(y, s.out.dtype)


@rule(ops.Negate)
def negate(s: Site, x: Value) -> Value:
    return s.w.op("Neg", x)


@rule(ops.Abs)
def absolute(s: Site, x: Value) -> Value:
    return x if x.dtype == "bool" else s.w.op("Abs", x)


@rule(ops.Sign)
def sign(s: Site, x: Value) -> Value:
    return s.w.op("Sign", x)


@rule(ops.Relu)
def relu(s: Site, x: Value) -> Value:
    if x.dtype == "bool":
        return x
    return s.w.op("Relu", x) if has_kernel("Relu", x.dtype) else s.w.op("Max", x, like(s.w, x, 0))


@rule(ops.Rsqrt)
def rsqrt(s: Site, x: Value) -> Value:
    x = floats(s, x)
    return rounded(s, s.w.op("Div", like(s.w, x, 1), s.w.op("Sqrt", x)))


@rule(ops.Cast)
def cast(s: Site, x: Value) -> Value:
    return s.w.cast(x, s.out.dtype)


@rule(ops.Detach)
def detach(s: Site, x: Value) -> Value:
    return x


# Exponentials and logarithms


@rule(ops.Exp2)
def exp2(s: Site, x: Value) -> Value:
    x = floats(s, x)
    return rounded(s, s.w.op("Pow", like(s.w, x, 2), x))


@rule(ops.Expm1)
def expm1(s: Site, x: Value) -> Value:
    """Write exp(x) - 1 as tanh(x / 2) * (exp(x) + 1), which avoids cancellation."""
    x = floats(s, x)
    return rounded(s, _expm1(s.w, x))


def _expm1(w: Writer, x: Value) -> Value:
    half = w.op("Tanh", w.op("Mul", x, like(w, x, 0.5)))
    return w.op("Mul", half, w.op("Add", w.op("Exp", x), like(w, x, 1)))


@rule(ops.Log2)
def log2(s: Site, x: Value) -> Value:
    return _log(s, x, math.log(2))


@rule(ops.Log10)
def log10(s: Site, x: Value) -> Value:
    return _log(s, x, math.log(10))


def _log(s: Site, x: Value, base: float) -> Value:
    x = floats(s, x)
    return rounded(s, s.w.op("Div", s.w.op("Log", x), like(s.w, x, base)))


@rule(ops.Log1p)
def log1p(s: Site, x: Value) -> Value:
    return rounded(s, _log1p(s.w, floats(s, x)))


def _log1p(w: Writer, x: Value) -> Value:
    """Write ln(1 + x). Near 0, a term corrects the rounding error of 1 + x (Kahan; Goldberg
    1991)."""
    one = like(w, x, 1)
    sum_ = w.op("Add", x, one)
    whole = w.op("Log", sum_)
    lost = w.op("Div", w.op("Sub", w.op("Sub", sum_, one), x), sum_)
    near = w.op("Less", w.op("Abs", x), one, dtype="bool")
    return w.op("Where", near, w.op("Sub", whole, lost), whole)


@rule(ops.Softplus)
def softplus(s: Site, x: Value) -> Value:
    if s.out.dtype != "float64":
        return s.w.op("Softplus", s.w.cast(x, s.out.dtype))
    x = floats(s, x)
    rest = _log1p(s.w, s.w.op("Exp", s.w.op("Neg", s.w.op("Abs", x))))
    return s.w.op("Add", s.w.op("Relu", x), rest)


@rule(ops.Erfinv)
def erfinv(s: Site, x: Value) -> Value:
    """Write erfinv as in Giles 2012, "Approximating the erfinv function", followed in float64 by
    two Newton steps on the error erf(y) - x."""
    w, x = s.w, floats(s, x)
    one = like(w, x, 1)
    product = w.op("Mul", w.op("Sub", one, x), w.op("Add", one, x))
    depth = w.op("Neg", w.op("Log", product))
    inner = _polynomial(w, w.op("Sub", depth, like(w, x, 2.5)), _GILES_CENTRE)
    outer = _polynomial(w, w.op("Sub", w.op("Sqrt", depth), like(w, x, 3)), _GILES_TAIL)
    near = w.op("Less", depth, like(w, x, 5), dtype="bool")
    y = w.op("Mul", w.op("Where", near, inner, outer), x)
    if x.dtype == "float64":
        y = _newton(w, _newton(w, y, x), x)
    # At -1 and 1 the polynomial is inf - inf.
    edge = w.op("Equal", w.op("Abs", x), one, dtype="bool")
    return rounded(s, w.op("Where", edge, w.op("Mul", x, like(w, x, math.inf)), y))


def _newton(w: Writer, y: Value, x: Value) -> Value:
    error = w.op("Sub", w.op("Erf", y), x)
    slope = w.op("Exp", w.op("Neg", w.op("Mul", y, y)))
    factor = like(w, y, math.sqrt(math.pi) / 2)
    return w.op("Sub", y, w.op("Div", w.op("Mul", error, factor), slope))


def _polynomial(w: Writer, x: Value, factors: tuple[float, ...]) -> Value:
    total = like(w, x, factors[0])
    for factor in factors[1:]:
        total = w.op("Add", w.op("Mul", total, x), like(w, x, factor))
    return total


_GILES_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_GILES_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip


# Trigonometric functions: few of them have float64 kernels


@rule(ops.Tan)
def tan(s: Site, x: Value) -> Value:
    if s.out.dtype != "float64":
        return s.w.op("Tan", s.w.cast(x, s.out.dtype))
    x = floats(s, x)
    return s.w.op("Div", s.w.op("Sin", x), s.w.op("Cos", x))


@rule(ops.Sinh)
def sinh(s: Site, x: Value) -> Value:
    """Write sinh as (m + m / (m + 1)) / 2 with m = exp(x) - 1."""
    w = s.w
    if s.out.dtype != "float64":
        return w.op("Sinh", w.cast(x, s.out.dtype))
    x = floats(s, x)
    size = _expm1(w, w.op("Abs", x))
    rest = w.op("Div", size, w.op("Add", size, like(w, x, 1)))
    # If m is infinite, the result is infinite, too.
    rest = w.op("Where", w.op("IsInf", size, dtype="bool"), like(w, x, 1), rest)
    half = w.op("Mul", w.op("Add", size, rest), like(w, x, 0.5))
    return w.op("Mul", w.op("Sign", x), half)


@rule(ops.Cosh)
def cosh(s: Site, x: Value) -> Value:
    w = s.w
    if s.out.dtype != "float64":
        return w.op("Cosh", w.cast(x, s.out.dtype))
    x = floats(s, x)
    both = w.op("Add", w.op("Exp", x), w.op("Exp", w.op("Neg", x)))
    return w.op("Mul", both, like(w, x, 0.5))


@rule(ops.Asinh)
def asinh(s: Site, x: Value) -> Value:
    """Write asinh as sign(x) * log1p(a + a * a / (1 + sqrt(a * a + 1))) with a = |x|, and as ln(2)
    + ln(a) where a * a would overflow."""
    w = s.w
    if s.out.dtype != "float64":
        return w.op("Asinh", w.cast(x, s.out.dtype))
    x = floats(s, x)
    one, size = like(w, x, 1), w.op("Abs", x)
    square = w.op("Mul", size, size)
    root = w.op("Sqrt", w.op("Add", square, one))
    inner = w.op("Add", size, w.op("Div", square, w.op("Add", one, root)))
    large = w.op("Add", w.op("Log", size), like(w, x, math.log(2)))
    is_large = w.op("Greater", size, like(w, x, 1e150), dtype="bool")
    return w.op("Mul", w.op("Sign", x), w.op("Where", is_large, large, _log1p(w, inner)))


@rule(ops.Acosh)
def acosh(s: Site, x: Value) -> Value:
    """Write acosh as log1p(d + sqrt(d) * sqrt(x + 1)) with d = x - 1, and as ln(2) + ln(x) where
    the sum would overflow."""
    w = s.w
    if s.out.dtype != "float64":
        return w.op("Acosh", w.cast(x, s.out.dtype))
    x = floats(s, x)
    one = like(w, x, 1)
    above = w.op("Sub", x, one)
    root = w.op("Mul", w.op("Sqrt", above), w.op("Sqrt", w.op("Add", x, one)))
    large = w.op("Add", w.op("Log", x), like(w, x, math.log(2)))
    is_large = w.op("Greater", x, like(w, x, 1e150), dtype="bool")
    return w.op("Where", is_large, large, _log1p(w, w.op("Add", above, root)))


@rule(ops.Atanh)
def atanh(s: Site, x: Value) -> Value:
    """Write atanh as (log1p(x) - log1p(-x)) / 2."""
    w = s.w
    if s.out.dtype != "float64":
        return w.op("Atanh", w.cast(x, s.out.dtype))
    x = floats(s, x)
    both = w.op("Sub", _log1p(w, x), _log1p(w, w.op("Neg", x)))
    return w.op("Mul", both, like(w, x, 0.5))


# Activations


@rule(ops.Gelu)
def gelu(s: Site, x: Value) -> Value:
    w = s.w
    if w.opset >= 20:
        return w.op("Gelu", w.cast(x, s.out.dtype))
    x = floats(s, x)
    phi = w.op("Add", w.op("Erf", w.op("Mul", x, like(w, x, math.sqrt(0.5)))), like(w, x, 1))
    return rounded(s, w.op("Mul", x, w.op("Mul", phi, like(w, x, 0.5))))


@rule(ops.Silu)
def silu(s: Site, x: Value) -> Value:
    x = floats(s, x)
    return rounded(s, s.w.op("Mul", x, s.w.op("Sigmoid", x)))


@rule(ops.Round)
def round_(s: Site, x: Value) -> Value:
    w, kind = s.w, s.op.kind
    if not is_floating(x.dtype):
        return x
    if kind != "trunc":
        return w.op({"floor": "Floor", "ceil": "Ceil", "round": "Round"}[kind], x)
    below = w.op("Less", x, like(w, x, 0), dtype="bool")
    return w.op("Where", below, w.op("Ceil", x), w.op("Floor", x))


@rule(ops.Clip)
def clip(s: Site, x: Value) -> Value:
    w, op, dtype = s.w, s.op, s.out.dtype
    low, high = op._bounds(dtype)
    x = w.cast(x, dtype)
    if low is None and high is None:
        return x
    if low is None or high is None:  # ONNX Runtime's Clip would also clip infinities
        op_type, bound = ("Min", high) if low is None else ("Max", low)
        return w.op(op_type, x, w.constant(bound, dtype))
    made: Value = w.node("Clip", x, *(w.constant(b, dtype) for b in (low, high)), shape=x.shape)
    return made


# Functions of a tensor and a number


@rule(ops.AddScalar)
def add_scalar(s: Site, x: Value) -> Value:
    return plus(s.w, s.w.cast(x, s.out.dtype), s.op.scalar)


def plus(w: Writer, x: Value, number: float) -> Value:
    """Return `x` + `number` in the dtype of `x`, in the graph of `w`."""
    return w.op("Or" if x.dtype == "bool" else "Add", x, like(w, x, number))


@rule(ops.MulScalar)
def mul_scalar(s: Site, x: Value) -> Value:
    w, x = s.w, s.w.cast(x, s.out.dtype)
    return w.op("And" if x.dtype == "bool" else "Mul", x, like(w, x, s.op.scalar))


@rule(ops.DivideScalar)
def divide_scalar(s: Site, x: Value) -> Value:
    x = s.w.cast(x, s.out.dtype)
    return s.w.op("Div", x, like(s.w, x, s.op.scalar))


@rule(ops.PowerScalar)
def power_scalar(s: Site, x: Value) -> Value:
    w, x, exponent = s.w, s.w.cast(x, s.out.dtype), s.op.scalar
    if exponent == 0.5:
        return w.op("Sqrt", x)
    if is_floating(x.dtype):
        return w.op("Pow", x, like(w, x, exponent))
    return _whole_power(w, x, int(exponent))


def _whole_power(w: Writer, x: Value, exponent: int) -> Value:
    """Write integer powers by squaring. The results wrap around; those of Pow, which may use
    floats, do not."""
    total, square = None, x
    while exponent:
        if exponent & 1:
            total = square if total is None else w.op("Mul", total, square)
        exponent >>= 1
        square = w.op("Mul", square, square) if exponent else square
    return w.full(1, x.dtype, x.extents) if total is None else total
