"""Converters of quantized operators. An integer x represents the number (x - zero point) * scale.

Products are summed in int32. The sum is multiplied by the scales in float32 and rounded (half to
even) before the zero point is added, as in ONNX Runtime.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor, make_const
from ...conversion.budget import bounded
from ...conversion.convolutions import channelwise
from ...conversion.values import PACKED, Value, dtype_of, is_known, normal_axis, shape_of, tensor
from ..geometry import windows
from ..graph import OTHER_DTYPES, Node
from ..registry import converter
from .conv import convolved

_SATURATED = ("int8", "uint8", "int16", "uint16")
_STORED = (*_SATURATED, "int32")


# Quantizing and back


@converter("QuantizeLinear", since=10, known=(1, 2))
@converter("QuantizeLinear", domain="com.microsoft", known=(1, 2))
def quantize_linear(
    node: Node, data: Value, scale: Value, zero_point: Value | None = None
) -> Tensor:
    x = tensor(data)
    asked = _asked(node)
    dtype = asked or ("uint8" if zero_point is None else dtype_of(zero_point))
    if zero_point is not None and dtype != dtype_of(zero_point):
        raise node.invalid(f"output_dtype {dtype} is not the zero point's {dtype_of(zero_point)}")
    precision = dtype_of(scale)
    if node.integer("precision", 0):
        precision = node.dtype("precision")
    by = ops.cast(_lined_up(node, x, scale), precision)
    divided = ops.cast(ops.divide(ops.cast(x, precision), by), "float32")
    return stored(
        node, divided, None if zero_point is None else _lined_up(node, x, zero_point), dtype
    )


def _asked(node: Node) -> str:
    """Return the dtype that the attribute output_dtype names, or ""."""
    code = node.integer("output_dtype", 0)
    if OTHER_DTYPES.get(code) in PACKED:
        return OTHER_DTYPES[code]
    return node.dtype("output_dtype") if code else ""


@converter("DequantizeLinear", since=10, known=(1, 2))
@converter("DequantizeLinear", domain="com.microsoft", known=(1, 2))
def dequantize_linear(
    node: Node, data: Value, scale: Value, zero_point: Value | None = None
) -> Tensor:
    x = tensor(data)
    if x.dtype not in _STORED:
        raise node.unsupported(f"the dtype {x.dtype}; it must be one of {', '.join(_STORED)}")
    dtype = node.dtype("output_dtype") if node.integer("output_dtype", 0) else dtype_of(scale)
    if zero_point is not None and _held(zero_point) != x.dtype:
        raise node.invalid(f"the zero point is {dtype_of(zero_point)}, not {x.dtype}")
    moved = (
        x
        if zero_point is None or _is_zero(zero_point)
        else shifted(x, _lined_up(node, x, zero_point))
    )
    wide = "float64" if dtype == "float64" else "float32"
    by = ops.cast(_lined_up(node, x, scale), wide)
    return ops.cast(ops.multiply(ops.cast(moved, wide), by), dtype)


def _held(value: Value) -> str:
    """Return the dtype of a value's Tensor, which stores integers of 2 and 4 bits in 8 bits."""
    dtype = dtype_of(value)
    return PACKED[dtype][0] if dtype in PACKED else dtype


def _is_zero(zero_point: Value) -> bool:
    return is_known(zero_point) and not np.any(zero_point)


def shifted(x: Tensor, zero_point: Value | None) -> Tensor:
    """Return `x` minus the `zero_point`, which broadcasts, as int32."""
    wide = ops.cast(x, "int32")
    if zero_point is None or _is_zero(zero_point):
        return wide
    return ops.subtract(wide, ops.cast(tensor(zero_point), "int32"))


def _lined_up(node: Node, x: Tensor, value: Value) -> Tensor:
    """Reshape a scale or zero point so that it broadcasts. It has one element for all of x, or one
    for each position or each block of positions along the node's axis."""
    shape = shape_of(value)
    if all(n == 1 for n in shape):
        return tensor(value.reshape(()))
    axis = normal_axis(node, node.integer("axis", 1), x.ndim)
    block = node.integer("block_size", 0)
    if block == 0:
        if len(shape) != 1 or shape[0] != x.shape[axis]:
            raise node.invalid(
                f"a scale or zero point of shape {shape} does not fit axis {axis} of {x.spec}"
            )
        return tensor(value.reshape((-1, *(1,) * (x.ndim - axis - 1))))
    if block < 1 or len(shape) != x.ndim or shape[axis] != -(-x.shape[axis] // block):
        raise node.invalid(
            f"a scale or zero point of shape {shape} does not fit blocks of {block} of {x.spec}"
        )
    bounded((*shape[:axis], shape[axis] * block, *shape[axis + 1 :]))
    repeated = ops.repeat_interleave(tensor(value), block, axis)
    key = (slice(None),) * axis + (slice(0, x.shape[axis]),)
    return repeated[key]


def stored(node: Node, x: Tensor, zero_point: Value | None, dtype: str) -> Tensor:
    """Round float32 numbers `x`, add the `zero_point`, and saturate to `dtype`. Raises
    UnsupportedError, which names the `node`, if `dtype` is not supported."""
    if dtype not in (*_SATURATED, *PACKED):
        raise node.unsupported(f"the dtype {dtype}, none of {', '.join((*_SATURATED, *PACKED))}")
    made = ops.round(x)
    if zero_point is not None and not _is_zero(zero_point):
        made = ops.add(made, ops.cast(tensor(zero_point), "float32"))
    bounds = np.iinfo(PACKED[dtype][0] if dtype in PACKED else dtype)
    held, least, most = PACKED.get(dtype, (dtype, bounds.min, bounds.max))
    return ops.cast(ops.clip(made, float(least), float(most)), held)


@converter("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(node: Node, data: Value) -> tuple[Tensor, Tensor, Tensor]:
    return _dynamic(node, tensor(data))


def _dynamic(node: Node, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize x to uint8 over the range that spans its values and 0. Return the result, the scale
    and the zero point."""
    most, least = ops.maximum(ops.max(x), 0.0), ops.minimum(ops.min(x), 0.0)
    span = ops.subtract(most, least)
    scale = ops.where(ops.equal(span, 0.0), 1.0, ops.divide(span, 255.0))
    zero_point = ops.round(ops.clip(ops.divide(ops.negate(least), scale), 0.0, 255.0))
    made = stored(node, ops.divide(x, scale), zero_point, "uint8")
    return made, scale, ops.cast(zero_point, "uint8")


# Products


def _rows(value: Any) -> Any:
    """Reshape a scale or zero point of a matrix's rows so that it broadcasts."""
    if value is None or all(n == 1 for n in value.shape):
        return None if value is None else value.reshape(())
    return value.reshape((-1, 1)) if value.ndim == 1 else value


def _columns(value: Any) -> Any:
    """Reshape a scale or zero point of a matrix's columns so that it broadcasts."""
    if value is None or all(n == 1 for n in value.shape):
        return None if value is None else value.reshape(())
    return value


def combined(*factors: Value, by: Value | None = None) -> Tensor:
    """Return the product of the scales `factors`, divided by the scale `by`. If all are known, the
    result is a constant."""
    if all(is_known(value) for value in factors) and (by is None or is_known(by)):
        product = factors[0]
        for value in factors[1:]:
            product = product * value
        return make_const(np.asarray(product if by is None else product / by))
    made = tensor(factors[0])
    for value in factors[1:]:
        made = ops.multiply(made, tensor(value))
    return made if by is None else ops.divide(made, tensor(by))


def _requantized(
    node: Node, summed: Tensor, scale: Tensor, zero_point: Value | None, dtype: str
) -> Tensor:
    """Multiply int32 sums by a scale and store them in a dtype."""
    scaled = ops.multiply(ops.cast(summed, "float32"), ops.cast(scale, "float32"))
    moved = None if zero_point is None else zero_point.reshape(())
    return stored(node, scaled, moved, dtype)


def _product(a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Tensor:
    return ops.matmul(shifted(tensor(a), _rows(a_zero)), shifted(tensor(b), _columns(b_zero)))


@converter("MatMulInteger", since=10)
def matmul_integer(
    node: Node, a: Value, b: Value, a_zero: Value | None = None, b_zero: Value | None = None
) -> Tensor:
    return _product(a, b, a_zero, b_zero)


@converter("QLinearMatMul", since=10, known=(1, 2, 4, 5, 6, 7))
def qlinear_matmul(
    node: Node,
    a: Value,
    a_scale: Value,
    a_zero: Value,
    b: Value,
    b_scale: Value,
    b_zero: Value,
    y_scale: Value,
    y_zero: Value,
) -> Tensor:
    scale = combined(_rows(a_scale), _columns(b_scale), by=_rows(y_scale))
    return _requantized(node, _product(a, b, a_zero, b_zero), scale, y_zero, dtype_of(y_zero))


def _convolution(
    node: Node, data: Value, weight: Value, zero: Value | None, w_zero: Value | None, bias: Any
) -> Tensor:
    """Return the convolution of integers minus their zero points, as int32."""
    x, w = tensor(data), tensor(weight)
    if x.ndim != w.ndim or not 3 <= x.ndim <= 5:
        raise node.unsupported(f"a convolution of {x.spec} with {w.spec}")
    over = windows(node, x.shape[2:], w.shape[2:])
    by_channel = w_zero
    if w_zero is not None and not all(n == 1 for n in w_zero.shape):
        by_channel = w_zero.reshape((-1, *(1,) * (w.ndim - 1)))
    elif w_zero is not None:
        by_channel = w_zero.reshape(())
    moved = shifted(x, None if zero is None else zero.reshape(()))
    groups = node.integer("group")
    return convolved(moved, shifted(w, by_channel), bias, over, groups)


@converter("ConvInteger", since=10)
def conv_integer(
    node: Node, data: Value, weight: Value, zero: Value | None = None, w_zero: Value | None = None
) -> Tensor:
    return _convolution(node, data, weight, zero, w_zero, None)


@converter("QLinearConv", since=10, known=(1, 2, 4, 5, 6, 7))
def qlinear_conv(
    node: Node,
    data: Value,
    scale: Value,
    zero: Value,
    weight: Value,
    w_scale: Value,
    w_zero: Value,
    y_scale: Value,
    y_zero: Value,
    bias: Value | None = None,
) -> Tensor:
    shift = None if bias is None else tensor(bias)
    made = _convolution(node, data, weight, zero, w_zero, shift)
    by_channel = _columns(w_scale)
    whole = combined(scale.reshape(()), by_channel, by=y_scale.reshape(()))
    if by_channel.ndim:
        whole = channelwise(whole, made.ndim)
    return _requantized(node, made, whole, y_zero, dtype_of(y_zero))


# Operators of ONNX Runtime (domain com.microsoft)


@converter("QGemm", domain="com.microsoft", known=(1, 2, 4, 5, 7, 8))
def qgemm(
    node: Node,
    a: Value,
    a_scale: Value,
    a_zero: Value,
    b: Value,
    b_scale: Value,
    b_zero: Value,
    c: Value | None = None,
    y_scale: Value | None = None,
    y_zero: Value | None = None,
) -> Tensor:
    left = shifted(tensor(a), _columns(a_zero))
    zeros = b_zero if b_zero.size == 1 or not node.flag("transB", False) else _rows(b_zero)
    right = shifted(tensor(b), _columns(zeros))
    left = ops.transpose(left) if node.flag("transA", False) else left
    right = ops.transpose(right) if node.flag("transB", False) else right
    made = ops.matmul(left, right)
    made = made if c is None else ops.add(made, tensor(c))
    scales = np.float32(node.number("alpha", 1.0)), _columns(a_scale), _columns(b_scale)
    scale = combined(np.asarray(scales[0]), *scales[1:], by=y_scale)
    if y_scale is None:
        return ops.multiply(ops.cast(made, "float32"), scale)
    return _requantized(node, made, scale, y_zero, dtype_of(a if y_zero is None else y_zero))


@converter("MatMulIntegerToFloat", domain="com.microsoft", known=(2, 3, 4, 5))
def matmul_integer_to_float(
    node: Node,
    a: Value,
    b: Value,
    a_scale: Value,
    b_scale: Value,
    a_zero: Value | None = None,
    b_zero: Value | None = None,
    bias: Value | None = None,
) -> Tensor:
    scale = combined(_columns(a_scale), _columns(b_scale))
    made = ops.multiply(ops.cast(_product(a, b, a_zero, b_zero), "float32"), scale)
    return made if bias is None else ops.add(made, tensor(bias))


@converter("DynamicQuantizeMatMul", domain="com.microsoft", known=(2, 3))
def dynamic_quantize_matmul(
    node: Node,
    a: Value,
    b: Value,
    b_scale: Value,
    b_zero: Value | None = None,
    bias: Value | None = None,
) -> Tensor:
    stored, scale, zero = _dynamic(node, tensor(a))
    return matmul_integer_to_float(node, stored, b, scale, b_scale, zero, b_zero, bias)
