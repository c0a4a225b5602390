"""PyTorch's functions of one or two numbers as expressions, accurate to the last few bits also
near 0 and for large quotients, where TVM's are not."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from needle.backend_ndarray.dtypes import HALVES, is_floating
from needle.ops import _te
from needle_tvm._tvm.names import TE_NAMESPACE, relax, te, tirx, topi
from needle_tvm.frontend.torch.nodes import result_dtype

_op = relax.op


def of_two(
    rule: Callable[[Any, Any, Any], Any], whole: Callable[[Any, Any], Any], rounds: bool = True
) -> Any:
    """A converter for two operands, either of which may be a number.

    `rule(k, x, y)` computes on float elements (in float32 for halves), and `whole` on integer
    tensors. With `rounds`, a number beside halves is first rounded to their dtype, as PyTorch does
    for most operators.
    """

    def convert(node: Any, importer: Any) -> Any:
        dtype, builder = result_dtype(node), importer.block_builder
        wide = "float32" if dtype in HALVES else dtype
        x, y = (
            builder.emit(_op.astype(importer.env[each], wide))
            if each in importer.env
            else builder.emit(_op.astype(number(each, dtype if rounds else wide), wide))
            for each in node.args[:2]
        )
        if not is_floating(dtype):
            return builder.emit(whole(x, y))
        name = str(rule.__name__).strip("_")
        out = builder.emit_te(_broadcast(rule), x, y, primfunc_name_hint=name)
        return builder.emit(_op.astype(out, dtype))

    return convert


def number(value: float, dtype: str) -> relax.Constant:
    """A number as a constant of a dtype. An integer outside an integer dtype's range wraps around,
    as in PyTorch."""
    if isinstance(value, int) and not is_floating(dtype):
        return relax.const(np.array(value, np.int64).astype(dtype), dtype)
    return relax.const(value, dtype)


def _broadcast(rule: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A rule for two elements as a rule for two tensors."""
    return partial(
        _te.broadcast,
        TE_NAMESPACE,
        lambda x, y: rule(TE_NAMESPACE, tirx.convert(x), tirx.convert(y)),
    )


def cast(node: Any, importer: Any) -> Any:
    """Cast to another dtype. A negative float becomes uint8 by way of a signed integer, as in
    PyTorch (`static_cast_with_inter_type` in c10/util/TypeCast.h): the direct cast is undefined in
    LLVM."""
    if node.args[0] not in importer.env:  # a number
        return number(node.args[0], result_dtype(node))
    if str(node.kwargs.get("dtype")) == "torch.uint8":
        x = importer.env[node.args[0]]
        if x.ty.dtype.dtype.startswith(("float", "bfloat")):
            importer.env[node.args[0]] = importer.block_builder.emit(_op.astype(x, "int64"))
            try:
                return importer._to_copy(node)
            finally:
                importer.env[node.args[0]] = x
    return importer._to_copy(node)


def hypot(_: Any, x: Any, y: Any) -> Any:
    """sqrt(x * x + y * y) by the ratio to the larger one, so that no square overflows."""
    zero, one, infinity = (tirx.const(value, str(x.ty)) for value in (0, 1, math.inf))
    x, y = tirx.abs(x), tirx.abs(y)
    large = tirx.Select(x < y, y, x)
    ratio = tirx.Select(x < y, x, y) / tirx.Select(large == zero, one, large)
    length = large * tirx.sqrt(one + ratio * ratio)
    return tirx.Select(tirx.any(x == infinity, y == infinity), infinity, length)


def power(_: Any, x: Any, y: Any) -> Any:
    """x ** y for floats."""
    return tirx.power(x, y)


def whole_power(x: Any, y: Any) -> Any:
    """x ** y for integers."""
    return relax.BlockBuilder.current().call_te(_powers, x, y, primfunc_name_hint="power")


def _powers(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    """x ** y by squaring for each bit of y, the highest first, with wrap-around, as in PyTorch. A
    negative power is 0 unless x is 1 or -1."""
    dtype = str(x.dtype)
    count = int(dtype.partition("int")[2])
    zero, one = (tirx.const(value, dtype) for value in (0, 1))
    bit = te.reduce_axis((0, count), "bit")
    step = te.comm_reducer(lambda power, factor: power * power * factor, lambda _: one, "power")

    def element(x: Any, y: Any) -> Any:
        taken = (y >> tirx.Cast(dtype, count - 1 - bit.var)) & one
        return step(tirx.Select(taken == one, x, one), axis=bit)

    powers = _te.broadcast(TE_NAMESPACE, element, x, y)
    if dtype.startswith("uint"):
        return powers
    is_unit = topi.logical_or(topi.equal(x, one), topi.equal(x, -one))
    is_positive = topi.greater_equal(y, zero)
    return topi.where(topi.logical_or(is_unit, is_positive), powers, topi.full_like(powers, zero))


def shifted(left: bool) -> Callable[[Any, Any], Any]:
    """x << y or x >> y for integers. Beyond the bits, 0 remains, or the sign to the right."""

    def element(x: Any, y: Any) -> Any:
        x, y = tirx.convert(x), tirx.convert(y)
        dtype = str(x.ty)
        bits = int(dtype.partition("int")[2])
        zero, most = (tirx.const(value, dtype) for value in (0, bits - 1))
        beyond = y > most if dtype.startswith("uint") else tirx.any(y < zero, y > most)
        if left:
            return tirx.Select(beyond, zero, x << tirx.Select(beyond, zero, y))
        return x >> tirx.Select(beyond, most, y)

    def whole(x: Any, y: Any) -> Any:
        return relax.BlockBuilder.current().call_te(
            partial(_te.broadcast, TE_NAMESPACE, element), x, y, primfunc_name_hint="shifted"
        )

    return whole


def elementwise(rule: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A converter that applies `rule(k, element)` to each float element."""

    def convert(node: Any, importer: Any) -> Any:
        name = str(rule.__name__).strip("_")
        return importer.block_builder.emit_te(
            partial(_te.by_element, rule, TE_NAMESPACE),
            importer.env[node.args[0]],
            primfunc_name_hint=name,
        )

    return convert
