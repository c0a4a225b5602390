"""Converters of matrix products."""

from __future__ import annotations

from math import prod

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, tensor
from ..graph import Node
from ..registry import converter


@converter("MatMul", since=1)
def matmul(node: Node, a: Value, b: Value) -> Tensor:
    return ops.matmul(tensor(a), tensor(b))


@converter("Gemm", since=6)
def gemm(node: Node, a: Value, b: Value, c: Value | None = None) -> Tensor:
    left = ops.transpose(tensor(a)) if node.flag("transA") else tensor(a)
    right = ops.transpose(tensor(b)) if node.flag("transB") else tensor(b)
    made = scaled(ops.matmul(left, right), node.number("alpha"))
    return made if c is None else ops.add(made, scaled(tensor(c), node.number("beta")))


def scaled(x: Tensor, factor: float) -> Tensor:
    """Return `x` times a `factor`."""
    return x if factor == 1.0 else ops.mul_scalar(x, factor)


@converter("Einsum", since=12)
def einsum(node: Node, *inputs: Value) -> Tensor:
    return ops.einsum(node.text("equation"), *(tensor(x) for x in inputs))


_LARGEST_DETERMINANT = 32  # the largest number of rows; each row is a step in the graph


@converter("Det", since=11)
def determinant(node: Node, data: Value) -> Tensor:
    x = tensor(data)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise node.invalid(f"{x.spec} holds no square matrices")
    if x.shape[-1] > _LARGEST_DETERMINANT:
        raise node.unsupported(f"the determinant of more than {_LARGEST_DETERMINANT} rows")
    lead, n = x.shape[:-2], x.shape[-1]
    rest, total = ops.reshape(x, (prod(lead), n, n)), None
    for left in range(n, 0, -1):  # Gaussian elimination, with the largest pivot of each column
        column = rest[:, :, 0]
        at = ops.unsqueeze(ops.argmax(ops.abs(column), 1), 1)
        rows = Tensor(np.arange(left), requires_grad=False)
        first = ops.equal(rows, 0)
        # Swap the pivot's row and the first row, which changes the sign unless they are the same
        # row.
        order = ops.where(first, at, ops.where(ops.equal(rows, at), 0, rows))
        rest = ops.take_along_axis(rest, ops.broadcast_to(ops.unsqueeze(order, 2), rest.shape), 1)
        pivot = rest[:, 0, 0]
        signed = ops.where(ops.equal(at[:, 0], 0), pivot, ops.negate(pivot))
        total = signed if total is None else ops.multiply(total, signed)
        safe = ops.where(ops.equal(pivot, 0.0), ops.add(pivot, 1.0), pivot)
        scale = ops.divide(rest[:, 1:, :1], ops.reshape(safe, (-1, 1, 1)))
        rest = ops.subtract(rest[:, 1:, 1:], ops.multiply(scale, rest[:, :1, 1:]))
    return ops.reshape(Tensor(np.ones(1, x.dtype)) if total is None else total, lead)
