"""Converters of elementwise operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import is_floating, result_type
from ...conversion.integers import divide_towards_zero, integer_power
from ...conversion.values import Carried, Value, known_number, normal_axis, tensor
from ..graph import Node
from ..registry import converter

# Functions of one tensor without attributes.
_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": ops.abs,
    "Acos": ops.acos,
    "Acosh": ops.acosh,
    "Asin": ops.asin,
    "Asinh": ops.asinh,
    "Atan": ops.atan,
    "Atanh": ops.atanh,
    "BitwiseNot": ops.bitwise_not,
    "Ceil": ops.ceil,
    "Cos": ops.cos,
    "Cosh": ops.cosh,
    "Erf": ops.erf,
    "Exp": ops.exp,
    "Floor": ops.floor,
    "HardSwish": ops.hardswish,
    "IsNaN": ops.isnan,
    "Log": ops.log,
    "Mish": ops.mish,
    "Neg": ops.negate,
    "Not": ops.logical_not,
    "Reciprocal": ops.reciprocal,
    "Relu": ops.relu,
    "Round": ops.round,
    "Sigmoid": ops.sigmoid,
    "Sign": ops.sign,
    "Sin": ops.sin,
    "Sinh": ops.sinh,
    "Softplus": ops.softplus,
    "Softsign": ops.softsign,
    "Sqrt": ops.sqrt,
    "Tan": ops.tan,
    "Tanh": ops.tanh,
}

# The elementwise operators of this file. From opset 7 on, their operands broadcast.
ELEMENTWISE = frozenset(
    {"And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Celu", "Clip",
     "Div", "Add", "Elu", "Equal", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "Identity",
     "IsInf", "LeakyRelu", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu",
     "Pow", "Selu", "Shrink", "Sub", "Sum", "Swish", "ThresholdedRelu", "Where", "Xor", *_UNARY}
)  # fmt: skip


@converter(*_UNARY)
def unary(node: Node, x: Value) -> Tensor:
    return _UNARY[node.op_type](tensor(x))


# Functions of two tensors, which broadcast.
_BINARY: dict[str, Callable[..., Tensor]] = {
    "Add": ops.add,
    "And": ops.logical_and,
    "BitwiseAnd": ops.bitwise_and,
    "BitwiseOr": ops.bitwise_or,
    "BitwiseXor": ops.bitwise_xor,
    "Equal": ops.equal,
    "Greater": ops.greater,
    "GreaterOrEqual": ops.greater_equal,
    "Less": ops.less,
    "LessOrEqual": ops.less_equal,
    "Mul": ops.multiply,
    "Or": ops.logical_or,
    "Sub": ops.subtract,
    "Xor": ops.logical_xor,
}


@converter(*_BINARY, since=1)
def binary(node: Node, a: Value, b: Value) -> Tensor:
    return _BINARY[node.op_type](*operands(a, _aligned(node, a, b)))


def _aligned(node: Node, a: Value, b: Value) -> Value:
    """Return the second operand with trailing axes of extent 1, so that its axes line up with the
    first operand's from the attribute `axis` on, as in opsets before 7."""
    if node.opset >= 7 or not node.flag("broadcast", False) or not node.has("axis"):
        return b
    behind = a.ndim - normal_axis(node, node.integer("axis"), a.ndim) - b.ndim
    return ops.reshape(tensor(b), (*b.shape, *(1,) * behind))


def operands(a: Value, b: Value) -> tuple[Any, Any]:
    """Return `a` and `b` as operands that broadcast. If one of them is known and has one element,
    it becomes a Python number."""
    first, second = _number(a, b), _number(b, a)
    if first is not None and second is not None:
        return tensor(a), tensor(b)
    return (
        tensor(a) if first is None else first,
        tensor(b) if second is None else second,
    )


def _number(value: Value, other: Value) -> Any:
    """Return the Python number in `value` if it changes neither the shape nor the dtype of the
    result, else None."""
    if not isinstance(value, np.ndarray) or value.size != 1 or value.ndim > other.ndim:
        return None
    if value.dtype.kind == "b" or value.dtype == object or value.dtype.name != other.dtype:
        return None
    found = value.reshape(-1)[0]
    return float(found) if is_floating(value.dtype.name) else int(found)


@converter("Div", since=1)
def divide(node: Node, a: Value, b: Value) -> Tensor:
    b = _aligned(node, a, b)
    first, second = operands(a, b)
    whole = first if isinstance(first, Tensor) else second
    if is_floating(whole.dtype):
        return ops.divide(first, second)
    return divide_towards_zero(tensor(a), tensor(b))


@converter("Mod", since=10)
def modulo(node: Node, a: Value, b: Value) -> Tensor:
    first, second = operands(a, b)
    return ops.fmod(first, second) if node.flag("fmod") else ops.remainder(first, second)


@converter("Pow", since=1)
def power(node: Node, base: Value, exponent: Value) -> Tensor:
    exponent = _aligned(node, base, exponent)
    x, y = tensor(base), tensor(exponent)
    if not is_floating(x.dtype) and not is_floating(y.dtype):
        given = ops.cast(y, "int64")
        # Powers with exponents above 64 overflow, except those of 0, 1 and -1, which depend only on
        # the exponent's parity.
        far = ops.add(ops.bitwise_and(given, 1), 64)
        return integer_power(x, ops.where(ops.greater(given, 64), far, given), 7)
    if x.dtype == y.dtype:
        return ops.power(*operands(base, exponent))
    common = result_type(x.dtype, y.dtype)
    if isinstance(exponent, np.ndarray) and exponent.size == 1 and is_floating(x.dtype):
        return ops.power(*operands(base, exponent.astype(np.dtype(x.dtype))))
    return ops.cast(ops.power(ops.cast(x, common), ops.cast(y, common)), x.dtype)


@converter("BitShift", since=11)
def bit_shift(node: Node, a: Value, b: Value) -> Tensor:
    direction = node.text("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise node.invalid(f"direction {direction!r} is neither LEFT nor RIGHT")
    shift = ops.left_shift if direction == "LEFT" else ops.right_shift
    return shift(tensor(a), tensor(b))


# Operators of any number of tensors.


@converter("Sum", since=6)
def sum_(node: Node, first: Value, *others: Value) -> Tensor:
    return _folded(ops.add, first, others)


@converter("Mean", since=6)
def mean(node: Node, first: Value, *others: Value) -> Tensor:
    return ops.divide(_folded(ops.add, first, others), float(1 + len(others)))


@converter("Max", since=6)
def maximum(node: Node, first: Value, *others: Value) -> Tensor:
    return _folded(ops.maximum, first, others)


@converter("Min", since=6)
def minimum(node: Node, first: Value, *others: Value) -> Tensor:
    return _folded(ops.minimum, first, others)


def _folded(function: Callable[..., Tensor], first: Value, others: tuple[Value, ...]) -> Tensor:
    made = tensor(first)
    for other in others:
        made = function(*operands(made, other))
    return made


@converter("Where", since=9)
def where(node: Node, condition: Value, a: Value, b: Value) -> Tensor:
    return ops.where(tensor(condition), tensor(a), tensor(b))


# Casts


@converter("Cast", since=6)
def cast(node: Node, x: Value) -> Tensor:
    return ops.cast(tensor(x), node.dtype("to"))


@converter("CastLike", since=15)
def cast_like(node: Node, x: Value, like: Value) -> Tensor:
    return ops.cast(tensor(x), tensor(like).dtype)


@converter("Identity")
def identity(node: Node, x: Carried) -> Any:
    return (x,)


@converter("Dropout", known=(2,))
def dropout(node: Node, x: Value, ratio: Value | None = None, training: Value | None = None) -> Any:
    if training is not None and known_number(node, training, "training_mode"):
        raise node.unsupported("dropout in training mode")
    if not node.wants(1):
        return x
    mask = ops.broadcast_to(Tensor(np.ones((), bool)), tensor(x).shape)
    return x, mask if node.opset >= 10 else ops.cast(mask, tensor(x).dtype)


# Activations with attributes


@converter("Clip", since=6)
def clip_by_attributes(node: Node, x: Value) -> Tensor:
    return ops.clip(tensor(x), node.number("min"), node.number("max"))


@converter("Clip", since=11)
def clip(node: Node, x: Value, least: Value | None = None, most: Value | None = None) -> Tensor:
    made = tensor(x)
    if least is not None:
        made = ops.maximum(*operands(made, least))
    if most is not None:
        made = ops.minimum(*operands(made, most))
    return made


@converter("Elu", since=6)
def elu(node: Node, x: Value) -> Tensor:
    return ops.elu(tensor(x), node.number("alpha"))


@converter("Celu", since=12)
def celu(node: Node, x: Value) -> Tensor:
    return ops.celu(tensor(x), node.number("alpha"))


@converter("Selu", since=6)
def selu(node: Node, value: Value) -> Tensor:
    x = tensor(value)
    negative = ops.mul_scalar(ops.expm1(x), node.number("alpha"))
    return ops.mul_scalar(ops.where(ops.greater(x, 0.0), x, negative), node.number("gamma"))


@converter("LeakyRelu", since=6)
def leaky_relu(node: Node, x: Value) -> Tensor:
    return ops.leaky_relu(tensor(x), node.number("alpha"))


@converter("ThresholdedRelu", since=10)
def thresholded_relu(node: Node, x: Value) -> Tensor:
    return ops.threshold(tensor(x), node.number("alpha"), 0.0)


@converter("HardSigmoid", since=6)
def hard_sigmoid(node: Node, x: Value) -> Tensor:
    scaled = ops.mul_scalar(tensor(x), node.number("alpha"))
    return ops.clip(ops.add_scalar(scaled, node.number("beta")), 0.0, 1.0)


@converter("Gelu", since=20)
def gelu(node: Node, x: Value) -> Tensor:
    return ops.gelu(tensor(x), node.text("approximate"))


@converter("Swish", since=24)
def swish(node: Node, value: Value) -> Tensor:
    x, alpha = tensor(value), node.number("alpha")
    if alpha == 1.0:
        return ops.silu(x)
    return ops.multiply(x, ops.sigmoid(ops.mul_scalar(x, alpha)))


@converter("PRelu", since=1)
def prelu(node: Node, value: Value, slope: Value) -> Tensor:
    x = tensor(value)
    if node.opset < 7 and slope.ndim == 1 and x.ndim > 1:  # one slope per channel
        slope = ops.reshape(tensor(slope), (*slope.shape, *(1,) * (x.ndim - 2)))
    negative = ops.multiply(*operands(x, slope))
    return ops.where(ops.less(x, 0), negative, x)


@converter("Shrink", since=9)
def shrink(node: Node, value: Value) -> Tensor:
    x, bias, bound = tensor(value), node.number("bias"), node.number("lambd")
    above = ops.where(ops.greater(x, bound), ops.subtract(x, bias), 0.0)
    return ops.where(ops.less(x, -bound), ops.add(x, bias), above)


@converter("IsInf", since=10)
def is_inf(node: Node, value: Value) -> Tensor:
    x = tensor(value)
    found = ops.isinf(x)
    if not node.flag("detect_negative"):
        found = ops.logical_and(found, ops.greater(x, 0.0))
    if not node.flag("detect_positive"):
        found = ops.logical_and(found, ops.less(x, 0.0))
    return found
