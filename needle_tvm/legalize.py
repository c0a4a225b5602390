"""What Relax's operators mean in loops where TVM's own legalisation will not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from needle.op import Op
from needle.ops.activation import Erf, Gelu, Silu
from needle.ops.elementwise import Exp, Log, Rsqrt, Sigmoid, Sqrt, Tanh
from needle.ops.norm import Normalize
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
    **{f"relax.{op.relax}": _as_emit_te(op) for op in _ELEMENTWISE},
}
