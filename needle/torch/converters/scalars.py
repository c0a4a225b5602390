"""Converters of Python numbers that a model reads from tensors (`x.item()`). Such numbers are
represented by 0-d tensors."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, tensor
from ..operands import cast, promoted_dtype
from ..program import Node
from ..registry import converter


@converter("aten._local_scalar_dense", "aten.item")
def item(node: Node, x: Value) -> Tensor:
    return cast(ops.reshape(tensor(x), ()), node.dtype)


@converter("operator.sym_float", "operator.sym_int")
def converted(node: Node, x: Any) -> Tensor:
    return cast(x, node.dtype)


@converter("operator.neg")
def negate(node: Node, a: Any) -> Tensor:
    return ops.negate(cast(a, node.dtype))


_OPS = {
    "add": ops.add,
    "sub": ops.subtract,
    "mul": ops.multiply,
    "truediv": ops.divide,
    "floordiv": ops.floor_divide,
    "mod": ops.remainder,
    "pow": ops.power,
    "sym_max": ops.maximum,
    "sym_min": ops.minimum,
}


@converter(*(f"operator.{name}" for name in _OPS))
def arithmetic(node: Node, a: Any, b: Any) -> Tensor:
    compute = _OPS[node.operator.split(".")[1]]
    return compute(cast(a, node.dtype), cast(b, node.dtype))


_COMPARISONS = {
    **{"lt": ops.less, "le": ops.less_equal, "gt": ops.greater},
    **{"ge": ops.greater_equal, "eq": ops.equal, "ne": ops.not_equal},
}


@converter(*(f"operator.{name}" for name in _COMPARISONS))
def compared(node: Node, a: Any, b: Any) -> Tensor:
    dtype = promoted_dtype(a, b)
    return _COMPARISONS[node.operator.split(".")[1]](cast(a, dtype), cast(b, dtype))
