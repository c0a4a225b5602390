"""Converters of operators that sample images at the points of a grid."""

from __future__ import annotations

from typing import Any

from ...autograd.tensor import Tensor
from ...conversion.values import Value, tensor
from ...init import zeros
from ...nn import functional as F
from ...sizes.extents import same
from ..operands import in_float32
from ..program import Node
from ..registry import converter

_MODES = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")


@converter(
    "aten.grid_sampler",
    "aten.grid_sampler_2d",
    "aten.grid_sampler_3d",
    "aten._grid_sampler_2d_cpu_fallback",
)
def grid_sampler(
    node: Node, x: Value, grid: Value, mode: int, padding: int, align_corners: bool
) -> Tensor:
    found, points = tensor(x), tensor(grid)
    if any(same(n, 0) for n in node.shape):
        return zeros(*node.shape, dtype=node.dtype, requires_grad=False)

    def read(image: Tensor, at: Tensor) -> Tensor:
        return F.grid_sample(image, at, _MODES[mode], _PADDINGS[padding], align_corners)

    return in_float32(read, found, points)


@converter("aten.affine_grid_generator")
def affine_grid(node: Node, theta: Value, size: Any, align_corners: bool) -> Tensor:
    return in_float32(lambda each: F.affine_grid(each, size, align_corners), tensor(theta))
