"""Converters of scans along an axis: sums, products and extremes up to each element."""

from __future__ import annotations

from collections.abc import Callable

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value
from ..operands import cast, wide, with_axis
from ..program import Node
from ..registry import converter


def _along(
    node: Node, x: Value, dim: int, scan: Callable[[Tensor, int], Tensor], shape: tuple[int, ...]
) -> Tensor:
    """Apply a scan in the result's dtype; half precision is computed in float32."""
    made = ops.cast(scan(with_axis(wide(cast(x, node.dtype))), dim), node.dtype)
    return made if shape else ops.reshape(made, ())


@converter("aten.cumsum")
def cumsum(node: Node, x: Value, dim: int, dtype: str | None = None) -> Tensor:
    return _along(node, x, dim, ops.cumsum, x.shape)


@converter("aten.cumprod")
def cumprod(node: Node, x: Value, dim: int, dtype: str | None = None) -> Tensor:
    return _along(node, x, dim, ops.cumprod, x.shape)


@converter("aten.logcumsumexp")
def logcumsumexp(node: Node, x: Value, dim: int) -> Tensor:
    return _along(node, x, dim, ops.logcumsumexp, x.shape)


@converter("aten.cummax", "aten.cummin")
def extreme(node: Node, x: Value, dim: int) -> tuple[Tensor, Tensor]:
    """Return the largest (or smallest) element up to each position, and its last position."""
    function = ops.cummax if "cummax" in node.operator else ops.cummin
    values, places = function(with_axis(x), dim).tuple()
    if x.shape:
        return values, places
    return ops.reshape(values, ()), ops.reshape(places, ())
