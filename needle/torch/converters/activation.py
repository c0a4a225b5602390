"""Converters of activation functions."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...autograd.dispatch import apply
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import FLOATING
from ...conversion.values import Value, tensor
from ...ops.composed import Clip
from ..operands import Number, cast, computed
from ..program import Node
from ..registry import converter


@converter("aten.relu")
def relu(node: Node, x: Value) -> Tensor:
    return ops.relu(tensor(x))


@converter("aten.gelu")
def gelu(node: Node, x: Value, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return ops.gelu(tensor(x))
    return computed(node, lambda x: ops.gelu(x, approximate), x)


@converter("aten.silu")
def silu(node: Node, x: Value) -> Tensor:
    return ops.silu(tensor(x))


@converter("aten.mish")
def mish(node: Node, x: Value) -> Tensor:
    return computed(node, ops.mish, x)


@converter("aten.elu")
def elu(
    node: Node, x: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1
) -> Tensor:
    """Return scale * x above 0, else scale * alpha * (exp(input_scale * x) - 1)."""

    def of(x: Tensor) -> Tensor:
        below = ops.expm1(_scaled(ops.where(ops.greater(x, 0), 0, x), input_scale))
        return ops.where(
            ops.greater(x, 0), _scaled(x, scale), _scaled(below, float(alpha) * float(scale))
        )

    return computed(node, of, x)


def _scaled(x: Tensor, factor: Number) -> Tensor:
    return x if factor == 1 else ops.mul_scalar(x, float(factor))


@converter("aten.celu")
def celu(node: Node, x: Value, alpha: Number = 1) -> Tensor:
    return computed(node, lambda x: ops.celu(x, float(alpha)), x)


@converter("aten.selu")
def selu(node: Node, x: Value) -> Tensor:
    return computed(node, ops.selu, x)


@converter("aten.leaky_relu")
def leaky_relu(node: Node, x: Value, slope: Number = 0.01) -> Tensor:
    return computed(node, lambda x: ops.leaky_relu(x, float(slope)), x)


@converter("aten._prelu_kernel")
def prelu(node: Node, x: Value, weight: Value) -> Tensor:
    def of(x: Tensor, slope: Tensor) -> Tensor:
        positive = ops.greater(x, 0)
        below = ops.where(positive, 0, x)  # so that no infinity of x reaches the weight's gradient
        return ops.where(positive, x, ops.multiply(below, slope))

    return computed(node, of, x, weight)


@converter("aten.hardtanh")
def hardtanh(node: Node, x: Value, low: Number = -1, high: Number = 1) -> Tensor:
    """Clip x to [low, high]. The gradient is 0 at both ends and beyond; NaN stays NaN."""
    given = tensor(x)
    if given.dtype in FLOATING and low == low and high == high:
        return apply(Clip(float(low), float(high), inclusive=False), (given,))
    above = ops.where(
        ops.greater_equal(given, cast(high, given.dtype)), cast(high, given.dtype), given
    )
    return ops.where(ops.less_equal(given, cast(low, given.dtype)), cast(low, given.dtype), above)


@converter("aten.relu6")
def relu6(node: Node, x: Value) -> Tensor:
    return hardtanh(node, x, 0, 6)


@converter("aten.hardsigmoid")
def hardsigmoid(node: Node, x: Value) -> Tensor:
    return computed(node, ops.hardsigmoid, x)


@converter("aten.hardswish")
def hardswish(node: Node, x: Value) -> Tensor:
    return computed(node, ops.hardswish, x)


@converter("aten.softplus")
def softplus(node: Node, x: Value, beta: Number = 1, threshold: Number = 20) -> Tensor:
    return computed(node, lambda x: ops.softplus(x, float(beta), float(threshold)), x)


@converter("aten.threshold")
def threshold(node: Node, x: Value, threshold: Number, value: Number) -> Tensor:
    """Return x where it is above the threshold or NaN, else `value`."""

    def of(x: Tensor) -> Tensor:
        below = ops.less_equal(x, cast(threshold, x.dtype))
        return ops.where(below, cast(value, x.dtype), x)

    return computed(node, of, x)


@converter("aten.softshrink")
def softshrink(node: Node, x: Value, lambd: Number = 0.5) -> Tensor:
    def of(x: Tensor) -> Tensor:
        """Shrink x; NaN stays NaN."""
        inside = ops.less_equal(ops.abs(x), float(lambd))
        moved = ops.where(
            ops.greater(x, 0), ops.subtract(x, float(lambd)), ops.add(x, float(lambd))
        )
        return ops.where(inside, ops.mul_scalar(x, 0.0), moved)

    return computed(node, of, x)


@converter("aten.hardshrink")
def hardshrink(node: Node, x: Value, lambd: Number = 0.5) -> Tensor:
    def of(x: Tensor) -> Tensor:
        return ops.where(ops.less_equal(ops.abs(x), float(lambd)), 0, x)

    return computed(node, of, x)


@converter("aten.glu")
def glu(node: Node, x: Value, dim: int = -1) -> Tensor:
    """Multiply the first half along an axis by the sigmoid of the second half."""
    first, second = ops.chunk(tensor(x), 2, axis=dim)
    return computed(node, lambda a, b: ops.multiply(a, ops.sigmoid(b)), first, second)


@converter("aten.log_sigmoid", "aten.log_sigmoid_forward")
def log_sigmoid(node: Node, x: Value) -> Any:
    made = computed(node, ops.logsigmoid, x)
    return (made, None) if node.several else made
