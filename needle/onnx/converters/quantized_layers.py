"""Converters of ONNX Runtime's quantized layers other than products (domain com.microsoft). They
compute with the floats that the integers represent."""

from __future__ import annotations

from collections.abc import Callable

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, dtype_of, tensor
from ..graph import Node
from ..registry import converter
from .pool import average_pool
from .quantized import combined, shifted, stored

Zero = Value | None


def _number(value: Value) -> Tensor:
    """Return a scale of one element as a scalar Tensor."""
    return tensor(value.reshape(()))


def _floats(x: Value, scale: Value, zero: Zero) -> Tensor:
    """Return the numbers that quantized integers represent."""
    moved = shifted(tensor(x), None if zero is None else zero.reshape(()))
    return ops.multiply(ops.cast(moved, "float32"), _number(scale))


def _quantized(node: Node, x: Tensor, scale: Value, zero: Zero, dtype: str) -> Tensor:
    moved = None if zero is None else zero.reshape(())
    return stored(node, ops.divide(x, _number(scale)), moved, dtype)


_KNOWN = (1, 2, 4, 5, 6, 7)  # inputs: scales and zero points of two operands and of the result


@converter("QLinearAdd", domain="com.microsoft", known=_KNOWN)
def qlinear_add(
    node: Node,
    a: Value,
    a_scale: Value,
    a_zero: Zero,
    b: Value,
    b_scale: Value,
    b_zero: Zero,
    y_scale: Value,
    y_zero: Zero = None,
) -> Tensor:
    by = y_scale.reshape(())
    parts = [
        ops.multiply(
            ops.cast(shifted(tensor(x), None if zero is None else zero.reshape(())), "float32"),
            combined(scale.reshape(()), by=by),
        )
        for x, scale, zero in ((a, a_scale, a_zero), (b, b_scale, b_zero))
    ]
    return _rounded_last(node, ops.add(*parts), y_zero, dtype_of(a))


@converter("QLinearMul", domain="com.microsoft", known=_KNOWN)
def qlinear_mul(
    node: Node,
    a: Value,
    a_scale: Value,
    a_zero: Zero,
    b: Value,
    b_scale: Value,
    b_zero: Zero,
    y_scale: Value,
    y_zero: Zero = None,
) -> Tensor:
    first, second = (
        shifted(tensor(x), None if zero is None else zero.reshape(()))
        for x, zero in ((a, a_zero), (b, b_zero))
    )
    scale = combined(a_scale.reshape(()), b_scale.reshape(()), by=y_scale.reshape(()))
    product = ops.multiply(ops.cast(ops.multiply(first, second), "float32"), scale)
    return _rounded_last(node, product, y_zero, dtype_of(a))


def _rounded_last(node: Node, x: Tensor, zero: Zero, dtype: str) -> Tensor:
    """Add the zero point, then round and store, as ONNX Runtime does for QLinearAdd and
    QLinearMul."""
    if zero is not None:
        x = ops.add(x, ops.cast(tensor(zero.reshape(())), "float32"))
    return stored(node, x, None, dtype)


def _sigmoid(node: Node, x: Tensor) -> Tensor:
    return ops.sigmoid(x)


def _leaky_relu(node: Node, x: Tensor) -> Tensor:
    return ops.leaky_relu(x, node.number("alpha", 0.01))


def _softmax(node: Node, x: Tensor) -> Tensor:
    axis = node.integer("axis", -1)
    return ops.softmax(x, axis)


def _global_mean(node: Node, x: Tensor) -> Tensor:
    last = bool(node.integer("channels_last", 0))
    axes = range(1, x.ndim - 1) if last else range(2, x.ndim)
    return ops.mean(x, tuple(axes), keepdims=True)


def _mean(node: Node, x: Tensor) -> Tensor:
    if node.integer("channels_last", 0):
        order = (0, x.ndim - 1, *range(1, x.ndim - 1))
        moved = average_pool(node, ops.permute(x, order))
        return ops.permute(moved, (0, *range(2, x.ndim), 1))
    return average_pool(node, x)


_LAYERS: dict[str, Callable[[Node, Tensor], Tensor]] = {
    "QLinearAveragePool": _mean,
    "QLinearGlobalAveragePool": _global_mean,
    "QLinearLeakyRelu": _leaky_relu,
    "QLinearSigmoid": _sigmoid,
    "QLinearSoftmax": _softmax,
}


@converter(*_LAYERS, domain="com.microsoft", known=(1, 2, 3, 4))
def layer(
    node: Node, x: Value, scale: Value, zero: Zero, y_scale: Value, y_zero: Zero = None
) -> Tensor:
    made = _LAYERS[node.op_type](node, _floats(x, scale, zero))
    return _quantized(node, made, y_scale, y_zero, dtype_of(x))


@converter("QLinearConcat", domain="com.microsoft")
def qlinear_concat(node: Node, y_scale: Value, y_zero: Value, *inputs: Value) -> Tensor:
    if not inputs or len(inputs) % 3:
        raise node.invalid(f"{len(inputs)} inputs are not tensors with scales and zero points")
    parts = [
        _quantized(node, _floats(*inputs[i : i + 3]), y_scale, y_zero, dtype_of(y_zero))
        for i in range(0, len(inputs), 3)
    ]
    return ops.concat(parts, node.integer("axis"))
