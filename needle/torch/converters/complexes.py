"""Converters for complex numbers: creation, parts, and arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, tensor
from ..complexes import OF_PARTS, TO_PARTS, Complex, part, real_dtype
from ..operands import Number, cast, is_tensor
from ..program import Node
from ..registry import complex_converter, converter

Operand = Any  # a Complex, a tensor or a number


def pair(node: Node, value: Operand, dtype: str | None = None) -> Complex:
    """Return an operand (`value`) as a Complex with the dtype of `node`, or with `dtype`."""
    real = real_dtype(dtype or node.dtype)
    return Complex(cast(part(value, 0), real), cast(part(value, 1), real))


def is_real(value: Operand) -> bool:
    """Return whether an operand (`value`) has no imaginary part."""
    return not isinstance(value, (Complex, complex))


def widest(*operands: Operand) -> str:
    """Return the real dtype in which the parts of `operands` are compared."""
    found = {part(each, 0).dtype for each in operands if isinstance(each, Complex)}
    reals = {tensor(each).dtype for each in operands if is_tensor(each)}
    return "float64" if "float64" in found | reals else "float32"


@converter("aten.view_as_complex", "aten.view_as_complex_copy")
@complex_converter("aten.view_as_complex", "aten.view_as_complex_copy", OF_PARTS)
def view_as_complex(node: Node, x: Value) -> Complex:
    """Return a `node`'s complex numbers, whose parts are along the last axis of `x` (..., 2)."""
    if isinstance(x, np.ndarray):
        return Complex(tensor(x[..., 0]), tensor(x[..., 1]))
    return Complex(x[..., 0], x[..., 1])


@complex_converter("aten.view_as_real", "aten.view_as_real_copy", TO_PARTS)
def view_as_real(node: Node, x: Complex) -> Tensor:
    return ops.stack([x.real, x.imag], -1)


@converter("aten.complex")
@complex_converter("aten.complex")
def complex_(node: Node, real: Value, imag: Value) -> Complex:
    shape, dtype = node.shape, real_dtype(node.dtype)
    parts = (ops.broadcast_to(cast(each, dtype), shape) for each in (real, imag))
    return Complex(*parts)


@converter("aten.polar")
@complex_converter("aten.polar")
def polar(node: Node, length: Value, angle: Value) -> Complex:
    return of_polar(tensor(length), tensor(angle))


def of_polar(length: Tensor, angle: Tensor) -> Complex:
    """Return the complex numbers with absolute values `length` and angles `angle`."""
    return Complex(ops.multiply(length, ops.cos(angle)), ops.multiply(length, ops.sin(angle)))


@complex_converter("aten.real")
def real(node: Node, x: Complex) -> Tensor:
    return x.real


@complex_converter("aten.imag")
def imag(node: Node, x: Complex) -> Tensor:
    return x.imag


@complex_converter("aten._conj", "aten.conj", "aten._conj_copy", "aten.conj_physical")
@complex_converter("aten._conj_physical")
def conj(node: Node, x: Complex) -> Complex:
    return Complex(x.real, ops.negate(x.imag))


@converter("aten._neg_view", "aten._neg_view_copy")
def neg_view(node: Node, x: Value) -> Tensor:
    """Return -x, the imaginary part of a conjugate."""
    return ops.negate(tensor(x))


@complex_converter("aten.resolve_conj", "aten.resolve_neg")
def resolved(node: Node, x: Complex) -> Complex:
    return x


@complex_converter("aten._to_copy", "aten.to", "prims.convert_element_type")
def to_copy(node: Node, x: Operand, dtype: str | None = None) -> Any:
    """Cast x to another dtype. A cast to a real dtype keeps only the real part."""
    if node.dtype != real_dtype(node.dtype):
        return pair(node, x)
    return cast(part(x, 0), node.dtype)


@complex_converter("aten.add", "aten.sub", "aten.rsub")
def add(node: Node, x: Operand, other: Operand, alpha: Operand = 1) -> Complex:
    kind = node.operator.split(".")[1]
    if kind == "rsub":
        x, other = other, x
    a, b = pair(node, x), pair(node, other)
    if alpha != 1:
        b = product(b, pair(node, alpha)) if not is_real(alpha) else scaled(b, alpha)
    both = ops.add if kind == "add" else ops.subtract
    return Complex(both(a.real, b.real), both(a.imag, b.imag))


def scaled(x: Complex, factor: Number) -> Complex:
    """Return `x` times a real number `factor`."""
    return Complex(ops.mul_scalar(x.real, factor), ops.mul_scalar(x.imag, factor))


def product(x: Complex, y: Complex) -> Complex:
    """Return `x` * `y`, elementwise."""
    (a, b), (c, d) = x.parts, y.parts
    return Complex(a * c - b * d, a * d + b * c)


@complex_converter("aten.mul")
def multiply(node: Node, x: Operand, other: Operand) -> Complex:
    if is_real(x) and is_real(other):  # only the result's dtype is complex
        x = pair(node, x)
    if not is_real(x) and not is_real(other):
        return product(pair(node, x), pair(node, other))
    of, by = (other, x) if is_real(x) else (x, other)
    z, factor = pair(node, of), cast(by, real_dtype(node.dtype))
    return Complex(ops.multiply(z.real, factor), ops.multiply(z.imag, factor))


@complex_converter("aten.div", "aten.true_divide")
def divide(node: Node, x: Operand, other: Operand) -> Complex:
    z = pair(node, x)
    if is_real(other):
        by = cast(other, real_dtype(node.dtype))
        return Complex(ops.divide(z.real, by), ops.divide(z.imag, by))
    return quotient(z, pair(node, other))


def quotient(x: Complex, y: Complex) -> Complex:
    """Return `x` / `y` without overflow (Smith 1962)."""
    (a, b), (c, d) = x.parts, y.parts
    swap = ops.less(ops.abs(c), ops.abs(d))
    large, small = ops.where(swap, d, c), ops.where(swap, c, d)
    first, second = ops.where(swap, b, a), ops.where(swap, a, b)
    ratio = ops.divide(small, large)
    scale = large + small * ratio
    imag = second - first * ratio
    return Complex(
        ops.divide(first + second * ratio, scale),
        ops.divide(ops.where(swap, ops.negate(imag), imag), scale),
    )


@complex_converter("aten.reciprocal")
def reciprocal(node: Node, x: Complex) -> Complex:
    return quotient(pair(node, 1.0), x)


@complex_converter("aten.abs")
def absolute(node: Node, x: Complex) -> Tensor:
    return magnitude(x)


def magnitude(x: Complex) -> Tensor:
    """Return |`x`| without overflow. Its gradient is 0 at 0."""
    a, b = ops.abs(x.real), ops.abs(x.imag)
    large, small = ops.maximum(a, b), ops.minimum(a, b)
    none = ops.logical_or(ops.equal(large, 0.0), ops.isinf(large))
    ratio = ops.divide(ops.where(none, 0.0, small), ops.where(none, 1.0, large))
    found = large * ops.sqrt(ratio * ratio + 1.0)
    infinite = ops.logical_or(ops.isinf(a), ops.isinf(b))
    return ops.where(infinite, float("inf"), ops.where(ops.equal(large, 0.0), 0.0, found))


@complex_converter("aten.angle")
def angle(node: Node, x: Complex) -> Tensor:
    """Return the angle of x. Its gradient is 0 at 0."""
    none = ops.logical_and(ops.equal(x.real, 0.0), ops.equal(x.imag, 0.0))
    at_zero = ops.atan2(ops.detach(x.imag), ops.detach(x.real))
    return ops.where(none, at_zero, ops.atan2(x.imag, ops.where(none, 1.0, x.real)))


@complex_converter("aten.sgn", "aten.sign")
def sgn(node: Node, x: Complex) -> Complex:
    """Return x / |x|, and 0 at 0."""
    length = magnitude(x)
    none = ops.equal(length, 0.0)
    by = ops.where(none, 1.0, length)
    return Complex(*(ops.where(none, 0.0, ops.divide(each, by)) for each in x.parts))


@complex_converter("aten.eq", "aten.ne")
def compare(node: Node, x: Operand, other: Operand) -> Tensor:
    dtype = widest(x, other)
    a, b = (Complex(*(cast(part(each, i), dtype) for i in (0, 1))) for each in (x, other))
    same = ops.logical_and(ops.equal(a.real, b.real), ops.equal(a.imag, b.imag))
    return same if node.operator.startswith("aten.eq") else ops.logical_not(same)


@complex_converter("aten.isnan", "aten.isinf")
def any_part(node: Node, x: Complex) -> Tensor:
    test = ops.isnan if node.operator.startswith("aten.isnan") else ops.isinf
    return ops.logical_or(test(x.real), test(x.imag))


@complex_converter("aten.isfinite")
def both_parts(node: Node, x: Complex) -> Tensor:
    return ops.logical_and(ops.isfinite(x.real), ops.isfinite(x.imag))


@complex_converter("aten.isreal")
def isreal(node: Node, x: Complex) -> Tensor:
    return ops.equal(x.imag, 0.0)


@complex_converter("aten.ones_like", "aten.new_ones", "aten.ones")
def ones(node: Node, *_: Any) -> Complex:
    return Complex(*(_filled(node, value) for value in (1.0, 0.0)))


def _filled(node: Node, value: float) -> Tensor:
    scalar = Tensor(np.array(value, real_dtype(node.dtype)), requires_grad=False)
    return ops.broadcast_to(scalar, node.shape)
