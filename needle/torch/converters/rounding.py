"""Converters of rounding; `functions.py` has floor, ceil and trunc."""

from __future__ import annotations

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import FLOATING
from ...conversion.values import Value, tensor
from ..program import Node
from ..registry import converter


@converter("aten.round", "prims.round")
def round_(node: Node, x: Value) -> Tensor:
    return ops.round(tensor(x))


@converter("aten.round.decimals")
def round_to_decimals(node: Node, x: Value, decimals: int = 0) -> Tensor:
    """Round half to even at a decimal place, by scaling with a power of 10 in x's dtype."""
    given = tensor(x)
    if given.dtype not in FLOATING or decimals == 0:
        return ops.round(given)
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return ops.divide(ops.round(ops.multiply(given, scale)), scale)
    return ops.multiply(ops.round(ops.divide(given, scale)), scale)


@converter("aten.frac")
def frac(node: Node, x: Value) -> Tensor:
    return ops.frac(tensor(x))
