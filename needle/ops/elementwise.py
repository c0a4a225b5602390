"""Ops with one input that work element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd import Tensor, apply
from ..backend_ndarray.dtypes import dtype_name, is_floating
from ..op import Elementwise, register
from ..samples import Arg, Sample, error, unary
from . import _te

_TWO_INPUTS = error(TypeError, "takes 1 input", (2,), (2,))


class _NotBool(Elementwise):
    """Elementwise ops without a meaning for bool."""

    infer_first = True
    error_samples = (
        error(TypeError, "bool", Arg((2,), dtype="bool")),
        _TWO_INPUTS,
    )

    def dtype_of(self, dtype: str) -> str:
        if dtype == "bool":
            raise TypeError(f"{self.name}: the input is bool; cast it to a number first")
        return super().dtype_of(dtype)


@register
class Negate(_NotBool):
    """y = -x."""

    reference = np.negative
    samples = unary()

    def compute(self, x: Any) -> Any:
        return -x

    def gradient(self, out_grad: Any, node: Any) -> Any:
        return -out_grad

    def emit_te(self, k: Any, x: Any) -> Any:
        return k.topi.negative(x)

    def emit(self, r: Any, x: Any) -> Any:
        return r.op.negative(x)


@register
class Relu(_NotBool):
    """y = max(x, 0); NaN stays NaN. The gradient at 0 is 0."""

    reads = frozenset({"output"})
    samples = unary()

    def reference(self, x: Any) -> Any:
        return np.maximum(x, np.zeros((), x.dtype))

    def compute(self, x: Any) -> Any:
        return x.relu()

    def gradient(self, out_grad: Any, node: Any) -> Any:
        return out_grad * (node > 0)

    def emit_te(self, k: Any, x: Any) -> Any:
        return k.topi.maximum(_te.full_like(k, x, 0), x)  # in this order NaN survives


@register
class Exp(Elementwise):
    """y = exp(x)."""

    floating = True
    reads = frozenset({"output"})
    reference = np.exp
    samples = unary(-3, 3)
    error_samples = (_TWO_INPUTS,)

    def compute(self, x: Any) -> Any:
        return x.exp()

    def gradient(self, out_grad: Any, node: Any) -> Any:
        return out_grad * node

    def emit_te(self, k: Any, x: Any) -> Any:
        return k.topi.exp(_te.as_float(k, x))


@register
class Log(Elementwise):
    """y = ln(x)."""

    floating = True
    reads = frozenset({"inputs"})
    reference = np.log
    samples = unary(0.2, 4)
    error_samples = (_TWO_INPUTS,)

    def compute(self, x: Any) -> Any:
        return x.log()

    def gradient(self, out_grad: Any, node: Any) -> Any:
        return out_grad / node.inputs[0]

    def emit_te(self, k: Any, x: Any) -> Any:
        return k.topi.log(_te.as_float(k, x))


@register
class Tanh(Elementwise):
    """y = tanh(x)."""

    floating = True
    reads = frozenset({"output"})
    reference = np.tanh
    samples = unary()
    error_samples = (_TWO_INPUTS,)

    def compute(self, x: Any) -> Any:
        return x.tanh()

    def gradient(self, out_grad: Any, node: Any) -> Any:
        return out_grad * (1 - node * node)

    def emit_te(self, k: Any, x: Any) -> Any:
        return _te.tanh(k, _te.as_float(k, x))


@register
class Sigmoid(Elementwise):
    """y = 1 / (1 + exp(-x))."""

    floating = True
    reads = frozenset({"output"})
    samples = unary()
    error_samples = (_TWO_INPUTS,)

    def reference(self, x: Any) -> Any:
        x = x if is_floating(x.dtype.name) else x.astype("float64")
        e = np.exp(-np.abs(x))
        return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)

    def compute(self, x: Any) -> Any:
        return x.sigmoid()

    def gradient(self, out_grad: Any, node: Any) -> Any:
        return out_grad * (node * (1 - node))

    def emit_te(self, k: Any, x: Any) -> Any:
        return k.topi.sigmoid(_te.as_float(k, x))


@register
class Sqrt(Elementwise):
    """y = sqrt(x)."""

    floating = True
    reads = frozenset({"output"})
    reference = np.sqrt
    samples = unary(0.2, 4)
    error_samples = (_TWO_INPUTS,)

    def compute(self, x: Any) -> Any:
        return x.sqrt()

    def gradient(self, out_grad: Any, node: Any) -> Any:
        return out_grad / (node * 2)

    def emit_te(self, k: Any, x: Any) -> Any:
        return k.topi.sqrt(_te.as_float(k, x))


@register
class Rsqrt(Elementwise):
    """y = 1 / sqrt(x)."""

    floating = True
    reads = frozenset({"output"})
    samples = unary(0.2, 4)
    error_samples = (_TWO_INPUTS,)

    def reference(self, x: Any) -> Any:
        return 1 / np.sqrt(x if is_floating(x.dtype.name) else x.astype("float64"))

    def compute(self, x: Any) -> Any:
        return x.rsqrt()

    def gradient(self, out_grad: Any, node: Any) -> Any:
        return out_grad * (node * node * node) * -0.5

    def emit_te(self, k: Any, x: Any) -> Any:
        x = _te.as_float(k, x)
        return k.topi.divide(_te.full_like(k, x, 1), k.topi.sqrt(x))


@register
class Cast(Elementwise):
    """y = x in another dtype; floats are cut towards zero when cast to integers."""

    dtype: str

    infer_first = True
    samples = tuple(
        Sample((Arg((3, 4), -3, 3, special=False),), {"dtype": dtype})
        for dtype in ("float32", "float64", "int32", "int64", "bool")
    )
    error_samples = (
        error(TypeError, "cast: dtype 'complex64'", (2,), dtype="complex64"),
        _TWO_INPUTS,
    )

    def dtype_of(self, dtype: str) -> str:
        try:
            return dtype_name(self.dtype)
        except TypeError as reason:
            raise TypeError(f"{self.name}: {reason}") from None

    def reference(self, x: Any) -> Any:
        return x.astype(self.dtype)

    def compute(self, x: Any) -> Any:
        return x.astype(self.dtype)

    def gradient(self, out_grad: Any, node: Any) -> Any:
        return cast(out_grad, node.inputs[0].dtype)

    def emit_te(self, k: Any, x: Any) -> Any:
        return k.topi.identity(x) if _te.dtype_of(x) == self.dtype else _te.cast(k, x, self.dtype)


@register
class Detach(Elementwise):
    """y = x, through which no gradient flows. Tracing records it where eager code only forgets."""

    samples = unary(shapes=((), (3, 4)))
    error_samples = (_TWO_INPUTS,)

    def reference(self, x: Any) -> Any:
        return x

    def compute(self, x: Any) -> Any:
        return x

    def gradient(self, out_grad: Any, node: Any) -> Any:
        return None

    def emit_te(self, k: Any, x: Any) -> Any:
        return k.topi.identity(x)


NEGATE, RELU, EXP, LOG, TANH = Negate(), Relu(), Exp(), Log(), Tanh()
SIGMOID, SQRT, RSQRT, DETACH = Sigmoid(), Sqrt(), Rsqrt(), Detach()


def negate(a: Tensor) -> Tensor:
    """-a. TypeError for bool."""
    return apply(NEGATE, (a,))  # type: ignore[no-any-return]


def relu(a: Tensor) -> Tensor:
    """max(a, 0), elementwise; NaN stays NaN. TypeError for bool."""
    return apply(RELU, (a,))  # type: ignore[no-any-return]


def exp(a: Tensor) -> Tensor:
    """e ** a, elementwise; integers give float64."""
    return apply(EXP, (a,))  # type: ignore[no-any-return]


def log(a: Tensor) -> Tensor:
    """Natural logarithm, elementwise; integers give float64."""
    return apply(LOG, (a,))  # type: ignore[no-any-return]


def tanh(a: Tensor) -> Tensor:
    """Hyperbolic tangent, elementwise; integers give float64."""
    return apply(TANH, (a,))  # type: ignore[no-any-return]


def sigmoid(a: Tensor) -> Tensor:
    """1 / (1 + exp(-a)), elementwise; integers give float64."""
    return apply(SIGMOID, (a,))  # type: ignore[no-any-return]


def sqrt(a: Tensor) -> Tensor:
    """Square root, elementwise; integers give float64, negative numbers NaN."""
    return apply(SQRT, (a,))  # type: ignore[no-any-return]


def rsqrt(a: Tensor) -> Tensor:
    """1 / sqrt(a), elementwise; integers give float64."""
    return apply(RSQRT, (a,))  # type: ignore[no-any-return]


def cast(a: Tensor, dtype: Any) -> Tensor:
    """`a` in another dtype (itself when it has that dtype). TypeError for an unknown dtype."""
    name = dtype_name(dtype)
    return a if a.dtype == name else apply(Cast(name), (a,))


def detach(a: Tensor) -> Tensor:
    """The value of `a`, through which no gradient flows."""
    return apply(DETACH, (a,))  # type: ignore[no-any-return]
