"""Converters of matrix products."""

from __future__ import annotations

from ... import linalg, ops
from ...tensor import Tensor
from ..graph import Node
from ..registry import converter
from ..values import Value, tensor


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
    """`x` times a factor."""
    return x if factor == 1.0 else ops.mul_scalar(x, factor)


@converter("Einsum", since=12)
def einsum(node: Node, *inputs: Value) -> Tensor:
    return ops.einsum(node.text("equation"), *(tensor(x) for x in inputs))


@converter("Det", since=11)
def determinant(node: Node, x: Value) -> Tensor:
    return linalg.det(tensor(x))
