"""Determinants, pseudoinverses, powers and norms."""

from __future__ import annotations

import dataclasses
import math
from operator import index as as_int
from typing import Any, NamedTuple

import numpy as np

from .. import ops
from ..autograd.shapes import Axes, Shape, normalize_axes
from ..autograd.tensor import Tensor, TensorTuple, make_const
from ..backend_ndarray.dtypes import finfo
from ..errors import ShapeError
from ..ops import detach, matmul, prod, reshape, transpose, where
from ..ops._numpy_op import (
    Array,
    NumpyOp,
    as_floats,
    check_matrices,
    check_square,
    in_dtype,
    refuse_trace,
    unary,
)
from ._factors import SVDOp, svdvals
from ._systems import INV, inv


class Slogdet(NamedTuple):
    """The determinant as sign * exp(logabsdet)."""

    sign: Tensor
    logabsdet: Tensor


class Lstsq(NamedTuple):
    """The result of `lstsq`: the least-squares `solution`, its `residuals`, and the `rank` and the
    `singular_values` of the matrix."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class DetOp(NumpyOp):
    """The determinants of x."""

    name = "linalg.det"
    arity = 1
    reads = frozenset({"inputs", "output"})

    def check(self, shape: Shape) -> None:
        check_square(self.name, shape)

    def values(self, x: Array) -> Array:
        return np.asarray(np.linalg.det(x))

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        (x,) = node.inputs
        weight = _as_matrices(out_grad)
        if detach(node).numpy().all():
            return weight * _as_matrices(node) * transpose(INV(x))
        return weight * _cofactors(x)


@dataclasses.dataclass(frozen=True, eq=False)
class SlogdetOp(NumpyOp):
    """The sign and the logarithm of the magnitude of the determinants of x."""

    name = "linalg.slogdet"
    arity = 1
    reads = frozenset({"inputs"})

    def check(self, shape: Shape) -> None:
        check_square(self.name, shape)

    def values(self, x: Array) -> tuple[Array, Array]:
        sign, logarithm = np.linalg.slogdet(x)
        return np.asarray(sign), np.asarray(logarithm)

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> Tensor:
        (x,) = node.inputs
        return _as_matrices(out_grad[1]) * transpose(INV(x))


@dataclasses.dataclass(frozen=True, eq=False)
class PinvOp(NumpyOp):
    """The pseudoinverses of x. Singular values up to `rtol` times the largest count as 0.

    Gradient: Golub and Pereyra, "The differentiation of pseudo-inverses", 1973. It is valid where
    the rank is locally constant.
    """

    rtol: float

    name = "linalg.pinv"
    arity = 1
    reads = frozenset({"inputs", "output"})
    fails = "has NaN or infinite elements, or the iteration did not converge"

    def check(self, shape: Shape) -> None:
        check_matrices(self.name, shape)

    def values(self, x: Array) -> Array:
        return np.linalg.pinv(x, rcond=self.rtol)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        (a,) = node.inputs
        p, grad = transpose(node), transpose(out_grad)  # both have a's shape
        rows = grad @ (node @ p)
        columns = (p @ node) @ grad
        rows = rows - a @ (node @ rows)
        columns = columns - (columns @ node) @ a
        return rows + columns - p @ out_grad @ p


DET, SLOGDET = DetOp(), SlogdetOp()


def det(a: Tensor) -> Tensor:
    """Return the determinants (...) of the matrices `a` (..., n, n). At a singular matrix, the
    gradient is computed from the cofactors, and a second derivative needs distinct singular values.

    Integers give float64; half precision is computed in float32. Raises ShapeError for matrices
    that are not square, and TraceError while tracing.

    >>> ndl.linalg.det(ndl.Tensor([[2.0, 0.0], [0.0, 4.0]])).item()
    8.0
    """
    return unary("linalg.det", DET, a)


def slogdet(a: Tensor) -> Slogdet:
    """Return (sign, logabsdet) of the matrices `a` (..., n, n). The determinants (...) are
    sign * exp(logabsdet), which does not overflow; a singular matrix has sign 0 and logabsdet -inf.
    The gradient of the sign is 0. The gradient of logabsdet is the transposed inverse; it raises
    LinAlgError for a singular matrix.

    Integers give float64; half precision is computed in float32. Raises ShapeError for matrices
    that are not square, and TraceError while tracing.

    >>> ndl.linalg.slogdet(ndl.Tensor([[0.0, 1.0], [1.0, 0.0]])).sign.item()
    -1.0
    """
    (x,), dtype = as_floats("linalg.slogdet", a)
    sign, logarithm = SLOGDET(x)
    return Slogdet(in_dtype(sign, dtype), in_dtype(logarithm, dtype))


def pinv(a: Tensor, rtol: float | None = None) -> Tensor:
    """Return the Moore-Penrose inverses (..., n, m) of the matrices `a` (..., m, n). Singular
    values up to `rtol` times the largest count as 0 (None: the larger extent times the dtype's eps,
    as in PyTorch). The gradient is valid where the rank is locally constant.

    Integers give float64; half precision is computed in float32. Raises ShapeError for fewer than
    two axes, ValueError for a negative `rtol`, LinAlgError for NaN, and TraceError while tracing.

    >>> ndl.linalg.pinv(ndl.ones(3, 2)).shape
    (2, 3)
    """
    (x,), dtype = as_floats("linalg.pinv", a)
    return in_dtype(PinvOp(_tolerance("linalg.pinv", x, rtol))(x), dtype)


def lstsq(a: Tensor, b: Tensor, rtol: float | None = None) -> Lstsq:
    """Return (solution, residuals, rank, singular_values) of the least-squares problems for `a`
    (..., m, n) and `b` (m,) or (..., m, k). Among all x for which the norm of a @ x - b is
    smallest, the solution is the x with the smallest norm. It is pinv(a, rtol) @ b, with the
    gradients of that product.

    The residuals are the sums of squares of a @ x - b over the rows, for any rank (NumPy omits them
    if the rank is not full). The rank (int64) and the singular values are those of `a`.

    The result has the common dtype, or float64 for integers; half precision is computed in float32.
    Raises ShapeError for shapes that do not fit, ValueError for a negative `rtol`, LinAlgError for
    NaN, and TraceError while tracing.

    >>> a = ndl.Tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    >>> ndl.linalg.lstsq(a, ndl.Tensor([1.0, 3.0, 5.0])).rank.item()
    2
    """
    name = "linalg.lstsq"
    (x, y), dtype = as_floats(name, a, b)
    check_matrices(name, x.shape)
    if not y.ndim or x.shape[-2] != y.shape[-2 if y.ndim > 1 else -1]:
        raise ShapeError(
            f"{name}: shapes {x.shape} and {y.shape} do not fit: a has {x.shape[-2]} rows, so b "
            "needs as many, as a vector or as matrices"
        )
    limit = _tolerance(name, x, rtol)
    solution = matmul(PinvOp(limit)(x), y)
    rest = matmul(x, solution) - y
    residuals = ops.summation(rest * rest, -1 if y.ndim == 1 else -2)
    singular = svdvals(x)
    known = singular.numpy()
    rank = (known > limit * known.max(-1, keepdims=True, initial=0)).sum(-1, dtype=np.int64)
    return Lstsq(
        in_dtype(solution, dtype),
        in_dtype(residuals, dtype),
        make_const(np.asarray(rank), x.device),
        in_dtype(singular, dtype),
    )


def matrix_power(a: Tensor, n: int) -> Tensor:
    """Return the matrices `a` (..., m, m) to the power of `n`. If `n` is 0, the result is the
    identity; if `n` is negative, a power of the inverse. The result has a's dtype (for a negative
    `n`, the dtype of `inv`). The function is composed of matmuls, so it compiles for n >= 0. Raises
    ShapeError for matrices that are not square, and LinAlgError for a negative power of a singular
    matrix.

    >>> ndl.linalg.matrix_power(ndl.Tensor([[1.0, 1.0], [0.0, 1.0]]), 3).numpy().tolist()
    [[1.0, 3.0], [0.0, 1.0]]
    """
    if not isinstance(a, Tensor):
        raise TypeError(f"linalg.matrix_power: input 0 is a {type(a).__name__}, not a Tensor")
    check_square("linalg.matrix_power", a.shape)
    n = as_int(n)
    if n < 0:
        a, n = inv(a), -n
    if n == 0:
        return ops.broadcast_to(ops.eye(a.shape[-1], dtype=a.dtype, device=a.device), a.shape)
    out = None
    while n:
        if n % 2:
            out = a if out is None else matmul(out, a)
        n //= 2
        if n:
            a = matmul(a, a)
    assert out is not None
    return out


def norm(
    a: Tensor, ord: float | str | None = None, axes: Axes = None, keepdims: bool = False
) -> Tensor:
    """Return the norm of the vectors or matrices `a`, like NumPy's and PyTorch's linalg.norm.

    If `axes` is one axis, or `a` has one axis, the result is the vector norm of order `ord` (any
    number, inf or -inf; None is 2), as in `ndl.ops.norm`. If `axes` are two axes, or `a` has two
    axes, and `ord` is given, the result is a matrix norm:

    - "fro": the root of the sum of squares;
    - "nuc": the sum of the singular values;
    - 2 and -2: the largest and the smallest singular value;
    - 1 and -1: the largest and the smallest sum of magnitudes of a column;
    - inf and -inf: the largest and the smallest sum of magnitudes of a row.

    With neither `ord` nor `axes`, the result is the root of the sum of all squares. `keepdims`
    keeps the reduced axes with extent 1.

    Integers give float64. The matrix norms "nuc", 2 and -2 raise TraceError while tracing; the
    others compile. Raises ShapeError for more than two axes, and ValueError for any other `ord`.

    >>> ndl.linalg.norm(ndl.Tensor([[3.0, 4.0]]), "fro").item()
    5.0
    """
    if not isinstance(a, Tensor):
        raise TypeError(f"linalg.norm: input 0 is a {type(a).__name__}, not a Tensor")
    over = normalize_axes("linalg.norm", axes, a.ndim)
    if ord is None and (axes is None or len(over) == 2):
        return ops.norm(a, 2, over, keepdims)
    if len(over) == 1:
        if isinstance(ord, str):
            raise ValueError(f"linalg.norm: ord {ord!r} is for matrices, not for vectors")
        return ops.norm(a, 2 if ord is None else ord, over, keepdims)
    if len(over) != 2:
        raise ShapeError(
            f"linalg.norm: ord {ord!r} needs one or two axes, not {len(over)} of shape {a.shape}"
        )
    return _matrix_norm(a, ord, over, keepdims)


def _matrix_norm(a: Tensor, ord: Any, over: tuple[int, ...], keepdims: bool) -> Tensor:
    if ord == "fro":
        return ops.norm(a, 2, over, keepdims)
    largest = ops.max if ord in ("nuc", 2, 1, math.inf) else ops.min
    if ord in (1, -1, math.inf, -math.inf):
        row, column = over
        summed, rest = (row, column) if abs(ord) == 1 else (column, row)
        sums = ops.norm(a, 1, summed, keepdims=True)
        out = largest(sums, rest, keepdims=True)
    elif ord in ("nuc", 2, -2):
        refuse_trace("linalg.norm")
        values = svdvals(ops.moveaxis(a, over, (-2, -1)))
        out = ops.summation(values, -1) if ord == "nuc" else largest(values, -1)
        shape = [1 if i in over else n for i, n in enumerate(a.shape)]
        out = reshape(out, tuple(shape))
    else:
        raise ValueError(f"linalg.norm: ord {ord!r} is not 'fro', 'nuc', 1, -1, 2, -2, inf or -inf")
    return out if keepdims else ops.squeeze(out, over)


def _tolerance(name: str, x: Tensor, rtol: float | None) -> float:
    check_matrices(name, x.shape)
    if rtol is None:
        return max(x.shape[-2:]) * float(finfo(x.dtype).eps)
    if not rtol >= 0:
        raise ValueError(f"{name}: rtol {rtol} is not >= 0")
    return float(rtol)


def _as_matrices(x: Tensor) -> Tensor:
    return reshape(x, (*x.shape, 1, 1))


def _cofactors(x: Tensor) -> Tensor:
    """Return the cofactors of x: the gradient of its determinant, which exists even if x is
    singular. The cofactor matrix of a product is the product of the factors' cofactor matrices. The
    cofactor matrix of an orthogonal matrix is the matrix times its determinant."""
    u, s, vh = SVDOp(False)(x)
    n = s.shape[-1]
    others = ops.broadcast_to(reshape(s, (*s.shape[:-1], 1, n)), (*s.shape[:-1], n, n))
    one = make_const(np.ones((), s.dtype), s.device)
    on_diagonal = ops.eye(n, dtype="bool", device=s.device)
    product = prod(where(on_diagonal, one, others), -1)
    signs = np.linalg.det(u.numpy()) * np.linalg.det(vh.numpy())
    sign = make_const(np.asarray(np.round(signs), s.dtype), s.device)
    return _as_matrices(sign) * ((u * reshape(product, (*product.shape[:-1], 1, n))) @ vh)
