"""Elementwise ops of one input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.node import Node
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, numpy_functions
from ..backend_ndarray.dtypes import DTYPES, astype, dtype_name, is_floating
from ..op import Elementwise, register
from ..op.samples import Arg, ErrorSample, Sample, error, unary
from ..op.signatures import ArrayGradients, Expr, TeNamespace, TeTensor
from . import _te

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

_TWO_INPUTS = error(TypeError, "takes 1 input", (2,), (2,))


class _Float(Elementwise):
    """Base of float-valued functions, which compute integers and bools in float64. The class line
    says almost everything about such an op:

    class Exp(_Float, twin=np.exp, samples=(-3, 3), by_output=lambda g, y: g * y): ...

    `twin` is NumPy's function of floats, and `samples` the range from which samples are drawn. The
    gradient is `by_input(out_grad, x)` or `by_output(out_grad, y)`; an op with neither defines
    `reads` and `gradient`. The kernel, topi's function and Relax's operator have the op's name,
    unless `te` (a function of a tensor), `element` (a function of an expression) or `relax` ("" for
    none) gives another.
    """

    floating = True
    twin: ClassVar[Callable[..., np.ndarray]]
    by_input: ClassVar[Callable[..., Tensor] | None]
    by_output: ClassVar[Callable[..., Tensor] | None]
    te: ClassVar[Callable[..., TeTensor] | None]
    relax: ClassVar[str]  # needle_tvm.graph.legalize lowers Relax's operator by our `emit_te`
    error_samples = (_TWO_INPUTS,)

    def __init_subclass__(
        cls,
        twin: Callable[[np.ndarray], np.ndarray],
        samples: tuple[float, float] = (-2, 2),
        by_input: Callable[[Tensor, Tensor], Tensor] | None = None,
        by_output: Callable[[Tensor, Tensor], Tensor] | None = None,
        te: Callable[[TeNamespace, TeTensor], TeTensor] | None = None,
        element: Callable[[TeNamespace, Expr], Expr] | None = None,
        relax: str | None = None,
    ) -> None:
        cls.twin = staticmethod(twin)
        cls.samples = unary(*samples)
        cls.by_input = by_input and staticmethod(by_input)
        cls.by_output = by_output and staticmethod(by_output)
        if by_input or by_output:
            cls.reads = frozenset({"inputs" if by_input else "output"})
        if element:
            te = partial(_te.by_element, element)
        cls.te = te and staticmethod(te)
        cls.relax = cls.__name__.lower() if relax is None else relax

    def reference(self, x: np.ndarray) -> np.ndarray:
        return self.twin(x if is_floating(x.dtype.name) else x.astype("float64"))

    def compute(self, x: NDArray) -> NDArray:
        return getattr(x, self.name)()

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        if self.by_input:
            return self.by_input(out_grad, node.inputs[0])
        assert self.by_output, "a row without by_input and by_output defines gradient"
        return self.by_output(out_grad, node)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        x = _te.as_float(k, x)
        return self.te(k, x) if self.te else getattr(k.topi, self.name)(x)

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        known = self.relax and is_floating(str(x.ty.dtype))
        return attrgetter(self.relax)(r.op)(x) if known else None


def _rsqrt(x: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(x)


class _Number(Elementwise):
    """Base of ops that raise TypeError for bool tensors."""

    error_samples: ClassVar[Sequence[ErrorSample]] = (
        error(TypeError, "bool", Arg((2,), dtype="bool")),
        _TWO_INPUTS,
    )

    def dtype_of(self, dtype: str) -> str:
        if dtype == "bool":
            raise TypeError(f"{self.name}: the input is bool; cast it to a number first")
        return dtype


@register
class Negate(_Number):
    """y = -x. Raises TypeError for bool."""

    reference = np.negative
    samples = unary()

    def compute(self, x: NDArray) -> NDArray:
        return -x

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return -out_grad

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        return k.topi.negative(x)

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        return r.op.negative(x)


@register
class Relu(Elementwise):
    """y = max(x, 0); NaN stays NaN. The gradient at 0 is 0."""

    reads = frozenset({"output"})
    samples = unary()
    error_samples = (_TWO_INPUTS,)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.maximum(x, np.zeros((), x.dtype))

    def compute(self, x: NDArray) -> NDArray:
        return x.relu()

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return out_grad * (node > 0)

    def backward(self, out_grad: NDArray, node: Node) -> ArrayGradients:
        return (out_grad.relu_grad(node.output),)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        if _te.dtype_of(x) == "bool":
            return k.topi.identity(x)
        return k.topi.maximum(_te.full_like(k, x, 0), x)  # in this order, NaN survives

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        dtype = str(x.ty.dtype)  # not relax.nn.relu: its order of operands loses NaN
        return r.op.maximum(r.const(0, dtype), x) if is_floating(dtype) else None


@register
class Exp(_Float, twin=np.exp, samples=(-3, 3), by_output=lambda g, y: g * y):
    """y = exp(x)."""


@register
class Log(_Float, twin=np.log, samples=(0.2, 4), by_input=lambda g, x: g / x):
    """y = ln(x)."""


@register
class Tanh(_Float, twin=np.tanh, by_output=lambda g, y: g * (1 - y * y), te=_te.tanh):
    """y = tanh(x)."""


@register
class Sigmoid(_Float, twin=numpy_functions.sigmoid, by_output=lambda g, y: g * (y * (1 - y))):
    """y = 1 / (1 + exp(-x))."""


@register
class Sqrt(_Float, twin=np.sqrt, samples=(0.2, 4), by_output=lambda g, y: g / (y * 2)):
    """y = sqrt(x)."""


@register
class Rsqrt(
    _Float,
    twin=_rsqrt,
    samples=(0.2, 4),
    by_output=lambda g, y: g * (y * y * y) * -0.5,
    te=_te.rsqrt,
):
    """y = 1 / sqrt(x)."""


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
class Sign(_Number):
    """y = -1, 0 or 1 for x below, at or above 0; NaN for NaN. Raises TypeError for bool."""

    infer_first = True
    reference = np.sign
    samples = unary()

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


@register
class Cast(Elementwise):
    """y = x in another dtype; casts from floats to integers round towards zero."""

    dtype: str

    infer_first = True
    samples = tuple(
        Sample((Arg((3, 4), -3, 3, special=False),), {"dtype": dtype}, dtype == "float64")
        for dtype in DTYPES
    )
    error_samples = (
        error(TypeError, "cast: dtype 'complex64'", (2,), dtype="complex64"),
        error(TypeError, "takes 1 input", (2,), (2,), dtype="float64"),
    )

    def dtype_of(self, dtype: str) -> str:
        try:
            return dtype_name(self.dtype)
        except TypeError as reason:
            raise TypeError(f"{self.name}: {reason}") from None

    def reference(self, x: np.ndarray) -> np.ndarray:
        return astype(x, self.dtype)

    def compute(self, x: NDArray) -> NDArray:
        return x.astype(self.dtype)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return cast(out_grad, node.inputs[0].dtype)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        return k.topi.identity(x) if _te.dtype_of(x) == self.dtype else _te.cast(k, x, self.dtype)


@register
class Detach(Elementwise):
    """y = x without a gradient. Tracing records it; eager code only drops the history."""

    may_share = True

    samples = unary(shapes=((), (3, 4)), gradient=False)
    error_samples = (_TWO_INPUTS,)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x

    def compute(self, x: NDArray) -> NDArray:
        return x

    def gradient(self, out_grad: Tensor, node: Tensor) -> None:
        return None

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        return k.topi.identity(x)


NEGATE, RELU, EXP, LOG, TANH = Negate(), Relu(), Exp(), Log(), Tanh()
SIGMOID, SQRT, RSQRT, DETACH = Sigmoid(), Sqrt(), Rsqrt(), Detach()
ABS, SIGN = Abs(), Sign()


def negate(a: Tensor) -> Tensor:
    """Return -a. Raises TypeError for bool."""
    return apply(NEGATE, (a,))


def abs(a: Tensor) -> Tensor:
    """Return the absolute value |a|, elementwise."""
    return apply(ABS, (a,))


def sign(a: Tensor) -> Tensor:
    """Return the sign -1, 0 or 1, elementwise; NaN for NaN. No gradient flows back. Raises
    TypeError for bool."""
    return apply(SIGN, (a,))


def relu(a: Tensor) -> Tensor:
    """Return max(a, 0), elementwise; NaN stays NaN."""
    return apply(RELU, (a,))


def exp(a: Tensor) -> Tensor:
    """Return e ** a, elementwise; integers give float64."""
    return apply(EXP, (a,))


def log(a: Tensor) -> Tensor:
    """Return the natural logarithm, elementwise; integers give float64."""
    return apply(LOG, (a,))


def tanh(a: Tensor) -> Tensor:
    """Return the hyperbolic tangent, elementwise; integers give float64."""
    return apply(TANH, (a,))


def sigmoid(a: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-a)), elementwise; integers give float64."""
    return apply(SIGMOID, (a,))


def sqrt(a: Tensor) -> Tensor:
    """Return the square root, elementwise; integers give float64, negative numbers NaN."""
    return apply(SQRT, (a,))


def rsqrt(a: Tensor) -> Tensor:
    """Return 1 / sqrt(a), elementwise; integers give float64."""
    return apply(RSQRT, (a,))


def cast(a: Tensor, dtype: DTypeLike) -> Tensor:
    """Return `a` in another `dtype`, or `a` itself if it has that dtype: `x.astype("int64")`.
    Raises TypeError for an unknown dtype."""
    name = dtype_name(dtype)
    return a if isinstance(a, Tensor) and a.dtype == name else apply(Cast(name), (a,))


def detach(a: Tensor) -> Tensor:
    """Return the value of `a` without its history; no gradient flows through it."""
    return apply(DETACH, (a,))
