"""Inverses, and solutions of systems of linear equations."""

from __future__ import annotations

import dataclasses

import numpy as np

from ..autograd.shapes import Shape, broadcast_shapes
from ..autograd.tensor import Tensor
from ..errors import ShapeError
from ..op import unbroadcast
from ..op.signatures import Gradients
from ..ops import reshape, transpose
from ..ops._numpy_op import Array, NumpyOp, as_floats, check_square, in_dtype, unary

_SINGULAR = "is singular: a pivot is 0, so it has no inverse"


@dataclasses.dataclass(frozen=True, eq=False)
class Inv(NumpyOp):
    """y = the inverse of x."""

    name = "linalg.inv"
    arity = 1
    reads = frozenset({"output"})
    fails = _SINGULAR

    def check(self, shape: Shape) -> None:
        check_square(self.name, shape)

    def values(self, x: Array) -> Array:
        return np.linalg.inv(x)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        turned = transpose(node)
        return -(turned @ out_grad @ turned)


@dataclasses.dataclass(frozen=True, eq=False)
class Solve(NumpyOp):
    """The solution x of a @ x = b, for matrices b; leading axes broadcast."""

    name = "linalg.solve"
    arity = 2
    reads = frozenset({"inputs", "output"})
    fails = _SINGULAR

    def check(self, a: Shape, b: Shape) -> None:
        check_square(self.name, a)
        if len(b) < 2 or a[-1] != b[-2]:
            raise ShapeError(
                f"{self.name}: shapes {a} and {b} do not fit: a has {a[-1]} rows, so b must have "
                "as many rows, or as many elements if it is a vector"
            )
        broadcast_shapes(self.name, a[:-2], b[:-2])

    def values(self, a: Array, b: Array) -> Array:
        return np.linalg.solve(a, b)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        a, b = node.inputs
        to_b = SOLVE(transpose(a), out_grad)
        to_a = -(to_b @ transpose(node)) if a.requires_grad else None
        return (
            None if to_a is None else unbroadcast(to_a, a),
            unbroadcast(to_b, b) if b.requires_grad else None,
        )


INV, SOLVE = Inv(), Solve()


def inv(a: Tensor) -> Tensor:
    """Return the inverses of the matrices `a` (..., n, n).

    Integers give float64; half precision is computed in float32. Raises ShapeError for matrices
    that are not square, LinAlgError for a singular matrix, and TraceError while tracing.

    >>> ndl.linalg.inv(ndl.Tensor([[2.0, 0.0], [0.0, 4.0]])).numpy().tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return unary("linalg.inv", INV, a)


def solve(a: Tensor, b: Tensor) -> Tensor:
    """Return the x that solves a @ x = b, for `a` (..., n, n) and `b` (n,) or (..., n, m); leading
    axes broadcast. As in PyTorch, `b` may also be (..., n) with the same leading axes as `a`; each
    of its rows is then a right-hand side.

    The result has the common dtype, or float64 for integers; half precision is computed in float32.
    Raises ShapeError for shapes that do not fit, LinAlgError for a singular matrix, and TraceError
    while tracing.

    >>> ndl.linalg.solve(ndl.Tensor([[2.0, 0.0], [0.0, 4.0]]), ndl.ones(2)).numpy().tolist()
    [0.5, 0.25]
    """
    (x, y), dtype = as_floats("linalg.solve", a, b)
    is_vector = y.ndim == 1 or y.shape == x.shape[:-1]
    if is_vector:
        y = reshape(y, (*y.shape, 1))
    out = in_dtype(SOLVE(x, y), dtype)
    return reshape(out, out.shape[:-1]) if is_vector else out
