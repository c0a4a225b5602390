"""Ops of two tensors, with NumPy broadcasting and promotion."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from ..autograd.shapes import Spec, broadcast_shapes, common_device
from ..autograd.tensor import Operand, Tensor
from ..backend_ndarray import NDArray, full
from ..backend_ndarray import where as nd_where
from ..backend_ndarray.dtypes import FLOAT_OF_INTEGER, is_floating, result_type
from ..errors import ShapeError
from ..op import Binary, Op, register, unbroadcast
from ..op.samples import Arg, binary, error, sample
from ..op.signatures import Expr, Gradients, TeNamespace, TeTensor
from . import _te
from ._operands import applied
from .elementwise import cast, log

_MISMATCH = error(ShapeError, r"shapes \(2, 3\) and \(4,\)", (2, 3), (4,))
_BOTH_BOOL = error(TypeError, "bool", Arg((2,), dtype="bool"), Arg((2,), dtype="bool"))
_NOT_WIDENED = ("float32", "float64")  # unlike half precision, which is computed in float32


@register
class Add(Binary):
    """y = a + b; logical or for two bools."""

    reference = np.add
    samples = binary()
    error_samples = (_MISMATCH,)

    def compute(self, a: NDArray, b: NDArray) -> NDArray:
        return a + b

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        a, b = node.inputs
        return unbroadcast(out_grad, a), unbroadcast(out_grad, b)

    def emit_te(self, k: TeNamespace, a: TeTensor, b: TeTensor) -> TeTensor:
        x, y = _te.without_bool(k, a, b)
        return _te.cast(k, k.topi.add(x, y), _te.result(a, b))

    def emit(self, r: ModuleType, a: Expr, b: Expr) -> Expr | None:
        return _te.same_number(r, a, b) and r.op.add(a, b)


@register
class Subtract(Binary):
    """y = a - b."""

    infer_first = True
    reference = np.subtract
    samples = binary()
    error_samples = (_MISMATCH, _BOTH_BOOL)

    def dtype_of(self, a: str, b: str) -> str:
        if a == b == "bool":
            raise TypeError(f"{self.name}: both inputs are bool; use a comparison or cast them")
        return result_type(a, b)

    def compute(self, a: NDArray, b: NDArray) -> NDArray:
        return a - b

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        a, b = node.inputs
        return unbroadcast(out_grad, a), unbroadcast(-out_grad, b) if b.requires_grad else None

    def emit_te(self, k: TeNamespace, a: TeTensor, b: TeTensor) -> TeTensor:
        return k.topi.subtract(*_te.promote(k, a, b))

    def emit(self, r: ModuleType, a: Expr, b: Expr) -> Expr | None:
        return _te.same_number(r, a, b) and r.op.subtract(a, b)


@register
class Multiply(Binary):
    """y = a * b; logical and for two bools."""

    reads = frozenset({"inputs"})
    reference = np.multiply
    samples = binary()
    error_samples = (_MISMATCH,)

    def compute(self, a: NDArray, b: NDArray) -> NDArray:
        return a * b

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        a, b = node.inputs
        return (
            unbroadcast(out_grad * b, a) if a.requires_grad else None,
            unbroadcast(out_grad * a, b) if b.requires_grad else None,
        )

    def emit_te(self, k: TeNamespace, a: TeTensor, b: TeTensor) -> TeTensor:
        x, y = _te.without_bool(k, a, b)
        return _te.cast(k, k.topi.multiply(x, y), _te.result(a, b))

    def emit(self, r: ModuleType, a: Expr, b: Expr) -> Expr | None:
        one, other = (str(each.ty.dtype) for each in (a, b))
        if one == "bool" and other in _NOT_WIDENED:  # a mask
            return r.op.multiply(r.op.astype(a, other), b)
        if other == "bool" and one in _NOT_WIDENED:
            return r.op.multiply(a, r.op.astype(b, one))
        return _te.same_number(r, a, b) and r.op.multiply(a, b)


@register
class Divide(Binary):
    """y = a / b; integers are divided in float64."""

    reads = frozenset({"inputs"})
    reference = np.true_divide
    samples = binary(low2=0.3, high2=2)
    error_samples = (_MISMATCH,)

    def dtype_of(self, a: str, b: str) -> str:
        dtype = result_type(a, b)
        return dtype if is_floating(dtype) else FLOAT_OF_INTEGER

    def compute(self, a: NDArray, b: NDArray) -> NDArray:
        return a / b

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        a, b = node.inputs
        return (
            unbroadcast(out_grad / b, a) if a.requires_grad else None,
            unbroadcast(-out_grad * a / (b * b), b) if b.requires_grad else None,
        )

    def emit_te(self, k: TeNamespace, a: TeTensor, b: TeTensor) -> TeTensor:
        a, b = _te.promote(k, a, b)
        return k.topi.divide(_te.as_float(k, a), _te.as_float(k, b))

    def emit(self, r: ModuleType, a: Expr, b: Expr) -> Expr | None:
        same = _te.same_number(r, a, b) and is_floating(str(a.ty.dtype))
        return r.op.divide(a, b) if same else None


@register
class Power(Binary):
    """y = a ** b for floats. As in PyTorch, the gradient for a is 0 where b is 0, and the gradient
    for b is 0 where a is 0 and b is not negative."""

    infer_first = True
    reads = frozenset({"inputs", "output"})
    reference = np.power
    samples = binary(0.3, 2, -2, 2)
    error_samples = (
        _MISMATCH,
        error(TypeError, "int32", Arg((2,), dtype="int32"), Arg((2,), dtype="int32")),
    )

    def dtype_of(self, a: str, b: str) -> str:
        dtype = result_type(a, b)
        if not is_floating(dtype):
            raise TypeError(f"{self.name}: {a} ** {b} is not defined; cast one to a float dtype")
        return dtype

    def compute(self, a: NDArray, b: NDArray) -> NDArray:
        return a**b

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        a, b = node.inputs
        grads: list[Tensor | None] = [None, None]
        if a.requires_grad:
            slope = where(b == 0, 0, b * a ** (b - 1))
            grads[0] = unbroadcast(out_grad * slope, a)
        if b.requires_grad:
            vanishes = (a == 0) * (b >= 0)
            safe = where(vanishes, 1, a)
            grads[1] = unbroadcast(out_grad * where(vanishes, 0, node * log(safe)), b)
        return tuple(grads)

    def emit_te(self, k: TeNamespace, a: TeTensor, b: TeTensor) -> TeTensor:
        return k.topi.power(*_te.promote(k, a, b))


class _Select(Binary):
    """Base of maximum and minimum: NaN if either is NaN. Equal elements share the gradient."""

    reads = frozenset({"inputs"})
    samples = binary()
    error_samples = (_MISMATCH,)
    first: ClassVar[str]  # the comparison that picks the first operand

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        a, b = node.inputs
        tie = cast(a == b, node.dtype) * 0.5
        left = cast(Compare(self.first)(a, b), node.dtype) + tie
        return unbroadcast(out_grad * left, a), unbroadcast(out_grad * (1 - left), b)


@register
class Maximum(_Select):
    """y = the larger of a and b, NaN if either is NaN. Equal elements share the gradient."""

    first = "greater"
    reference = np.maximum

    def compute(self, a: NDArray, b: NDArray) -> NDArray:
        return a.maximum(b)

    def emit_te(self, k: TeNamespace, a: TeTensor, b: TeTensor) -> TeTensor:
        x, y = _te.without_bool(k, a, b)
        out = _te.broadcast(k, lambda p, q: _te.greater_or_nan(k, p, q, _te.dtype_of(x)), x, y)
        return _te.cast(k, out, _te.result(a, b))


@register
class Minimum(_Select):
    """y = the smaller of a and b, NaN if either is NaN. Equal elements share the gradient."""

    first = "less"
    reference = np.minimum

    def compute(self, a: NDArray, b: NDArray) -> NDArray:
        return a.minimum(b)

    def emit_te(self, k: TeNamespace, a: TeTensor, b: TeTensor) -> TeTensor:
        x, y = _te.without_bool(k, a, b)
        out = _te.broadcast(k, lambda p, q: _te.less_or_nan(k, p, q, _te.dtype_of(x)), x, y)
        return _te.cast(k, out, _te.result(a, b))


_COMPARISONS: dict[str, Callable[..., Any]] = {
    "equal": NDArray.__eq__,
    "not_equal": NDArray.__ne__,
    "less": NDArray.__lt__,
    "less_equal": NDArray.__le__,
    "greater": NDArray.__gt__,
    "greater_equal": NDArray.__ge__,
}


@register
class Compare(Binary):
    """y = a `kind` b, as bool; kind is equal, not_equal, less, less_equal, greater or
    greater_equal. No gradient flows back."""

    kind: str

    samples = tuple(
        sample(Arg(a), Arg(b), kind=kind)
        for kind in _COMPARISONS
        for a, b in (((), ()), ((3, 1), (4,)), ((0, 2), (2,)))
    )
    error_samples = (
        error(ShapeError, r"\(2, 3\) and \(4,\)", (2, 3), (4,), kind="less"),
        error(ValueError, "'between'", (2,), (2,), kind="between"),
    )

    def dtype_of(self, a: str, b: str) -> str:
        if self.kind not in _COMPARISONS:
            raise ValueError(
                f"{self.name}: kind {self.kind!r} is none of {', '.join(_COMPARISONS)}"
            )
        return "bool"

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return getattr(np, self.kind)(a, b)

    def compute(self, a: NDArray, b: NDArray) -> NDArray:
        if self.kind not in _COMPARISONS:
            raise ValueError(self.kind)  # infer raises the full message
        return _COMPARISONS[self.kind](a, b)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        return None, None

    def emit_te(self, k: TeNamespace, a: TeTensor, b: TeTensor) -> TeTensor:
        a, b = _te.without_bool(k, a, b)
        if self.kind == "not_equal":
            return _te.broadcast(k, lambda p, q: _te.not_equal(k, p, q, _te.dtype_of(a)), a, b)
        return getattr(k.topi, self.kind)(a, b)

    def emit(self, r: ModuleType, a: Expr, b: Expr) -> Expr | None:
        if self.kind == "not_equal" or not _te.same_number(r, a, b):
            return None
        return getattr(r.op, self.kind)(a, b)


@register
class Where(Op):
    """y = a where the condition is nonzero, else b; all three broadcast."""

    reads = frozenset({"inputs"})
    samples = tuple(
        sample(Arg(c, 0, 2, dtype="bool"), Arg(a), Arg(b))
        for c, a, b in (
            ((), (), ()),
            ((3, 4), (3, 4), (3, 4)),
            ((3, 1), (4,), ()),
            ((0, 2), (2,), (1,)),
        )
    )
    error_samples = (
        error(ShapeError, r"\(2,\).*\(3,\)", Arg((2,), dtype="bool"), Arg((3,)), Arg((3,))),
    )

    def infer(self, condition: Spec, a: Spec, b: Spec) -> Spec:
        device = common_device(self.name, condition, a, b)
        shape = broadcast_shapes(self.name, condition.shape, a.shape, b.shape)
        return Spec(shape, result_type(a.dtype, b.dtype), device)

    def reference(self, condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(condition, a, b)

    def compute(self, condition: NDArray, a: NDArray, b: NDArray) -> NDArray:
        return nd_where(condition, a, b)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        condition, a, b = node.inputs
        zero = Tensor(full((), 0, out_grad.dtype, out_grad.device), requires_grad=False)
        return (
            None,
            unbroadcast(where(condition, out_grad, zero), a) if a.requires_grad else None,
            unbroadcast(where(condition, zero, out_grad), b) if b.requires_grad else None,
        )

    def emit_te(self, k: TeNamespace, condition: TeTensor, a: TeTensor, b: TeTensor) -> TeTensor:
        x, y = _te.without_bool(k, a, b)
        out = k.topi.where(_te.cast(k, condition, "bool"), x, y)
        return _te.cast(k, out, _te.result(a, b))


ADD, SUBTRACT, MULTIPLY, DIVIDE, POWER = Add(), Subtract(), Multiply(), Divide(), Power()
MAXIMUM, MINIMUM, WHERE = Maximum(), Minimum(), Where()
COMPARE = {kind: Compare(kind) for kind in _COMPARISONS}


def add(a: Operand, b: Operand) -> Tensor:
    """Return a + b with broadcasting.

    >>> (ndl.ones(2, 1) + ndl.ones(3)).shape
    (2, 3)
    """
    return applied(ADD, a, b)


def subtract(a: Operand, b: Operand) -> Tensor:
    """Return a - b with broadcasting. Raises TypeError for two bools."""
    return applied(SUBTRACT, a, b)


def multiply(a: Operand, b: Operand) -> Tensor:
    """Return a * b with broadcasting."""
    return applied(MULTIPLY, a, b)


def divide(a: Operand, b: Operand) -> Tensor:
    """Return a / b with broadcasting; integers give float64."""
    return applied(DIVIDE, a, b)


def power(a: Operand, b: Operand) -> Tensor:
    """Return a ** b with broadcasting. Raises TypeError when both are integers."""
    return applied(POWER, a, b)


def maximum(a: Operand, b: Operand) -> Tensor:
    """Return the larger of two elements, or NaN if either is NaN, with broadcasting.

    >>> ndl.maximum(ndl.Tensor([-1.0, 2.0]), 0.0).numpy().tolist()
    [0.0, 2.0]
    """
    return applied(MAXIMUM, a, b)


def minimum(a: Operand, b: Operand) -> Tensor:
    """Return the smaller of two elements, or NaN if either is NaN, with broadcasting."""
    return applied(MINIMUM, a, b)


def where(condition: Tensor, a: Operand, b: Operand) -> Tensor:
    """Return the elements of `a` where `condition` is nonzero, else the elements of `b`; all three
    broadcast. `a` and `b` may be numbers, which do not widen the dtype.

    >>> x = ndl.Tensor([1.0, -2.0])
    >>> ndl.where(x > 0, x, 0.0).numpy().tolist()
    [1.0, 0.0]
    """
    return applied(WHERE, condition, a, b, after=1)


def compare(kind: str, a: Operand, b: Operand) -> Tensor:
    """Return a `kind` b as bool; `kind` is equal, not_equal, less, less_equal, greater or
    greater_equal."""
    return applied(Compare(kind), a, b)


def equal(a: Operand, b: Operand) -> Tensor:
    """Return a == b, as bool, with broadcasting."""
    return compare("equal", a, b)


def not_equal(a: Operand, b: Operand) -> Tensor:
    """Return a != b, as bool, with broadcasting; NaN differs from itself."""
    return compare("not_equal", a, b)


def less(a: Operand, b: Operand) -> Tensor:
    """Return a < b, as bool, with broadcasting."""
    return compare("less", a, b)


def less_equal(a: Operand, b: Operand) -> Tensor:
    """Return a <= b, as bool, with broadcasting."""
    return compare("less_equal", a, b)


def greater(a: Operand, b: Operand) -> Tensor:
    """Return a > b, as bool, with broadcasting."""
    return compare("greater", a, b)


def greater_equal(a: Operand, b: Operand) -> Tensor:
    """Return a >= b, as bool, with broadcasting."""
    return compare("greater_equal", a, b)
