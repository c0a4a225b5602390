"""Converters of functions on bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.bits import INTEGER_OF, bits_of, exponent_of, is_negative, of_bits, power_of_two
from ...conversion.values import Value, tensor
from ..operands import cast
from ..program import Node
from ..registry import converter

_BITWISE: dict[str, Callable[[Any, Any], Tensor]] = {
    "bitwise_and": ops.bitwise_and,
    "bitwise_or": ops.bitwise_or,
    "bitwise_xor": ops.bitwise_xor,
    "__and__": ops.bitwise_and,
    "__or__": ops.bitwise_or,
    "__xor__": ops.bitwise_xor,
    "bitwise_left_shift": ops.left_shift,
    "__lshift__": ops.left_shift,
    "bitwise_right_shift": ops.right_shift,
    "__rshift__": ops.right_shift,
}


@converter(*(f"aten.{name}" for name in _BITWISE))
def bitwise(node: Node, x: Any, other: Any) -> Tensor:
    found = _BITWISE[node.operator.split(".")[1]]
    return found(cast(x, node.dtype), cast(other, node.dtype))


@converter("aten.bitwise_not")
def bitwise_not(node: Node, x: Value) -> Tensor:
    return ops.bitwise_not(tensor(x))


@converter("aten.view.dtype")
def view_as_dtype(node: Node, x: Value, dtype: str) -> Tensor:
    """Reinterpret the same bytes as elements of another dtype. For a narrower or wider dtype, the
    bytes are split or joined along the last axis, lowest bytes first."""
    pattern = bits_of(tensor(x))
    have, want = (np.dtype(each).itemsize for each in (pattern.dtype, node.dtype))
    many, bits = max(have, want) // min(have, want), 8 * min(have, want)
    if have > want:
        parts = [ops.right_shift(pattern, i * bits) for i in range(many)]
        parts = [ops.cast(part, INTEGER_OF[want]) for part in parts]
        pattern = ops.reshape(ops.stack(parts, -1), node.shape)
    elif have < want:
        wide = ops.cast(ops.reshape(pattern, (*node.shape, many)), INTEGER_OF[want])
        parts = [ops.bitwise_and(wide[..., i], (1 << bits) - 1) for i in range(many)]
        pattern = ops.left_shift(parts[0], 0)
        for i, part in enumerate(parts[1:], 1):
            pattern = ops.bitwise_or(pattern, ops.left_shift(part, i * bits))
    return of_bits(pattern, node.dtype)


@converter("aten.signbit", "prims.signbit")
def sign_bit(node: Node, x: Value) -> Tensor:
    return is_negative(tensor(x))


@converter("aten.copysign")
def copy_sign(node: Node, x: Any, sign: Any) -> Tensor:
    size = ops.abs(cast(x, node.dtype))
    return ops.where(is_negative(cast(sign, node.dtype)), ops.negate(size), size)


@converter("aten.nextafter", "prims.nextafter")
def next_after(node: Node, x: Any, target: Any) -> Tensor:
    """Return the dtype's next number after x in the direction of `target`."""
    a, b = (cast(each, node.dtype) for each in (x, target))
    bits = bits_of(a)
    grows = ops.equal(ops.greater(b, a), ops.greater(a, 0))
    moved = ops.add(bits, ops.cast(ops.where(grows, 1, -1), bits.dtype))
    least = ops.where(is_negative(b), -int(np.iinfo(bits.dtype).max), 1)
    moved = ops.where(ops.equal(a, 0), ops.cast(least, bits.dtype), moved)
    found = ops.where(ops.equal(a, b), b, of_bits(moved, node.dtype))
    found = ops.where(ops.logical_or(ops.isnan(a), ops.isnan(b)), float("nan"), found)
    # As in PyTorch, the gradient passes through to x unchanged.
    return ops.where(ops.isfinite(a), ops.add(ops.subtract(a, ops.detach(a)), found), found)


@converter("aten.frexp", "prims.frexp")
def mantissa_and_exponent(node: Node, x: Value) -> tuple[Tensor, Tensor]:
    """Split x into a number in [1/2, 1) and an int32 exponent of 2."""
    given = tensor(x)
    wide = given if given.dtype == "float64" else ops.cast(given, "float32")
    exponent = exponent_of(ops.detach(wide))
    half = ops.right_shift(exponent, 1)
    rest = ops.subtract(exponent, half)
    for part in (half, rest):  # in two steps, so that no power leaves the range
        wide = ops.multiply(wide, power_of_two(ops.negate(part), wide.dtype))
    return ops.cast(wide, given.dtype), exponent
