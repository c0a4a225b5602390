"""Converters of convolutions. Weights have PyTorch's layout, and are permuted in the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ... import ops
from ...conversion.values import Value, tensor
from ...nn import functional as F
from ...tensor import Tensor
from ..operands import in_float32
from ..program import Node
from ..registry import converter
from ..windows import batched, each_axis

_CONV: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def kernels_last(w: Tensor) -> Tensor:
    """A weight (out, in, ...) as needle has it: (..., in, out)."""
    return ops.permute(w, (*range(2, w.ndim), 1, 0))


def convolved(
    node: Node,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Any,
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The convolution of `x` (N, C, ...) with `w` (out, C / groups, ...)."""
    count = w.ndim - 2
    if not 1 <= count <= 3:
        raise node.unsupported(f"a convolution over {count} axes; needle has 1, 2 and 3")
    if not isinstance(padding, str):
        padding = each_axis(padding, count)
    window = each_axis(stride, count), padding, each_axis(dilation, count), groups

    def of_batch(batch: Tensor) -> Tensor:
        return in_float32(lambda *each: _CONV[count](*each, *window), batch, kernels_last(w), bias)

    return batched(x, count, of_batch)


@converter("aten.conv1d", "aten.conv2d", "aten.conv3d")
def conv(
    node: Node,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    shift = None if bias is None else tensor(bias)
    return convolved(node, tensor(x), tensor(weight), shift, stride, padding, dilation, groups)
