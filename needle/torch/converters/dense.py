"""Converters of matrix products. Products of half-precision matrices are summed in float32 and
rounded. Other terms are then added in float32."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import is_floating
from ...common.state import state
from ...conversion.values import Value, tensor
from ..operands import Number, cast, permuted, wide
from ..program import Node
from ..registry import converter


def product(a: Value, b: Value) -> Tensor:
    """Return `a` @ `b`. Half-precision operands are multiplied without a cast, because GPUs support
    them; their product is returned as float32."""
    return wide(ops.matmul(tensor(a), tensor(b)))


def _scaled(x: Tensor, factor: Number) -> Tensor:
    if not is_floating(x.dtype):
        factor = int(factor)  # PyTorch's cast
    return x if factor == 1 else ops.mul_scalar(x, factor)


def _added(node: Node, made: Tensor, added: Value, beta: Number, alpha: Number) -> Tensor:
    """Return beta * added + alpha * made. If beta is 0, `added` is not read, so its NaN and
    infinities have no effect."""
    made = _scaled(made, alpha)
    if beta != 0 and (is_floating(made.dtype) or int(beta) != 0):
        made = ops.add(made, _scaled(cast(added, made.dtype), beta))
    elif made.shape != node.shape:
        made = ops.broadcast_to(made, node.shape)
    return ops.cast(made, node.dtype)


@converter("aten.linear")
def linear(node: Node, x: Value, weight: Value, bias: Value | None = None) -> Tensor:
    """Return x (..., K) times the transpose of a weight (N, K), plus a bias (N,)."""
    w = tensor(weight)
    source, order = _stored(tensor(x))
    made = product(source, ops.transpose(w) if w.ndim == 2 else w)
    made = ops.cast(made if bias is None else ops.add(made, wide(bias)), node.dtype)
    return made if order is None else permuted(made, order)


def _stored(x: Tensor) -> tuple[Tensor, tuple[int, ...] | None]:
    """Return (y, order) if x is y with its axes permuted by an order that keeps the last axis in
    place, so that the rows of y can be multiplied as they are stored. Return (x, None) for any
    other x."""
    if state.trace is not None and isinstance(x.op, (ops.Permute, ops.Transpose)):
        order = x.op.order(x.ndim)
        if order[-1] == x.ndim - 1:
            return x.inputs[0], order
    return x, None


@converter("aten.mm", "aten.bmm", "aten.matmul", "aten.mv", "aten.dot", "aten.vdot")
def matmul(node: Node, a: Value, b: Value) -> Tensor:
    return ops.cast(product(a, b), node.dtype)


@converter("aten.addmm", "aten.baddbmm", "aten.addmv")
def addmm(
    node: Node, added: Value, a: Value, b: Value, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    return _added(node, product(a, b), added, beta, alpha)


@converter("aten.addbmm")
def addbmm(
    node: Node, added: Value, a: Value, b: Value, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """Compute the sum of the products of several matrices as one product."""
    x, y = wide(a), wide(b)
    batch, rows, inner = x.shape
    left = ops.reshape(ops.permute(x, (1, 0, 2)), (rows, batch * inner))
    right = ops.reshape(y, (batch * inner, y.shape[2]))
    return _added(node, ops.matmul(left, right), added, beta, alpha)


@converter("aten.addr")
def addr(
    node: Node, added: Value, a: Value, b: Value, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    return _added(node, _outer(node, a, b), added, beta, alpha)


@converter("aten.outer")
def outer(node: Node, a: Value, b: Value) -> Tensor:
    return _outer(node, a, b)


def _outer(node: Node, a: Value, b: Value) -> Tensor:
    x, y = cast(a, node.dtype), cast(b, node.dtype)
    rows = ops.reshape(x, (x.shape[0], 1))
    return ops.logical_and(rows, y) if node.dtype == "bool" else ops.multiply(rows, y)


@converter("aten.einsum")
def einsum(node: Node, equation: str, operands: tuple[Value, ...], path: Any = None) -> Tensor:
    return ops.cast(ops.einsum(equation, *map(wide, operands)), node.dtype)


@converter("aten.kron")
def kron(node: Node, a: Value, b: Value) -> Tensor:
    return ops.kron(cast(a, node.dtype), cast(b, node.dtype))


def _is_known_zero(n: Any) -> bool:
    return isinstance(n, int) and n == 0


@converter("aten.inner")
def inner(node: Node, a: Value, b: Value) -> Tensor:
    """Return the sums of products along the last axes of both operands."""
    x, y = wide(tensor(a)), wide(tensor(b))
    if not x.ndim or not y.ndim:
        return ops.cast(ops.multiply(x, y), node.dtype)
    return ops.cast(ops.tensordot(x, y, ([-1], [-1])), node.dtype)


@converter("aten._trilinear")
def trilinear(
    node: Node,
    a: Value,
    b: Value,
    c: Value,
    new_a: tuple[int, ...],
    new_b: tuple[int, ...],
    new_c: tuple[int, ...],
    summed: tuple[int, ...],
    unroll: int = 1,
) -> Tensor:
    """Sum the products of three tensors, each of which may lack some axes, by matrix products."""
    axes = range(len(a.shape) + len(new_a))
    names = [
        "".join(chr(ord("a") + axis) for axis in axes if axis not in gone)
        for gone in (new_a, new_b, new_c, summed)
    ]
    equation = f"{names[0]},{names[1]},{names[2]}->{names[3]}"
    return ops.cast(ops.einsum(equation, wide(a), wide(b), wide(c)), node.dtype)
