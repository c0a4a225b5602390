"""Factorizations: Cholesky, QR, singular values and eigenvalues."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from ..autograd.shapes import Shape
from ..autograd.tensor import Tensor, TensorTuple, make_const
from ..backend_ndarray import full
from ..common.state import state
from ..ops import compare, concat, eye, reshape, transpose, tril, where
from ..ops import slice as get_slice
from ..ops._numpy_op import Array, NumpyOp, as_floats, check_matrices, check_square, in_dtype
from ._systems import SOLVE

_NOT_CONVERGED = "has NaN or infinite elements, or the iteration did not converge"


class QR(NamedTuple):
    """The factors of a = Q @ R."""

    Q: Tensor
    R: Tensor


class SVD(NamedTuple):
    """The factors of a = U @ diag(S) @ Vh."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class Eigh(NamedTuple):
    """The parts of a = eigenvectors @ diag(eigenvalues) @ transpose(eigenvectors)."""

    eigenvalues: Tensor
    eigenvectors: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class CholeskyOp(NumpyOp):
    """The lower triangular L with L @ L.T = x. Only the lower triangle of x is read.

    Gradient: Murray, "Differentiation of the Cholesky decomposition", 2016.
    """

    name = "linalg.cholesky"
    arity = 1
    reads = frozenset({"output"})
    fails = "is not positive definite"

    def check(self, shape: Shape) -> None:
        check_square(self.name, shape)

    def values(self, x: Array) -> Array:
        return np.linalg.cholesky(x)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        turned = transpose(node)
        inner = tril(turned @ tril(out_grad))
        inner = (inner + tril(inner, -1)) / 2  # this halves the diagonal
        half = SOLVE(turned, inner)
        return transpose(SOLVE(turned, transpose(half)))


@dataclasses.dataclass(frozen=True, eq=False)
class QROp(NumpyOp):
    """Q with orthonormal columns, and upper triangular R, for matrices with at least as many rows
    as columns."""

    name = "linalg.qr"
    arity = 1
    reads = frozenset({0, 1})

    def check(self, shape: Shape) -> None:
        check_matrices(self.name, shape)

    def values(self, x: Array) -> tuple[Array, Array]:
        q, r = np.linalg.qr(x)
        return q, r

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> Tensor:
        to_q, to_r = out_grad
        q, r = node[0], node[1]
        inner = r @ transpose(to_r) - transpose(to_q) @ q
        symmetric = tril(inner) + transpose(tril(inner, -1))
        return transpose(SOLVE(r, transpose(to_q + q @ symmetric)))


@dataclasses.dataclass(frozen=True, eq=False)
class SVDOp(NumpyOp):
    """U, S and Vh; with `full`, U and Vh are square."""

    full: bool

    name = "linalg.svd"
    arity = 1
    reads = frozenset({0, 1, 2})
    fails = _NOT_CONVERGED

    def check(self, shape: Shape) -> None:
        check_matrices(self.name, shape)

    def values(self, x: Array) -> tuple[Array, Array, Array]:
        u, s, vh = np.linalg.svd(x, full_matrices=self.full)
        return u, s, vh

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> Tensor:
        k, rows, columns = node[1].shape[-1], node[0].shape[-2], node[2].shape[-1]
        u, s, vh = self.reduced(node, k)
        to_u, to_s, to_vh = self.reduced(out_grad, k)
        if self.full and rows != columns:
            self.refuse_extra(out_grad, k)
        v, across, down = transpose(vh), _row(s), _column(s)
        gap = _over(across * across - down * down)
        inner = _skew(transpose(u) @ to_u) * gap * across
        inner = inner + down * (_skew(transpose(v) @ transpose(to_vh)) * gap) + _diagonal(to_s)
        out = u @ inner @ vh
        if rows > k:
            part = to_u * _over(across)
            out = out + (part - u @ (transpose(u) @ part)) @ vh
        if columns > k:
            part = _over(down) * to_vh
            out = out + u @ (part - (part @ v) @ vh)
        return out

    def reduced(self, parts: TensorTuple, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return U, S and Vh, or their gradients, with k columns of U and k rows of Vh."""
        u, s, vh = parts[0], parts[1], parts[2]
        if self.full:
            u = get_slice(u, (Ellipsis, slice(k)))
            vh = get_slice(vh, (Ellipsis, slice(k), slice(None)))
        return u, s, vh

    def refuse_extra(self, out_grad: TensorTuple, k: int) -> None:
        """Raise RuntimeError if a gradient flows to vectors that the matrix does not determine."""
        if out_grad[0].numpy()[..., k:].any() or out_grad[2].numpy()[..., k:, :].any():
            raise RuntimeError(
                f"{self.name}: full_matrices=True: the vectors beyond the first {k} are not "
                "determined by the matrix and have no gradient; use full_matrices=False"
            )


@dataclasses.dataclass(frozen=True, eq=False)
class EighOp(NumpyOp):
    """Eigenvalues in ascending order, and eigenvectors as columns, of symmetric matrices."""

    name = "linalg.eigh"
    arity = 1
    reads = frozenset({0, 1})
    fails = _NOT_CONVERGED

    def check(self, shape: Shape) -> None:
        check_square(self.name, shape)

    def values(self, x: Array) -> tuple[Array, Array]:
        values, vectors = np.linalg.eigh(x)
        return values, vectors

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> Tensor:
        to_values, to_vectors = out_grad
        values, vectors = node[0], node[1]
        turned, gap = transpose(vectors), _over(_row(values) - _column(values))
        return vectors @ (_diagonal(to_values) + (turned @ to_vectors) * gap) @ turned


CHOLESKY, QR_REDUCED, EIGH = CholeskyOp(), QROp(), EighOp()


def cholesky(a: Tensor, upper: bool = False) -> Tensor:
    """Return the lower triangular L with L @ L.T = a, or its transpose if `upper`, for symmetric
    positive definite matrices `a` (..., n, n). If a matrix is not symmetric, (a + a.T) / 2 is
    factored instead, as in JAX, so the gradient is symmetric.

    Integers give float64; half precision is computed in float32. Raises ShapeError for matrices
    that are not square, LinAlgError if one is not positive definite, and TraceError while tracing.

    >>> ndl.linalg.cholesky(ndl.Tensor([[4.0, 2.0], [2.0, 5.0]])).numpy().tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    (x,), dtype = as_floats("linalg.cholesky", a)
    out = in_dtype(CHOLESKY(_symmetric("linalg.cholesky", x)), dtype)
    return transpose(out) if upper else out


def qr(a: Tensor, mode: str = "reduced") -> QR:
    """Return (Q, R) with a = Q @ R for matrices `a` (..., m, n), where Q (..., m, k) has
    orthonormal columns, R (..., k, n) is upper triangular, and k is the smaller extent. With `mode`
    "complete", Q is (..., m, m) and R (..., m, n); the result then has no gradient if `a` has more
    rows than columns. For a gradient, the first k columns must be linearly independent.

    Integers give float64; half precision is computed in float32. Raises ShapeError for fewer than
    two axes, ValueError for any other `mode`, and TraceError while tracing. The gradient raises
    LinAlgError if the first k columns are dependent.

    >>> q, r = ndl.linalg.qr(ndl.ones(3, 2))
    >>> q.shape, r.shape
    ((3, 2), (2, 2))
    """
    name = "linalg.qr"
    if mode not in ("reduced", "complete"):
        raise ValueError(f"{name}: mode {mode!r} is not 'reduced' or 'complete'")
    (x,), dtype = as_floats(name, a)
    check_matrices(name, x.shape)
    rows, columns = x.shape[-2:]
    if rows > columns and mode == "complete":
        q, r = _complete(x)
    elif rows >= columns:
        q, r = QR_REDUCED(x)
    else:
        q, r = QR_REDUCED(get_slice(x, (Ellipsis, slice(rows))))
        rest = get_slice(x, (Ellipsis, slice(rows, columns)))
        r = concat([r, transpose(q) @ rest], -1)
    return QR(in_dtype(q, dtype), in_dtype(r, dtype))


def _complete(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.requires_grad and state.grad:
        raise RuntimeError(
            f"linalg.qr: mode 'complete' has no gradient for {x.shape}, of more rows than columns: "
            "the matrix does not determine the last columns of Q; use mode='reduced', or detach()"
        )
    q, r = np.linalg.qr(x.numpy(), mode="complete")
    return make_const(q, x.device), make_const(r, x.device)


def svd(a: Tensor, full_matrices: bool = True) -> SVD:
    """Return (U, S, Vh) with a = U @ diag(S) @ Vh for matrices `a` (..., m, n). S (..., k) holds
    the singular values in descending order, where k is the smaller extent. The columns of U
    (..., m, k) and the rows of Vh (..., k, n) are orthonormal. With `full_matrices`, the default as
    in NumPy and PyTorch, U is (..., m, m) and Vh (..., n, n).

    Vectors are determined up to their signs, and the vectors of equal singular values up to a
    rotation. The part of a gradient that depends on that choice counts as 0. A gradient for the
    vectors that only `full_matrices` adds raises RuntimeError.

    Integers give float64; half precision is computed in float32. Raises ShapeError for fewer than
    two axes, LinAlgError for NaN, and TraceError while tracing.

    >>> u, s, vh = ndl.linalg.svd(ndl.ones(3, 2), full_matrices=False)
    >>> u.shape, s.shape, vh.shape
    ((3, 2), (2,), (2, 2))
    """
    (x,), dtype = as_floats("linalg.svd", a)
    u, s, vh = SVDOp(bool(full_matrices))(x)
    return SVD(in_dtype(u, dtype), in_dtype(s, dtype), in_dtype(vh, dtype))


def svdvals(a: Tensor) -> Tensor:
    """Return the singular values of `a` in descending order, as in `svd`."""
    return svd(a, full_matrices=False).S


def eigh(a: Tensor) -> Eigh:
    """Return (eigenvalues, eigenvectors) of symmetric matrices `a` (..., n, n): the values (..., n)
    in ascending order, and the orthonormal vectors as columns (..., n, n). If a matrix is not
    symmetric, (a + a.T) / 2 is used instead, so the gradient is symmetric.

    Vectors are determined up to their signs, and the vectors of equal eigenvalues up to a rotation.
    The part of a gradient that depends on that choice counts as 0.

    Integers give float64; half precision is computed in float32. Raises ShapeError for matrices
    that are not square, LinAlgError for NaN, and TraceError while tracing.

    >>> ndl.linalg.eigh(ndl.Tensor([[2.0, 1.0], [1.0, 2.0]])).eigenvalues.shape
    (2,)
    """
    (x,), dtype = as_floats("linalg.eigh", a)
    values, vectors = EIGH(_symmetric("linalg.eigh", x))
    return Eigh(in_dtype(values, dtype), in_dtype(vectors, dtype))


def eigvalsh(a: Tensor) -> Tensor:
    """Return the eigenvalues of `a` in ascending order, as in `eigh`."""
    return eigh(a).eigenvalues


def _symmetric(name: str, a: Tensor) -> Tensor:
    check_square(name, a.shape)
    return (a + transpose(a)) / 2


def _row(x: Tensor) -> Tensor:
    return reshape(x, (*x.shape[:-1], 1, x.shape[-1]))


def _column(x: Tensor) -> Tensor:
    return reshape(x, (*x.shape, 1))


def _diagonal(x: Tensor) -> Tensor:
    """Return diagonal matrices with `x` (..., n) on their diagonals."""
    return _row(x) * eye(x.shape[-1], dtype=x.dtype, device=x.device)


def _skew(x: Tensor) -> Tensor:
    return x - transpose(x)


def _over(x: Tensor) -> Tensor:
    """Return 1 / x, or 0 where x is 0."""
    zero, one = (_constant(x, value) for value in (0, 1))
    nothing = compare("equal", x, zero)
    return where(nothing, zero, one / where(nothing, one, x))


def _constant(like: Tensor, value: Any) -> Tensor:
    return make_const(full((), value, like.dtype, like.device))
