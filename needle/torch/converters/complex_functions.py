"""Converters of functions of complex numbers: exponentials, powers, products."""

from __future__ import annotations

import functools
from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import along, normal_axis
from ...sizes.dims import Expression
from ..complexes import Complex, zeros_like
from ..operands import is_tensor
from ..program import Node
from ..registry import complex_converter
from .complexes import Operand, is_real, magnitude, of_polar, pair, product, quotient


@complex_converter("aten.exp")
def exp(node: Node, x: Complex) -> Complex:
    return of_polar(ops.exp(x.real), x.imag)


@complex_converter("aten.log")
def log(node: Node, x: Complex) -> Complex:
    return logarithm(x)


def logarithm(x: Complex) -> Complex:
    """Return the principal value of log `x`."""
    return Complex(ops.log(magnitude(x)), ops.atan2(x.imag, x.real))


@complex_converter("aten.sqrt")
def sqrt(node: Node, x: Complex) -> Complex:
    return root(x)


def root(x: Complex) -> Complex:
    """Return the square root of `x` with a real part of at least 0. Its imaginary part has the sign
    of the imaginary part of `x`."""
    a, b = x.parts
    none = ops.logical_and(ops.equal(a, 0.0), ops.equal(b, 0.0))
    half = ops.mul_scalar(magnitude(x) + ops.abs(a), 0.5)
    large = ops.sqrt(ops.where(none, 1.0, half))
    small = ops.divide(ops.mul_scalar(ops.abs(b), 0.5), large)
    right = ops.greater_equal(a, 0.0)
    real, imag = ops.where(right, large, small), ops.where(right, small, large)
    signed = ops.where(_is_negative(b), ops.negate(imag), imag)
    return Complex(ops.where(none, 0.0, real), ops.where(none, b, signed))


def _is_negative(x: Tensor) -> Tensor:
    """Return whether x has a minus sign; -0 has one."""
    return ops.less(ops.where(ops.equal(x, 0.0), ops.atan2(x, -1.0 + 0.0 * x), x), 0.0)


@complex_converter("aten.pow")
def power(node: Node, x: Operand, exponent: Operand) -> Complex:
    """Raise x to the power of a number or tensor. Small integer powers are computed by products."""
    if not is_tensor(exponent) and is_real(exponent):
        whole = _whole_power(node, x, exponent)
        if whole is not None:
            return whole
    base, by = pair(node, x), pair(node, exponent)
    none = ops.logical_and(ops.equal(base.real, 0.0), ops.equal(base.imag, 0.0))
    safe = Complex(ops.where(none, 1.0, base.real), base.imag)
    turned = product(logarithm(safe), by)
    found = of_polar(ops.exp(turned.real), turned.imag)
    at_zero = ops.where(ops.logical_and(ops.equal(by.real, 0.0), ops.equal(by.imag, 0.0)), 1.0, 0.0)
    return Complex(ops.where(none, at_zero, found.real), ops.where(none, 0.0, found.imag))


def _whole_power(node: Node, x: Operand, exponent: Any) -> Complex | None:
    """Return a power that needs only a few products or a root, or None for other powers."""
    if isinstance(exponent, Expression):
        return None
    base = pair(node, x)
    if exponent == 0.5:
        return root(base)
    if exponent == 0:
        zeros = zeros_like(base.real)
        return Complex(ops.add_scalar(zeros, 1.0), zeros)
    if exponent != int(exponent) or abs(exponent) > 3:
        return None
    found = functools.reduce(product, [base] * abs(int(exponent)))
    return found if exponent > 0 else quotient(pair(node, 1.0), found)


@complex_converter("aten.sin", "aten.cos", "aten.sinh", "aten.cosh")
def waves(node: Node, x: Complex) -> Complex:
    name = node.operator.split(".")[1]
    a, b = x.parts
    if name == "sinh":
        return Complex(ops.sinh(a) * ops.cos(b), ops.cosh(a) * ops.sin(b))
    if name == "cosh":
        return Complex(ops.cosh(a) * ops.cos(b), ops.sinh(a) * ops.sin(b))
    if name == "sin":
        return Complex(ops.sin(a) * ops.cosh(b), ops.cos(a) * ops.sinh(b))
    return Complex(ops.cos(a) * ops.cosh(b), ops.negate(ops.sin(a) * ops.sinh(b)))


@complex_converter("aten.tanh", "aten.sigmoid")
def saturating(node: Node, x: Complex) -> Complex:
    """Compute tanh(a + bi) from tanh a and tan b; sigmoid(x) is (1 + tanh(x / 2)) / 2."""
    if node.operator.startswith("aten.tanh"):
        return _tanh(x)
    half = _tanh(Complex(ops.mul_scalar(x.real, 0.5), ops.mul_scalar(x.imag, 0.5)))
    return Complex(
        ops.mul_scalar(half.real + 1.0, 0.5),
        ops.mul_scalar(half.imag, 0.5),
    )


def _tanh(x: Complex) -> Complex:
    t, c, s = ops.tanh(x.real), ops.cos(x.imag), ops.sin(x.imag)
    left = 1.0 - t * t
    below = c * c + t * t * s * s
    return Complex(ops.divide(t, below), ops.divide(left * c * s, below))


@complex_converter("aten.prod.dim_int")
def prod_along(
    node: Node, x: Operand, axis: int, keepdim: bool = False, dtype: str | None = None
) -> Complex:
    z = pair(node, x)
    if not z.real.ndim:
        return z
    at = normal_axis(node, axis, z.real.ndim)
    found = _product_along(node, z, at)
    if keepdim:
        return Complex(*(ops.unsqueeze(each, at) for each in found.parts))
    return found


@complex_converter("aten.prod.default")
def prod(node: Node, x: Operand, dtype: str | None = None) -> Complex:
    z = pair(node, x)
    return _product_along(node, Complex(*(ops.reshape(each, (-1,)) for each in z.parts)), 0)


def _product_along(node: Node, x: Complex, axis: int) -> Complex:
    """Multiply the elements along an axis, by repeatedly multiplying its halves."""
    n = x.real.shape[axis]
    if isinstance(n, Expression):
        raise node.unsupported(f"a product of {n} complex numbers, which dims leave open")
    if n == 0:
        shape = tuple(e for i, e in enumerate(x.real.shape) if i != axis)
        one = pair(node, 1.0)
        return Complex(*(ops.broadcast_to(each, shape) for each in one.parts))
    while n > 1:
        half = n // 2
        keys = [slice(0, half), slice(half, 2 * half), slice(2 * half, n)]
        first, second, rest = (
            Complex(*(each[along(axis, key)] for each in x.parts)) for key in keys
        )
        x = product(first, second)
        if n % 2:
            joined = zip(x.parts, rest.parts, strict=True)
            x = Complex(*(ops.concat([a, b], axis) for a, b in joined))
        n = n - half
    return Complex(*(each[along(axis, 0)] for each in x.parts))


@complex_converter("aten.addmm", "aten.baddbmm", "aten.addmv", "aten.addbmm")
def added_product(
    node: Node, x: Complex, a: Complex, b: Complex, beta: Operand = 1, alpha: Operand = 1
) -> Complex:
    """Return beta x + alpha (a @ b); x is not read if beta is 0."""
    found = matmul(a, b)
    if node.operator.startswith("aten.addbmm"):
        found = Complex(ops.sum(found.real, 0), ops.sum(found.imag, 0))
    if alpha != 1:
        found = product(found, pair(node, alpha))
    if beta == 0:
        return found
    given = x if beta == 1 else product(x, pair(node, beta))
    return Complex(ops.add(given.real, found.real), ops.add(given.imag, found.imag))


def matmul(x: Complex, y: Complex) -> Complex:
    """Return the matrix product of `x` and `y`."""
    (a, b), (c, d) = x.parts, y.parts
    return Complex(
        ops.subtract(ops.matmul(a, c), ops.matmul(b, d)),
        ops.add(ops.matmul(a, d), ops.matmul(b, c)),
    )
