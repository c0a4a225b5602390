"""Converters of resizing. PyTorch passes a scale if the caller gave one; otherwise the scale is the
ratio of the sizes."""

from __future__ import annotations

from typing import Any

from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import is_floating
from ...conversion.values import Value, tensor
from ...nn.functional.resize import resized
from ...sizes.extents import same
from ..operands import in_float32
from ..program import Node
from ..registry import converter


def _resized(node: Node, x: Value, factors: Any, mode: str, *how: bool) -> Tensor:
    """Resize x to the extents of the node's result. `factors` are the scales of the axes, or
    None."""
    found, sizes = tensor(x), node.shape[2:]
    if any(same(n, 0) for n in found.shape):
        raise node.unsupported("an input without elements")
    if not is_floating(found.dtype) and not mode.startswith("nearest"):
        raise node.unsupported(f"{mode} of {found.dtype}, which PyTorch rounds in its own way")
    scales = [None if each is None else float(each) for each in factors or (None,) * len(sizes)]
    return in_float32(lambda each: resized(each, sizes, scales, mode, *how), found)


def _of(name: str, mode: str) -> None:
    """Register converters that select nearest elements, with the scales in one argument or in
    several."""

    @converter(f"aten.{name}.vec")
    def of_all(node: Node, x: Value, size: Any, factors: Any) -> Tensor:
        return _resized(node, x, factors, mode)

    @converter(f"aten.{name}")
    def of_each(node: Node, x: Value, size: Any, *factors: Any) -> Tensor:
        return _resized(node, x, factors, mode)


def _blended(name: str, mode: str, antialias: bool = False) -> None:
    """Register converters that compute weighted sums, with the scales in one argument or in
    several."""

    @converter(f"aten.{name}.vec")
    def of_all(node: Node, x: Value, size: Any, align_corners: bool, factors: Any) -> Tensor:
        return _resized(node, x, factors, mode, align_corners, antialias)

    @converter(f"aten.{name}")
    def of_each(node: Node, x: Value, size: Any, align_corners: bool, *factors: Any) -> Tensor:
        return _resized(node, x, factors, mode, align_corners, antialias)


for _axes in (1, 2, 3):
    _of(f"upsample_nearest{_axes}d", "nearest")
    _of(f"_upsample_nearest_exact{_axes}d", "nearest-exact")
_blended("upsample_linear1d", "linear")
_blended("upsample_bilinear2d", "bilinear")
_blended("upsample_trilinear3d", "trilinear")
_blended("upsample_bicubic2d", "bicubic")
_blended("_upsample_bilinear2d_aa", "bilinear", True)
_blended("_upsample_bicubic2d_aa", "bicubic", True)
