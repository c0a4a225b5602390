"""Legalises Relax operators into loops, where TVM's own rules are wrong or slow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from needle import ops
from needle.backend_ndarray.dtypes import HALVES, is_floating
from needle.op import REGISTRY, Op
from needle.ops import _te
from needle.ops.arithmetic import Maximum, Minimum
from needle.ops.norm import Normalize
from needle.ops.reduce import Mean, Summation
from needle.ops.scalar import MulScalar
from needle_tvm._tvm.names import TE_NAMESPACE, Constant, relax, te, tirx, topi
from needle_tvm.tir.functions import static_shape


def layer_norm(builder: relax.BlockBuilder, call: Any) -> Any:
    """Legalise in two passes. TVM subtracts the square of the mean from the mean of squares, and
    the difference cancels to nothing if the variance is small compared with both squares."""
    axes = [int(axis) for axis in call.attrs.axes]
    normalize = Normalize(tuple(axes), float(call.attrs.epsilon))
    centered, scaled = bool(call.attrs.center), bool(call.attrs.scale)

    def rule(x: te.Tensor, *affine: te.Tensor) -> te.Tensor:
        over = {axis % len(x.shape) for axis in axes}
        shape = [n if axis in over else 1 for axis, n in enumerate(x.shape)]
        y, operands = normalize.emit_te(TE_NAMESPACE, x), list(affine)
        if scaled:
            y = topi.multiply(y, topi.reshape(operands.pop(0), shape))
        return topi.add(y, topi.reshape(operands.pop(0), shape)) if centered else y

    x, weight, bias = call.args
    affine = [*([weight] if scaled else []), *([bias] if centered else [])]
    return builder.call_te(rule, x, *affine, primfunc_name_hint="layer_norm")


def softmax(builder: relax.BlockBuilder, call: Any) -> Any:
    """Multiply by the inverse of the sum: TVM divides every element, and a vector division takes as
    long as ten multiplications."""
    axis = int(call.attrs.axis)

    def rule(x: te.Tensor) -> te.Tensor:
        e = topi.exp(topi.subtract(x, topi.max(x, axis, keepdims=True)))
        total = topi.sum(e, axis, keepdims=True)
        return topi.multiply(e, topi.divide(tirx.const(1, x.dtype), total))

    return builder.call_te(rule, *call.args, primfunc_name_hint="softmax")


def _long(kind: type[Mean] | type[Summation]) -> Callable[[relax.BlockBuilder, Any], Any]:
    """Return a rule that legalises a sum or a mean with an op of this kind, which accumulates long
    sums of float32 in float64."""

    def rule(builder: relax.BlockBuilder, call: Any) -> Any:
        if not is_floating(str(call.ty.dtype)):
            return call.op.get_attr("FLegalize")(builder, call)
        axes = None if call.attrs.axis is None else tuple(int(axis) for axis in call.attrs.axis)
        return _as_emit_te(kind(axes, bool(call.attrs.keepdims)))(builder, call)

    return rule


def _of_two(op: Op) -> Callable[[relax.BlockBuilder, Any], Any]:
    """Return a rule that legalises an operator of two operands with `op`, which propagates NaN;
    TVM's rule drops NaN. One operand may be a number."""

    def rule(builder: relax.BlockBuilder, call: Any) -> Any:
        numbers = {i: _number(arg) for i, arg in enumerate(call.args) if _is_number(arg)}

        def compute(*tensors: te.Tensor) -> te.Tensor:
            given = iter(tensors)
            both = (numbers[i] if i in numbers else next(given) for i in range(2))
            return _emitted(op, *both)

        tensors = [arg for i, arg in enumerate(call.args) if i not in numbers]
        return builder.call_te(compute, *tensors, primfunc_name_hint=op.name)

    return rule


def _extremum(
    op: Op, choose: Callable[[Any, Any], Any]
) -> Callable[[relax.BlockBuilder, Any], Any]:
    """Return a rule for the maximum or minimum of two tensors, or of a tensor and a number. The
    number is not put in a buffer: schedules recognise epilogues of matmuls by this form."""
    of_two = _of_two(op)

    def rule(builder: relax.BlockBuilder, call: Any) -> Any:
        numbers = [arg for arg in call.args if _is_number(arg)]
        if len(numbers) != 1 or not is_floating(str(call.ty.dtype)):
            return of_two(builder, call)
        limit = tirx.const(numbers[0].value.numpy().item(), str(call.ty.dtype))
        (tensor,) = (arg for arg in call.args if not arg.same_as(numbers[0]))
        if math.isnan(limit.value):
            return of_two(builder, call)
        return builder.call_te(  # this order of operands propagates NaN
            lambda x: choose(limit, x), tensor, primfunc_name_hint=op.name
        )

    return rule


def _is_number(value: Any) -> bool:
    """Return whether a Relax value is a constant scalar of a dtype that NumPy has."""
    constant = isinstance(value, Constant) and static_shape(value) == ()
    return constant and str(value.ty.dtype) != "bfloat16"


def _number(constant: Any) -> te.Tensor:
    value, dtype = constant.value.numpy().item(), str(constant.ty.dtype)
    return te.compute((), lambda: tirx.const(value, dtype))


def _as_emit_te(op: Op) -> Callable[[relax.BlockBuilder, Any], Any]:
    """Return a rule that legalises an operator with `op.emit_te`."""

    def rule(builder: relax.BlockBuilder, call: Any) -> Any:
        return builder.call_te(lambda x: _emitted(op, x), *call.args, primfunc_name_hint=op.name)

    return rule


def _emitted(op: Op, *tensors: te.Tensor) -> te.Tensor:
    """Return the result of `op.emit_te`. Float16 and bfloat16 are computed in float32 and rounded
    once."""
    halves = {str(x.dtype) for x in tensors} & {*HALVES}
    out: te.Tensor = op.emit_te(TE_NAMESPACE, *map(_wide, tensors))
    return _te.cast(TE_NAMESPACE, out, *halves) if halves and is_floating(str(out.dtype)) else out


def _wide(x: te.Tensor) -> te.Tensor:
    """Return a half-precision tensor as float32; TVM lacks some operations for bfloat16."""
    return _te.cast(TE_NAMESPACE, x, "float32") if str(x.dtype) in HALVES else x


def multiply(builder: relax.BlockBuilder, call: Any) -> Any:
    """Multiply by a constant 0 as IEEE 754 does: TVM returns 0 for any other operand, even NaN."""
    zeros = [arg for arg in call.args if _is_number(arg) and arg.value.numpy().item() == 0]
    if not zeros or not is_floating(str(call.ty.dtype)):
        return call.op.get_attr("FLegalize")(builder, call)
    (x,) = [arg for arg in call.args if not arg.same_as(zeros[0])] or zeros[:1]
    return builder.call_te(
        lambda x: MulScalar(0).emit_te(TE_NAMESPACE, x), x, primfunc_name_hint="multiply"
    )


def divide(builder: relax.BlockBuilder, call: Any) -> Any:
    """Legalise a division, including one by a constant 0, which TVM rejects."""
    if not _is_number(call.args[1]) or call.args[1].value.numpy().item() != 0:
        return call.op.get_attr("FLegalize")(builder, call)
    zero = call.args[1].value.numpy().item()
    return builder.call_te(
        lambda x: _te.divided(TE_NAMESPACE, x, zero), call.args[0], primfunc_name_hint="divide"
    )


def reshape(builder: relax.BlockBuilder, call: Any) -> Any:
    """Reshape a constant at once: TVM's FoldConstant would compile a function for it."""
    source, shape = call.args[0], static_shape(call)
    if isinstance(source, relax.Var):
        source = builder.lookup_binding(source)
    if not isinstance(source, Constant) or shape is None or str(call.ty.dtype) == "bfloat16":
        return call.op.get_attr("FLegalize")(builder, call)
    return relax.const(source.value.numpy().reshape(shape), str(call.ty.dtype))


# Relax operators that are equivalent to one of needle's ops are legalised with that op.
_ELEMENTWISE: list[Any] = [
    op
    for op in REGISTRY.values()
    if getattr(op, "relax", "") and op.__module__.startswith(f"{ops.__name__}.")
]

RULES: dict[str, Callable[[relax.BlockBuilder, Any], Any]] = {
    "relax.nn.layer_norm": layer_norm,
    "relax.nn.softmax": softmax,
    "relax.maximum": _extremum(Maximum(), topi.maximum),
    "relax.minimum": _extremum(Minimum(), topi.minimum),
    "relax.multiply": multiply,
    "relax.divide": divide,
    "relax.mean": _long(Mean),
    "relax.sum": _long(Summation),
    "relax.reshape": reshape,
    **{f"relax.{op.relax}": _as_emit_te(op()) for op in _ELEMENTWISE},
}
