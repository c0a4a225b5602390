"""Rounding, floor division and remainders."""

from __future__ import annotations

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.tensor import Operand, Tensor
from ..backend_ndarray import NDArray
from ..backend_ndarray.dtypes import compute_dtype, is_floating, result_type
from ..errors import ShapeError
from ..op import Binary, Elementwise, register, unbroadcast
from ..op.samples import Arg, Sample, error
from ..op.signatures import Gradients, TeNamespace, TeTensor
from . import _functions, _te
from ._operands import applied

# NumPy's function for each kind, and TVM's for floats. `round` rounds halves to the even neighbour.
_ROUNDINGS = {"floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc}
_TVM = {"floor": "floor", "ceil": "ceil", "round": "nearbyint", "trunc": "trunc"}


@register
class Round(Elementwise):
    """y = x rounded to a whole number in the same dtype: down (floor), up (ceil), to the nearest
    with halves to even (round), or towards 0 (trunc). Integers stay as they are. No gradient flows
    back."""

    kind: str

    infer_first = True
    samples = tuple(
        Sample((Arg(shape, -3, 3),), {"kind": kind}, False)
        for kind in _ROUNDINGS
        for shape in ((), (3, 4), (0, 3))
    )
    error_samples = (
        error(ValueError, "kind 'up' is none of", (2,), kind="up"),
        error(TypeError, "takes 1 input", (2,), (2,), kind="floor"),
    )

    def dtype_of(self, dtype: str) -> str:
        if self.kind not in _ROUNDINGS:
            raise ValueError(f"{self.name}: kind {self.kind!r} is none of {', '.join(_ROUNDINGS)}")
        return dtype

    def reference(self, x: np.ndarray) -> np.ndarray:
        return _ROUNDINGS[self.kind](x) if is_floating(x.dtype.name) else x

    def compute(self, x: NDArray) -> NDArray:
        return getattr(x, self.kind)()

    def gradient(self, out_grad: Tensor, node: Tensor) -> None:
        return None

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        if not is_floating(_te.dtype_of(x)):
            return k.topi.identity(x)
        return _te.elementwise(k, getattr(k.tirx, _TVM[self.kind]), x)


_DIVISIONS = {"floor_divide": np.floor_divide, "remainder": np.remainder, "fmod": np.fmod}


@register
class WholeDivision(Binary):
    """y = floor(a / b) (floor_divide), a - floor(a / b) * b (remainder, with b's sign), or
    a - trunc(a / b) * b (fmod, with a's sign). An integer divided by 0 gives 0.

    The gradient of the quotient is 0; the gradient of a remainder follows from its formula.
    """

    kind: str

    infer_first = True
    reads = frozenset({"inputs"})
    samples = tuple(
        Sample(
            (Arg(a, 5.1, 9.9), Arg(b, *bounds)),
            {"kind": kind},
            kind != "floor_divide",
        )
        for kind in _DIVISIONS
        for a, b, bounds in (
            ((), (), (10.5, 12)),
            ((3, 4), (4,), (10.5, 12)),
            ((3, 1), (1, 4), (-12, -10.5)),
            ((0, 3), (1, 3), (1, 2)),
        )
    )
    error_samples = (
        error(ShapeError, r"\(2, 3\) and \(4,\)", (2, 3), (4,), kind="fmod"),
        error(ValueError, "kind 'mod' is none of", (2,), (2,), kind="mod"),
        error(
            TypeError, "bool", Arg((2,), dtype="bool"), Arg((2,), dtype="bool"), kind="remainder"
        ),
    )

    def dtype_of(self, a: str, b: str) -> str:
        if self.kind not in _DIVISIONS:
            raise ValueError(f"{self.name}: kind {self.kind!r} is none of {', '.join(_DIVISIONS)}")
        if a == b == "bool":
            raise TypeError(f"{self.kind}: both inputs are bool; cast one to a number")
        return result_type(a, b)

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return _DIVISIONS[self.kind](a, b)

    def compute(self, a: NDArray, b: NDArray) -> NDArray:
        return getattr(a, self.kind)(b)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        if self.kind == "floor_divide":
            return None, None
        a, b = node.inputs
        if not b.requires_grad:
            return unbroadcast(out_grad, a), None
        quotient = floor_divide(a, b) if self.kind == "remainder" else trunc(a / b)
        return unbroadcast(out_grad, a), unbroadcast(-out_grad * quotient, b)

    def emit_te(self, k: TeNamespace, a: TeTensor, b: TeTensor) -> TeTensor:
        a, b = _te.promote(k, a, b)
        dtype = _te.dtype_of(a)
        if not is_floating(dtype):
            of_integers = {
                "floor_divide": k.tirx.floordiv,
                "remainder": k.tirx.floormod,
                "fmod": k.tirx.truncmod,
            }
            return _te.broadcast(k, of_integers[self.kind], a, b)
        function = {
            "floor_divide": _functions.floor_divided,
            "remainder": _functions.remainder,
            "fmod": _functions.fmod,
        }[self.kind]
        wide = compute_dtype(dtype)  # the C library has no half-precision functions
        out = _te.broadcast(
            k,
            lambda p, q: function(k, k.tirx.convert(p), k.tirx.convert(q)),
            _te.cast(k, a, wide),
            _te.cast(k, b, wide),
        )
        return _te.cast(k, out, dtype)


FLOOR, CEIL, ROUND, TRUNC = (Round(kind) for kind in _ROUNDINGS)
FLOOR_DIVIDE, REMAINDER, FMOD = (WholeDivision(kind) for kind in _DIVISIONS)


def floor(a: Tensor) -> Tensor:
    """Return the largest whole number that is at most `a`, elementwise, in a's dtype. No gradient
    flows back."""
    return apply(FLOOR, (a,))


def ceil(a: Tensor) -> Tensor:
    """Return the smallest whole number that is at least `a`, elementwise, in a's dtype. No gradient
    flows back."""
    return apply(CEIL, (a,))


def round(a: Tensor) -> Tensor:
    """Return the whole number nearest to `a`, halves to even, elementwise, in a's dtype. No
    gradient flows back."""
    return apply(ROUND, (a,))


def trunc(a: Tensor) -> Tensor:
    """Return `a` rounded towards 0, elementwise, in a's dtype. No gradient flows back."""
    return apply(TRUNC, (a,))


def floor_divide(a: Operand, b: Operand) -> Tensor:
    """Return floor(a / b) with broadcasting; 0 for an integer divided by 0. No gradient flows back.
    Raises TypeError for two bools."""
    return applied(FLOOR_DIVIDE, a, b)


def remainder(a: Operand, b: Operand) -> Tensor:
    """Return a - floor(a / b) * b, which has the sign of `b`, with broadcasting; 0 for an integer
    divided by 0. Raises TypeError for two bools."""
    return applied(REMAINDER, a, b)


def fmod(a: Operand, b: Operand) -> Tensor:
    """Return a - trunc(a / b) * b, which has the sign of `a`, with broadcasting; 0 for an integer
    divided by 0. Raises TypeError for two bools."""
    return applied(FMOD, a, b)


def whole_division(kind: str, a: Operand, b: Operand) -> Tensor:
    """Return the whole quotient or remainder of a / b. `kind`: floor_divide, remainder or fmod."""
    return applied(WholeDivision(kind), a, b)
