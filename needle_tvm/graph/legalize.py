"""Legalisation of Relax operators into loops, where TVM's own is wrong or slow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from needle import ops
from needle.backend_ndarray.dtypes import HALVES, is_floating
from needle.op import REGISTRY, Op
from needle.ops import _te
from needle.ops.arithmetic import Compare, Maximum, Minimum
from needle.ops.norm import Normalize
from needle.ops.reduce import Argmax, Max, Mean, Min, Summation
from needle.ops.scalar import MulScalar
from needle_tvm._tvm.names import TE_NAMESPACE, Constant, relax, te, tirx, topi
from needle_tvm.tir.extents import exprs_of, extent_of, is_static
from needle_tvm.tir.functions import static_shape


def layer_norm(builder: relax.BlockBuilder, call: Any) -> Any:
    """Legalise in two passes: TVM subtracts the square of the mean from the mean of squares, which
    cancels to nothing if the variance is small beside them."""
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
    """Multiply by the inverse of the sum: TVM divides every element, and a vector of divisions
    takes as long as ten multiplications."""
    axis = int(call.attrs.axis)

    def rule(x: te.Tensor) -> te.Tensor:
        e = topi.exp(topi.subtract(x, topi.max(x, axis, keepdims=True)))
        total = topi.sum(e, axis, keepdims=True)
        return topi.multiply(e, topi.divide(tirx.const(1, x.dtype), total))

    return builder.call_te(rule, *call.args, primfunc_name_hint="softmax")


def clip(builder: relax.BlockBuilder, call: Any) -> Any:
    """Propagate NaN, where TVM returns a limit. Infinite limits are dropped: integers have none."""
    low, high = (float(limit.value) for limit in call.args[1:])
    least, most = (None if low == -math.inf else low), (None if high == math.inf else high)
    return _limited(least, most)(builder, call)


def _limited(low: float | None, high: float | None) -> Callable[[relax.BlockBuilder, Any], Any]:
    def rule(builder: relax.BlockBuilder, call: Any) -> Any:
        dtype, name = str(call.ty.dtype), str(call.op.name).rpartition(".")[2]

        def element(value: Any) -> Any:
            if low is not None:  # this order of operands propagates NaN
                value = tirx.max(tirx.const(low, dtype), value)
            return value if high is None else tirx.min(tirx.const(high, dtype), value)

        return builder.call_te(
            lambda x: te.compute(x.shape, lambda *at: element(x(*at)), name=name),
            call.args[0],
            primfunc_name_hint=name,
        )

    return rule


def max_pool(builder: relax.BlockBuilder, call: Any) -> Any:
    """Propagate NaN, which TVM drops, and return -inf for windows of -inf, where TVM returns the
    least finite number. Handles one, two or three dimensions."""
    attrs, layout = call.attrs, str(call.attrs.layout)
    axes = [layout.index(place) for place in "DHW" if place in layout]
    given = (attrs.pool_size, attrs.strides, attrs.dilation, attrs.padding)
    windows = [tuple(int(each[i]) for each in given) for i in range(len(axes))]

    def rule(x: te.Tensor, extents: Sequence[Any]) -> te.Tensor:
        dtype, shape = str(x.dtype), exprs_of(map(extent_of, extents))
        return _te.cast(TE_NAMESPACE, pooled(_wide(x), shape), dtype)

    def pooled(x: te.Tensor, shape: Sequence[Any]) -> te.Tensor:
        largest, start = _te.largest(TE_NAMESPACE, str(x.dtype))
        index = "int32" if is_static(shape) else "int64"
        taps = [
            te.reduce_axis((tirx.const(0, index), tirx.const(window[0], index)))
            for window in windows
        ]

        def seen(*at: Any) -> Any:
            places, inside = list(at), []
            for axis, tap, (kernel, stride, dilation, before) in zip(
                axes, taps, windows, strict=True
            ):
                places[axis] = at[axis] * stride + tap * dilation - before
                if before:
                    inside.append(tirx.LE(tirx.const(0, str(places[axis].ty)), places[axis]))
                extent = x.shape[axis]
                last = (shape[axis] - 1) * stride + (kernel - 1) * dilation - before
                if not is_static([extent]):
                    inside.append(tirx.LT(places[axis], extent))
                elif last >= int(extent):
                    end = tirx.const(int(extent), str(places[axis].ty))
                    inside.append(tirx.LT(places[axis], end))
            return tirx.if_then_else(tirx.all(*inside), x(*places), start) if inside else x(*places)

        return te.compute(shape, lambda *at: largest(seen(*at), axis=taps), name="max_pool")

    return builder.call_te(rule, *call.args, call.ty.shape, primfunc_name_hint="max_pool")


def _extreme(op: type[Max] | type[Min]) -> Callable[[relax.BlockBuilder, Any], Any]:
    """Propagate NaN, which TVM drops."""

    def rule(builder: relax.BlockBuilder, call: Any) -> Any:
        axes = None if call.attrs.axis is None else tuple(int(axis) for axis in call.attrs.axis)
        return _as_emit_te(op(axes, bool(call.attrs.keepdims)))(builder, call)

    return rule


def _summed(op: type[Summation] | type[Mean]) -> Callable[[relax.BlockBuilder, Any], Any]:
    """Accumulate long sums of float32 in float64."""

    def rule(builder: relax.BlockBuilder, call: Any) -> Any:
        axes = None if call.attrs.axis is None else tuple(int(axis) for axis in call.attrs.axis)
        if not is_floating(str(call.ty.dtype)):
            return call.op.get_attr("FLegalize")(builder, call)
        return _as_emit_te(op(axes, bool(call.attrs.keepdims)))(builder, call)

    return rule


def _of_two(op: Op) -> Callable[[relax.BlockBuilder, Any], Any]:
    """Legalise an operator of two operands, one of which may be a number, by `op`, which propagates
    NaN; TVM drops it."""

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
    """The maximum or minimum of two tensors, or of a tensor and a number. A number is not put in a
    buffer: schedules recognise epilogues of matmuls by this form."""
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
    """Whether a Relax value is a constant scalar, of a dtype that NumPy has."""
    constant = isinstance(value, Constant) and static_shape(value) == ()
    return constant and str(value.ty.dtype) != "bfloat16"


def _number(constant: Any) -> te.Tensor:
    value, dtype = constant.value.numpy().item(), str(constant.ty.dtype)
    return te.compute((), lambda: tirx.const(value, dtype))


def _place(sign: int) -> Callable[[relax.BlockBuilder, Any], Any]:
    """The index of the largest or smallest element, or of the first NaN, which TVM ignores."""

    def rule(builder: relax.BlockBuilder, call: Any) -> Any:
        axis = None if call.attrs.axis is None else int(call.attrs.axis)
        op = Argmax(axis, bool(call.attrs.keepdims))

        def compute(x: te.Tensor) -> te.Tensor:
            if sign < 0 and is_floating(str(x.dtype)):
                x = topi.negative(x)
            elif sign < 0:  # the complement, which even the least integer has
                x = te.compute(x.shape, lambda *at: ~x(*at))
            return _emitted(op, x)

        return builder.call_te(compute, *call.args, primfunc_name_hint=op.name)

    return rule


def _as_emit_te(op: Op) -> Callable[[relax.BlockBuilder, Any], Any]:
    """A rule that legalises an operator by `op.emit_te`."""

    def rule(builder: relax.BlockBuilder, call: Any) -> Any:
        return builder.call_te(lambda x: _emitted(op, x), *call.args, primfunc_name_hint=op.name)

    return rule


def _emitted(op: Op, *tensors: te.Tensor) -> te.Tensor:
    """The result of `op.emit_te`; halves are computed in float32 and rounded once."""
    halves = {str(x.dtype) for x in tensors} & {*HALVES}
    out: te.Tensor = op.emit_te(TE_NAMESPACE, *map(_wide, tensors))
    return _te.cast(TE_NAMESPACE, out, *halves) if halves and is_floating(str(out.dtype)) else out


def _wide(x: te.Tensor) -> te.Tensor:
    """Halves as float32: TVM does not have every operation for bfloat16."""
    return _te.cast(TE_NAMESPACE, x, "float32") if str(x.dtype) in HALVES else x


def _inside(index: te.Tensor, extent: Any) -> te.Tensor:
    """Indices along an axis, with negative ones counted from its end, clamped to the axis: memory
    beyond it is never read. TVM's rules leave that check to the caller."""
    n = tirx.Cast("int64", extent)

    def place(*at: Any) -> Any:
        given = tirx.Cast("int64", index(*at))
        counted = tirx.Select(given < 0, given + n, given)
        return tirx.max(tirx.min(counted, n - 1), tirx.const(0, "int64"))

    return te.compute(index.shape, place, name="place")


def take(builder: relax.BlockBuilder, call: Any) -> Any:
    """Count negative indices from the end."""

    def rule(x: te.Tensor, index: te.Tensor) -> te.Tensor:
        axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % len(x.shape)
        place, end = _inside(index, x.shape[axis]), axis + len(index.shape)
        shape = [*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]]
        return te.compute(
            shape, lambda *i: x(*i[:axis], place(*i[axis:end]), *i[end:]), name="take"
        )

    return builder.call_te(rule, *call.args, primfunc_name_hint="take")


def gather_elements(builder: relax.BlockBuilder, call: Any) -> Any:
    """Count negative indices from the end."""

    def rule(x: te.Tensor, index: te.Tensor) -> te.Tensor:
        axis = int(call.attrs.axis) % len(x.shape)
        place = _inside(index, x.shape[axis])
        return te.compute(
            index.shape, lambda *i: x(*i[:axis], place(*i), *i[axis + 1 :]), name="gather_elements"
        )

    return builder.call_te(rule, *call.args, primfunc_name_hint="gather_elements")


def index_tensor(builder: relax.BlockBuilder, call: Any) -> Any:
    """Count negative indices from the end."""

    def rule(x: te.Tensor, *indices: te.Tensor) -> te.Tensor:
        places = [_inside(index, n) for index, n in zip(indices, x.shape, strict=False)]
        return topi.index_tensor(x, places)

    fields = call.args[1].fields if isinstance(call.args[1], relax.Tuple) else None
    if fields is None:
        fields = [
            builder.emit(relax.TupleGetItem(call.args[1], i))
            for i in range(len(call.args[1].ty.fields))
        ]
    return builder.call_te(rule, call.args[0], *fields, primfunc_name_hint="index_tensor")


def scatter_elements(builder: relax.BlockBuilder, call: Any) -> Any:
    """Count negative indices from the end, and write nothing beyond an axis."""

    def places(index: te.Tensor, x: te.Tensor) -> te.Tensor:
        return _inside(index, x.shape[int(call.attrs.axis) % len(x.shape)])

    x, index, source = call.args
    index = builder.emit(builder.call_te(places, index, x, primfunc_name_hint="places"))
    inside = relax.Call(call.op, [x, index, source], call.attrs, ty_args=call.ty_args)
    return call.op.get_attr("FLegalize")(builder, inside)


def full(builder: relax.BlockBuilder, call: Any) -> Any:
    """Accept any number: TVM accepts neither infinity nor NaN."""
    fill, dtype = call.args[1], str(call.ty.dtype)
    known = isinstance(fill, Constant) and static_shape(fill) == () and is_floating(dtype)
    value = float(fill.value.numpy()) if known else 0.0
    if math.isfinite(value):
        return call.op.get_attr("FLegalize")(builder, call)
    shape = call.ty.shape.values

    def rule() -> te.Tensor:
        return te.compute(shape, lambda *_: tirx.const(value, dtype), name="full")

    return builder.call_te(rule, primfunc_name_hint="full")


def multiply(builder: relax.BlockBuilder, call: Any) -> Any:
    """Multiply by a constant 0 as IEEE 754 does: TVM returns 0 whatever the other operand is."""
    zeros = [arg for arg in call.args if _is_number(arg) and arg.value.numpy().item() == 0]
    if not zeros or not is_floating(str(call.ty.dtype)):
        return call.op.get_attr("FLegalize")(builder, call)
    (x,) = [arg for arg in call.args if not arg.same_as(zeros[0])] or zeros[:1]
    return builder.call_te(
        lambda x: MulScalar(0).emit_te(TE_NAMESPACE, x), x, primfunc_name_hint="multiply"
    )


def divide(builder: relax.BlockBuilder, call: Any) -> Any:
    """Divide by a constant 0 as well, which TVM rejects."""
    if not _is_number(call.args[1]) or call.args[1].value.numpy().item() != 0:
        return call.op.get_attr("FLegalize")(builder, call)
    zero = call.args[1].value.numpy().item()
    return builder.call_te(
        lambda x: _te.divided(TE_NAMESPACE, x, zero), call.args[0], primfunc_name_hint="divide"
    )


# Relax operators that equal ops of needle's are legalised by these.
_ELEMENTWISE: list[Any] = [
    op
    for op in REGISTRY.values()
    if getattr(op, "relax", "") and op.__module__.startswith(f"{ops.__name__}.")
]

RULES: dict[str, Callable[[relax.BlockBuilder, Any], Any]] = {
    "relax.nn.layer_norm": layer_norm,
    "relax.nn.softmax": softmax,
    "relax.nn.relu": _limited(0, None),
    "relax.nn.relu6": _limited(0, 6),
    "relax.clip": clip,
    **{f"relax.nn.max_pool{dims}d": max_pool for dims in (1, 2, 3)},
    "relax.full": full,
    "relax.full_like": full,
    "relax.take": take,
    "relax.gather_elements": gather_elements,
    "relax.index_tensor": index_tensor,
    "relax.scatter_elements": scatter_elements,
    "relax.maximum": _extremum(Maximum(), topi.maximum),
    "relax.minimum": _extremum(Minimum(), topi.minimum),
    "relax.multiply": multiply,
    "relax.divide": divide,
    "relax.not_equal": _of_two(Compare("not_equal")),
    "relax.argmax": _place(1),
    "relax.argmin": _place(-1),
    "relax.sum": _summed(Summation),
    "relax.mean": _summed(Mean),
    "relax.max": _extreme(Max),
    "relax.min": _extreme(Min),
    **{f"relax.{op.relax}": _as_emit_te(op()) for op in _ELEMENTWISE},
}
