"""Converters of linear algebra. They use LAPACK on the host and run only eagerly, like
`needle.linalg`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import linalg, ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import is_half
from ...common.state import state
from ...conversion.values import Value, tensor
from ..operands import Number
from ..program import Node
from ..registry import converter


def _no_errors(node: Node, index: int) -> Tensor:
    """Return LAPACK's error codes: 0 for every matrix, because needle raises errors."""
    wanted = node.result(index)
    zero = Tensor(0, dtype=wanted.dtype, requires_grad=False)
    return ops.broadcast_to(zero, wanted.shape)


@converter("aten._linalg_det", "aten.linalg_det")
def det(node: Node, x: Value) -> Any:
    """Return the determinant, and None for the factors, which no other PyTorch operator reads."""
    found = linalg.det(tensor(x))
    return (found, None, None) if node.several else found


@converter("aten._linalg_slogdet", "aten.linalg_slogdet")
def slogdet(node: Node, x: Value) -> tuple[Tensor | None, ...]:
    return *linalg.slogdet(tensor(x)), *[None] * (len(node.results) - 2)


@converter("aten.linalg_inv_ex", "aten.linalg_inv", "aten.inverse")
def inv(node: Node, x: Value, check_errors: bool = False) -> Any:
    found = linalg.inv(tensor(x))
    return (found, _no_errors(node, 1)) if node.several else found


@converter("aten._linalg_solve_ex", "aten.linalg_solve_ex", "aten.linalg_solve")
def solve(node: Node, a: Value, b: Value, left: bool = True, check_errors: bool = False) -> Any:
    """Return x with a @ x = b, or x @ a = b if not `left`."""
    system, right = tensor(a), tensor(b)
    vector = right.ndim == 1 or (right.ndim == system.ndim - 1 and right.shape == system.shape[:-1])
    right = ops.unsqueeze(right, -1) if vector else right
    if left or vector:
        found = linalg.solve(system, right)
    else:
        found = ops.transpose(linalg.solve(ops.transpose(system), ops.transpose(right)))
    found = ops.squeeze(found, -1) if vector else found
    if not node.several:
        return found
    rest = [None] * (len(node.results) - 2)
    return found, *rest, _no_errors(node, len(node.results) - 1)


@converter("aten.linalg_cholesky_ex", "aten.linalg_cholesky", "aten.cholesky")
def cholesky(node: Node, x: Value, upper: bool = False, check_errors: bool = False) -> Any:
    """Factorize the matrix that one triangle of x defines; PyTorch reads only that triangle."""
    found = linalg.cholesky(_mirrored(tensor(x), upper), upper)
    return (found, _no_errors(node, 1)) if node.several else found


def _mirrored(x: Tensor, upper: bool) -> Tensor:
    """Return the symmetric matrices that one triangle of x defines. As in PyTorch, the gradient
    passes to both triangles of x."""
    half = ops.triu(x) if upper else ops.tril(x)
    other = ops.triu(x, 1) if upper else ops.tril(x, -1)
    return ops.add(x, ops.detach(ops.subtract(ops.add(half, ops.transpose(other)), x)))


@converter("aten._linalg_eigh", "aten.linalg_eigh", "aten.linalg_eigvalsh")
def eigh(node: Node, x: Value, lower: str = "L", compute_v: bool = True) -> Any:
    found = linalg.eigh(_mirrored(tensor(x), lower.upper() == "U"))
    return tuple(found) if node.several else found.eigenvalues


@converter("aten._linalg_svd", "aten.linalg_svd")
def svd(node: Node, x: Value, full: bool = False, compute_uv: bool = True) -> Any:
    if not compute_uv and node.operator.startswith("aten._linalg_svd"):
        return None, linalg.svdvals(tensor(x)), None
    return tuple(linalg.svd(tensor(x), full))


@converter("aten.linalg_svdvals")
def svdvals(node: Node, x: Value) -> Tensor:
    return linalg.svdvals(tensor(x))


@converter("aten.linalg_qr")
def qr(node: Node, x: Value, mode: str = "reduced") -> tuple[Tensor | None, ...]:
    if mode == "r":
        return None, linalg.qr(tensor(x), "reduced").R
    return tuple(linalg.qr(tensor(x), mode))


@converter("aten.linalg_matrix_power", "aten.matrix_power")
def matrix_power(node: Node, x: Value, n: int) -> Tensor:
    return linalg.matrix_power(tensor(x), n)


@converter("aten.linalg_solve_triangular")
def solve_triangular(
    node: Node,
    a: Value,
    b: Value,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Tensor:
    return _triangular(tensor(a), tensor(b), upper, left, unitriangular)


@converter("aten.triangular_solve")
def triangular_solve(
    node: Node,
    b: Value,
    a: Value,
    upper: bool = True,
    transposed: bool = False,
    unitriangular: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the solution, and the matrices broadcast to the result's shape."""
    system = tensor(a)
    half = ops.triu(system) if upper else ops.tril(system)
    turned = ops.transpose(half) if transposed else half
    found = _triangular(turned, tensor(b), upper != transposed, True, unitriangular)
    return found, ops.broadcast_to(system, node.result(1).shape)


def _triangular(a: Tensor, b: Tensor, upper: bool, left: bool, ones: bool) -> Tensor:
    """Return x with a @ x = b (x @ a = b if not `left`) for one triangle of a. With `ones`, the
    diagonal is taken to be 1."""
    half = ops.triu(a, int(ones)) if upper else ops.tril(a, -int(ones))
    if ones:
        half = ops.add(half, ops.eye(a.shape[-1], dtype=a.dtype))
    if left:
        return linalg.solve(half, b)
    return ops.transpose(linalg.solve(ops.transpose(half), ops.transpose(b)))


@converter("aten.cholesky_solve")
def cholesky_solve(node: Node, b: Value, factor: Value, upper: bool = False) -> Tensor:
    half = ops.triu(tensor(factor)) if upper else ops.tril(tensor(factor))
    lower = ops.transpose(half) if upper else half
    between = linalg.solve(lower, tensor(b))
    return linalg.solve(ops.transpose(lower), between)


@converter("aten.cholesky_inverse")
def cholesky_inverse(node: Node, factor: Value, upper: bool = False) -> Tensor:
    half = ops.triu(tensor(factor)) if upper else ops.tril(tensor(factor))
    lower = ops.transpose(half) if upper else half
    inverse = linalg.inv(lower)
    return ops.matmul(ops.transpose(inverse), inverse)


@converter("aten.linalg_lstsq")
def lstsq(
    node: Node, a: Value, b: Value, rcond: Number | None = None, driver: str | None = None
) -> tuple[Tensor | None, ...]:
    """Return the solution of a least-squares problem of full rank, and its residuals if the matrix
    has more rows than columns. The other results (rank, singular values) are None."""
    x, y = tensor(a), tensor(b)
    found = linalg.lstsq(x, y, rcond)
    rows, columns = x.shape[-2:]
    drawn = tuple(node.result(1).shape) == tuple(found.residuals.shape) and rows > columns
    return found.solution, found.residuals if drawn else None, None, None


# The least degree at which the Taylor series' remainder for norm 1/2 is below the last bit
_DEGREE = {"float64": 14}


@converter("aten.linalg_matrix_exp")
def matrix_exp(node: Node, x: Value) -> Tensor:
    """Compute the Taylor series of a matrix that is halved until its norm is small, then square the
    result once per halving."""
    wider = tensor(x)
    if is_half(wider.dtype):
        raise node.unsupported(f"matrices of {wider.dtype}; PyTorch's result is often NaN")
    degree, most = _DEGREE.get(wider.dtype, 8), 24
    identity = ops.broadcast_to(ops.eye(wider.shape[-1], dtype=wider.dtype), wider.shape)
    if any(isinstance(n, int) and n == 0 for n in wider.shape):
        return ops.cast(wider, node.dtype)
    norm = ops.max(ops.summation(ops.abs(wider), -1), -1)
    halvings = ops.clip(ops.ceil(ops.add_scalar(ops.log2(norm), 1.0)), 0.0, float(most))
    halvings = ops.detach(ops.reshape(halvings, (*halvings.shape, 1, 1)))
    small = ops.multiply(wider, ops.exp2(ops.negate(halvings)))
    made = identity
    for k in range(degree, 0, -1):
        made = ops.add(identity, ops.divide_scalar(ops.matmul(small, made), float(k)))
    for k in range(most):
        made = ops.where(ops.greater(halvings, float(k)), ops.matmul(made, made), made)
    return ops.cast(made, node.dtype)


@converter("aten.linalg_pinv.atol_rtol_tensor", "aten.linalg_pinv.atol_rtol_float")
def pinv(
    node: Node, x: Value, atol: Any = None, rtol: Any = None, hermitian: bool = False
) -> Tensor:
    """Return the pseudoinverse. Singular values below a limit relative to the largest one count as
    0."""
    if any(isinstance(each, Tensor) and state.trace is None for each in (atol, rtol)):
        atol, rtol = (each.numpy() if isinstance(each, Tensor) else each for each in (atol, rtol))
    if any(isinstance(each, Tensor) for each in (atol, rtol)):
        raise node.unsupported("a tolerance that only a call knows")
    limits = [None if each is None else np.asarray(each) for each in (atol, rtol)]
    if limits[0] is not None and limits[0].any():
        raise node.unsupported(f"atol={limits[0]}, a limit that is not relative")
    if limits[1] is not None and np.unique(limits[1]).size != 1:
        raise node.unsupported("rtol of several values")
    source = _mirrored(tensor(x), False) if hermitian else tensor(x)
    return linalg.pinv(source, None if limits[1] is None else float(limits[1].flat[0]))
