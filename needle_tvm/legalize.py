"""What Relax's operators mean in loops where TVM's own legalisation will not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from needle.op import Op
from needle.ops import _te
from needle.ops.activation import Erf, Gelu, Silu
from needle.ops.elementwise import Exp, Log, Rsqrt, Sigmoid, Sqrt, Tanh
from needle.ops.norm import Normalize
from needle.ops.reduce import Max, Min
from needle_tvm._tvm import TE_NAMESPACE, relax, te, tirx, topi


def layer_norm(builder: relax.BlockBuilder, call: Any) -> Any:
    """In two passes: TVM's takes the square of the mean from the mean of the squares, which leaves
    nothing of a variance that is small beside them."""
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
    """Multiplied by the sum's inverse: TVM's divides every element, and a vector of divisions takes
    as long as ten multiplications."""
    axis = int(call.attrs.axis)

    def rule(x: te.Tensor) -> te.Tensor:
        e = topi.exp(topi.subtract(x, topi.max(x, axis, keepdims=True)))
        total = topi.sum(e, axis, keepdims=True)
        return topi.multiply(e, topi.divide(tirx.const(1, x.dtype), total))

    return builder.call_te(rule, *call.args, primfunc_name_hint="softmax")


def clip(builder: relax.BlockBuilder, call: Any) -> Any:
    """NaN where there is one: TVM's gives a limit."""
    low, high = (float(limit.value) for limit in call.args[1:])
    return _limited(low, high)(builder, call)


def _limited(low: float, high: float | None) -> Callable[[relax.BlockBuilder, Any], Any]:
    def rule(builder: relax.BlockBuilder, call: Any) -> Any:
        dtype, name = str(call.ty.dtype), str(call.op.name).rpartition(".")[2]

        def element(value: Any) -> Any:
            value = tirx.max(tirx.const(low, dtype), value)  # in this order NaN survives
            return value if high is None else tirx.min(tirx.const(high, dtype), value)

        return builder.call_te(
            lambda x: te.compute(x.shape, lambda *at: element(x(*at)), name=name),
            call.args[0],
            primfunc_name_hint=name,
        )

    return rule


def max_pool2d(builder: relax.BlockBuilder, call: Any) -> Any:
    """NaN where there is one, and -inf where all is: TVM's forgets the one, and starts at the least
    finite number."""
    attrs, layout = call.attrs, str(call.attrs.layout)
    shape = [int(extent) for extent in call.ty.shape.values]
    axes = [layout.index("H"), layout.index("W")]
    given = (attrs.pool_size, attrs.strides, attrs.dilation, attrs.padding)
    windows = [tuple(int(each[i]) for each in given) for i in range(2)]

    def rule(x: te.Tensor) -> te.Tensor:
        largest, start = _te.largest(TE_NAMESPACE, str(x.dtype))
        taps = [te.reduce_axis((0, window[0])) for window in windows]

        def seen(*at: Any) -> Any:
            places, inside = list(at), []
            for axis, tap, (kernel, stride, dilation, before) in zip(
                axes, taps, windows, strict=True
            ):
                places[axis] = at[axis] * stride + tap * dilation - before
                if before:
                    inside.append(tirx.LE(0, places[axis]))
                extent = int(x.shape[axis])
                if (shape[axis] - 1) * stride + (kernel - 1) * dilation - before >= extent:
                    inside.append(tirx.LT(places[axis], extent))
            return tirx.if_then_else(tirx.all(*inside), x(*places), start) if inside else x(*places)

        return te.compute(shape, lambda *at: largest(seen(*at), axis=taps), name="max_pool")

    return builder.call_te(rule, *call.args, primfunc_name_hint="max_pool")


def _extreme(op: type[Max] | type[Min]) -> Callable[[relax.BlockBuilder, Any], Any]:
    """NaN where there is one: TVM's forgets it."""

    def rule(builder: relax.BlockBuilder, call: Any) -> Any:
        axes = call.attrs.axis and tuple(int(axis) for axis in call.attrs.axis)
        return _as_emit_te(op(axes, bool(call.attrs.keepdims)))(builder, call)

    return rule


def _as_emit_te(op: Op) -> Callable[[relax.BlockBuilder, Any], Any]:
    """A rule by which an operator means what `op` says in tensor expressions."""

    def rule(builder: relax.BlockBuilder, call: Any) -> Any:
        return builder.call_te(
            lambda x: op.emit_te(TE_NAMESPACE, x), *call.args, primfunc_name_hint=op.name
        )

    return rule


_ELEMENTWISE = (Exp(), Log(), Tanh(), Sigmoid(), Sqrt(), Rsqrt(), Erf(), Gelu(), Silu())

RULES: dict[str, Callable[[relax.BlockBuilder, Any], Any]] = {
    "relax.nn.layer_norm": layer_norm,
    "relax.nn.softmax": softmax,
    "relax.nn.relu": _limited(0, None),
    "relax.nn.relu6": _limited(0, 6),
    "relax.clip": clip,
    "relax.nn.max_pool2d": max_pool2d,
    "relax.max": _extreme(Max),
    "relax.min": _extreme(Min),
    **{f"relax.{op.relax}": _as_emit_te(op) for op in _ELEMENTWISE},
}
