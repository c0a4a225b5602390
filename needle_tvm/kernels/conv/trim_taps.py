"""Trims rows and columns of a convolution's weights that only ever meet padding.

Before: `conv2d(x, w)` in the layouts NHWC and HWIO, where
- all shapes are static except the batch, rows and columns; an axis with symbolic rows or columns is
  left alone; no extent is 0,
- the first or last rows or columns of `w` meet only padding, at every position of the output,
- `w` depends on parameters of the function alone, or more products are left out than weights are
  kept, since the kept weights are then copied in every call.

After: `conv2d(x, w[first : last + 1])` with accordingly less padding. The products with padding are
not computed, so an infinite weight there no longer gives NaN. A 3x3 window on an image of one pixel
becomes a 1x1 window.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax
from needle_tvm.graph.convolutions import conv_extents, with_weights
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.tir.extents import Size


def trim_taps(module: IRModule, target: Target) -> IRModule:
    """Trim every convolution that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Trimmer, with_parameters=True)


class Axis(NamedTuple):
    """A convolution along one axis: the taps [first, end) of its weights, and the zeros around the
    input."""

    first: int
    end: int
    before: int
    after: int


def trimmed(
    size: Size, taps: int, outputs: Size, stride: int, dilation: int, padding: tuple[int, int]
) -> Axis:
    """Return the taps that meet an input of `size` somewhere, and the padding that keeps `outputs`.

    Return all taps if trimming would cut off some of the input, or if its size is symbolic.
    """
    whole = Axis(0, taps, *padding)
    if not (isinstance(size, int) and isinstance(outputs, int)):
        return whole

    def meets(tap: int) -> bool:
        places = range(tap * dilation - padding[0], tap * dilation - padding[0] + outputs * stride)
        return any(0 <= place < size for place in places[::stride])

    useful = [tap for tap in range(taps) if meets(tap)]
    if not useful or len(useful) == taps:
        return whole
    first, end = useful[0], useful[-1] + 1
    reach = dilation * (end - first - 1) + 1
    before = padding[0] - first * dilation
    after = max(0, (outputs - 1) * stride + reach - size - before)
    if before < 0 or (size + before + after - reach) // stride + 1 != outputs:
        return whole  # trimming would cut off some of the input
    return Axis(first, end, before, after)


@expr_functor.mutator
class _Trimmer(Rewriter):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        shapes = conv_extents(call)
        if shapes is None:
            return call
        w, attrs, (before, weight, after) = call.args[1], call.attrs, shapes
        padding = [int(p) for p in attrs.padding]
        axes = [
            trimmed(
                before[1 + axis],
                weight[axis],
                after[1 + axis],
                int(attrs.strides[axis]),
                int(attrs.dilation[axis]),
                (padding[axis], padding[axis + 2]),
            )
            for axis in (0, 1)
        ]
        begin, end = [axis.first for axis in axes], [axis.end for axis in axes]
        taps, kept = math.prod(weight[:2]), math.prod(map(operator.sub, end, begin))
        left_out = (taps - kept) * math.prod(map(self.least, after[:3]))
        if kept == taps or (left_out <= kept and not self.is_parameter_work(w)):
            return call
        w = self.builder_.emit(relax.op.strided_slice(w, [0, 1], begin, end, assume_inbound=True))
        (top, bottom), (left, right) = ((axis.before, axis.after) for axis in axes)
        return with_weights(call, w, padding=[top, left, bottom, right])
