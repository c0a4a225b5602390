"""Truth values and bits."""

from __future__ import annotations

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.tensor import Operand, Tensor
from ..backend_ndarray import NDArray
from ..backend_ndarray.dtypes import is_floating, result_type
from ..errors import ShapeError
from ..op import Binary, Elementwise, register
from ..op.samples import Arg, error, sample, unary
from ..op.signatures import Expr, Gradients, TeNamespace, TeTensor
from . import _te
from ._operands import applied

_PAIRS = (((), ()), ((3, 4), (4,)), ((3, 1), (1, 4)), ((0, 3), (1, 3)))
_CONDITIONS = {"isnan": np.isnan, "isfinite": np.isfinite, "logical_not": np.logical_not}


@register
class Condition(Elementwise):
    """y = whether x is NaN (isnan), finite (isfinite) or 0 (logical_not), as bool. No gradient
    flows back."""

    kind: str

    infer_first = True
    samples = tuple(
        s for kind in _CONDITIONS for s in unary(-1, 1, ((), (3, 4), (0, 3)), False, kind=kind)
    )
    error_samples = (
        error(ValueError, "kind 'isodd' is none of", (2,), kind="isodd"),
        error(TypeError, "takes 1 input", (2,), (2,), kind="isnan"),
    )

    def dtype_of(self, dtype: str) -> str:
        if self.kind not in _CONDITIONS:
            raise ValueError(f"{self.name}: kind {self.kind!r} is none of {', '.join(_CONDITIONS)}")
        return "bool"

    def reference(self, x: np.ndarray) -> np.ndarray:
        return _CONDITIONS[self.kind](x)

    def compute(self, x: NDArray) -> NDArray:
        return getattr(x, self.kind)()

    def gradient(self, out_grad: Tensor, node: Tensor) -> None:
        return None

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        dtype = _te.dtype_of(x)
        if self.kind == "logical_not":
            true = _te.cast(k, x, "bool")
            return _te.elementwise(k, k.tirx.Not, true)
        if not is_floating(dtype):
            known = k.tirx.const(self.kind == "isfinite", "bool")
            return _te.elementwise(k, lambda _: known, x)
        return _te.elementwise(k, getattr(k.tirx, self.kind), x)


_LOGICAL = {
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}


@register
class Logical(Binary):
    """y = a and b, a or b, or exactly one of them (logical_and, logical_or, logical_xor), as bool;
    a nonzero number is true. No gradient flows back."""

    kind: str

    infer_first = True
    samples = tuple(
        sample(Arg(a, -1, 2), Arg(b, -1, 2), kind=kind) for kind in _LOGICAL for a, b in _PAIRS
    )
    error_samples = (
        error(ShapeError, r"\(2, 3\) and \(4,\)", (2, 3), (4,), kind="logical_or"),
        error(ValueError, "kind 'nor' is none of", (2,), (2,), kind="nor"),
    )

    def dtype_of(self, a: str, b: str) -> str:
        if self.kind not in _LOGICAL:
            raise ValueError(f"{self.name}: kind {self.kind!r} is none of {', '.join(_LOGICAL)}")
        return "bool"

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return _LOGICAL[self.kind](a, b)

    def compute(self, a: NDArray, b: NDArray) -> NDArray:
        return getattr(a, self.kind)(b)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        return None, None

    def emit_te(self, k: TeNamespace, a: TeTensor, b: TeTensor) -> TeTensor:
        functions = {
            "logical_and": k.tirx.all,
            "logical_or": k.tirx.any,
            "logical_xor": lambda p, q: k.tirx.any(
                k.tirx.all(p, k.tirx.Not(q)), k.tirx.all(k.tirx.Not(p), q)
            ),
        }
        return _te.broadcast(
            k, functions[self.kind], _te.cast(k, a, "bool"), _te.cast(k, b, "bool")
        )


_BITWISE = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
}
_SHIFTS = ("left_shift", "right_shift")


@register
class Bitwise(Binary):
    """y = a & b, a | b, a ^ b, a << b or a >> b of integers (bitwise_and, bitwise_or, bitwise_xor,
    left_shift, right_shift). Bools have no shifts.

    A left shift by a negative number, or by the number of bits or more, gives 0; a right shift
    gives 0 or -1.
    """

    kind: str

    infer_first = True
    samples = tuple(
        sample(Arg(a, -9, 9), Arg(b, 0, 9), kind=kind) for kind in _BITWISE for a, b in _PAIRS
    )
    error_samples = (
        error(
            ShapeError,
            r"\(2, 3\) and \(4,\)",
            Arg((2, 3), dtype="int32"),
            Arg((4,), dtype="int32"),
            kind="bitwise_or",
        ),
        error(ValueError, "kind 'nor' is none of", (2,), (2,), kind="nor"),
        error(TypeError, "integers", Arg((2,), dtype="float32"), (2,), kind="bitwise_and"),
        error(
            TypeError, "bool", Arg((2,), dtype="bool"), Arg((2,), dtype="bool"), kind="left_shift"
        ),
    )

    def dtype_of(self, a: str, b: str) -> str:
        if self.kind not in _BITWISE:
            raise ValueError(f"{self.name}: kind {self.kind!r} is none of {', '.join(_BITWISE)}")
        dtype = result_type(a, b)
        if is_floating(dtype):
            raise TypeError(f"{self.kind}: {a} and {b} are not both integers")
        if dtype == "bool" and self.kind in _SHIFTS:
            raise TypeError(f"{self.kind}: both inputs are bool; cast one to an integer")
        return dtype

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return _BITWISE[self.kind](a, b)

    def compute(self, a: NDArray, b: NDArray) -> NDArray:
        return getattr(a, self.kind)(b)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        return None, None

    def emit_te(self, k: TeNamespace, a: TeTensor, b: TeTensor) -> TeTensor:
        x, y = _te.without_bool(k, a, b)
        dtype = _te.dtype_of(x)
        zero, last = k.tirx.const(0, dtype), k.tirx.const(_bits(dtype) - 1, dtype)

        def shifted(p: Expr, q: Expr) -> Expr:
            inside = k.tirx.all(q >= zero, q <= last)
            safe = k.tirx.Select(inside, q, zero)
            if self.kind == "left_shift":
                return k.tirx.Select(inside, k.tirx.shift_left(p, safe), zero)
            return k.tirx.shift_right(p, k.tirx.Select(inside, q, last))

        functions = {
            "bitwise_and": k.tirx.bitwise_and,
            "bitwise_or": k.tirx.bitwise_or,
            "bitwise_xor": k.tirx.bitwise_xor,
        }
        out = _te.broadcast(k, functions.get(self.kind, shifted), x, y)
        return _te.cast(k, out, _te.result(a, b))


def _bits(dtype: str) -> int:
    return np.dtype(dtype).itemsize * 8


@register
class BitwiseNot(Elementwise):
    """y = ~x for integers, "not x" for bools."""

    infer_first = True
    reference = np.invert
    samples = unary(-9, 9, gradient=False)
    error_samples = (error(TypeError, "integer", Arg((2,), dtype="float32")),)

    def dtype_of(self, dtype: str) -> str:
        if is_floating(dtype):
            raise TypeError(f"{self.name}: {dtype} is not an integer dtype")
        return dtype

    def compute(self, x: NDArray) -> NDArray:
        return x.bitwise_not()

    def gradient(self, out_grad: Tensor, node: Tensor) -> None:
        return None

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        function = k.tirx.Not if _te.dtype_of(x) == "bool" else k.tirx.bitwise_not
        return _te.elementwise(k, function, x)


ISNAN, ISFINITE, LOGICAL_NOT = (Condition(kind) for kind in _CONDITIONS)
LOGICAL_AND, LOGICAL_OR, LOGICAL_XOR = (Logical(kind) for kind in _LOGICAL)
BITWISE_AND, BITWISE_OR, BITWISE_XOR, LEFT_SHIFT, RIGHT_SHIFT = (Bitwise(kind) for kind in _BITWISE)
BITWISE_NOT = BitwiseNot()


def isnan(a: Tensor) -> Tensor:
    """Return whether each element is NaN, as bool."""
    return apply(ISNAN, (a,))


def isfinite(a: Tensor) -> Tensor:
    """Return whether each element is neither NaN nor infinite, as bool."""
    return apply(ISFINITE, (a,))


def isinf(a: Tensor) -> Tensor:
    """Return whether each element is infinite, as bool."""
    return logical_not(logical_or(isfinite(a), isnan(a)))


def logical_not(a: Tensor) -> Tensor:
    """Return whether each element is 0, as bool."""
    return apply(LOGICAL_NOT, (a,))


def logical_and(a: Operand, b: Operand) -> Tensor:
    """Return whether both elements are nonzero, as bool, with broadcasting."""
    return applied(LOGICAL_AND, a, b)


def logical_or(a: Operand, b: Operand) -> Tensor:
    """Return whether at least one of two elements is nonzero, as bool, with broadcasting."""
    return applied(LOGICAL_OR, a, b)


def logical_xor(a: Operand, b: Operand) -> Tensor:
    """Return whether exactly one of two elements is nonzero, as bool, with broadcasting."""
    return applied(LOGICAL_XOR, a, b)


def bitwise_and(a: Operand, b: Operand) -> Tensor:
    """Return a & b of integers or bools, with broadcasting. Raises TypeError for floats."""
    return applied(BITWISE_AND, a, b)


def bitwise_or(a: Operand, b: Operand) -> Tensor:
    """Return a | b of integers or bools, with broadcasting. Raises TypeError for floats."""
    return applied(BITWISE_OR, a, b)


def bitwise_xor(a: Operand, b: Operand) -> Tensor:
    """Return a ^ b of integers or bools, with broadcasting. Raises TypeError for floats."""
    return applied(BITWISE_XOR, a, b)


def bitwise_not(a: Tensor) -> Tensor:
    """Return ~a for integers, "not a" for bools. Raises TypeError for floats."""
    return apply(BITWISE_NOT, (a,))


def left_shift(a: Operand, b: Operand) -> Tensor:
    """Return a << b of integers, with broadcasting; 0 where b is negative or at least the number of
    bits. Raises TypeError for floats and two bools."""
    return applied(LEFT_SHIFT, a, b)


def right_shift(a: Operand, b: Operand) -> Tensor:
    """Return a >> b of integers, with broadcasting. The shift repeats the sign bit; the result is 0
    or -1 (the sign) where b is negative or at least the number of bits. Raises TypeError for floats
    and two bools."""
    return applied(RIGHT_SHIFT, a, b)


def condition(kind: str, a: Tensor) -> Tensor:
    """Return the condition `kind` of each element as bool: isnan, isfinite or logical_not."""
    return apply(Condition(kind), (a,))


def bitwise(kind: str, a: Operand, b: Operand) -> Tensor:
    """Return the bitwise operation `kind` of integers: bitwise_and, bitwise_or, bitwise_xor,
    left_shift or right_shift."""
    return applied(Bitwise(kind), a, b)
