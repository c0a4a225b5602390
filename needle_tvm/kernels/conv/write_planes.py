"""Lets convolutions write large results with channels first, if all readers want that layout.

Before: `permute_dims(y)` from channels last to channels first, where
- `y` is a convolution of `pack_conv` that is neither depthwise nor grouped, perhaps with
  elementwise operators after it and then a reshape of its images (B * D, ...) to (B, D, ...),
- each of these values is read only by the next, all shapes are static, and no extent is 0,
- the result has at least `_LARGE` bytes and enough rows for all cores, and each tile lies in one
  image.

After: a separate function permutes, and `fuse_planes` lets TVM fuse it into the convolution as if
it were an elementwise operator. The convolution's schedule (`conv/cpu.py`) permutes each row while
it is in the core's cache. Smaller results are still in the cache when they are permuted.
"""

from __future__ import annotations

import math
from typing import Any

from needle_tvm._tvm.names import OP_PATTERN, IRModule, PrimFunc, Target, expr_functor, te
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.passes.sink_views import BINARY, UNARY
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.graph.views import order_of
from needle_tvm.kernels.blocks import item_bytes
from needle_tvm.kernels.conv.cpu import CONV, GROUP, PLANES, TAPS
from needle_tvm.target.info import target_info
from needle_tvm.tir.functions import NODES, nodes_in, static_shape

_LARGE = 1 << 18
_ROWS = 8  # rows for each core, so that all cores finish at about the same time


def write_planes(module: IRModule, target: Target) -> IRModule:
    """Rewrite every permutation that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Rewriter)


@expr_functor.mutator
class _Rewriter(Rewriter):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        shape = static_shape(call) if is_op(call, "relax.permute_dims") else None
        if shape is None or not self._is_large(shape, str(call.ty.dtype)):
            return call
        last = len(shape) - 1
        if order_of(call) != [0, last, *range(1, last)]:
            return call
        y = call.args[0]
        value = self.only_use(y)
        if is_op(value, "relax.reshape"):
            y, value = value.args[0], self.only_use(value.args[0])
        images = (math.prod(shape[:1] + shape[2:-2]), *shape[-2:], shape[1])
        if value is None or static_shape(y) != images or not self._is_of_conv(value, images):
            return call
        return self.builder_.call_te(lambda y: _planes(y, shape), y, primfunc_name_hint="planes")

    def _is_large(self, shape: tuple[int, ...], dtype: str) -> bool:
        if not 4 <= len(shape) <= 5:
            return False
        rows = math.prod(shape[:1] + shape[2:-1])
        enough = rows >= _ROWS * target_info(self.target).cores
        return enough and math.prod(shape) * item_bytes(dtype) >= _LARGE

    def _is_of_conv(self, value: Any, shape: tuple[int, ...]) -> bool:
        """Return whether `value`, of this shape, is a convolution, perhaps with elementwise
        operators after it."""
        while value is not None and getattr(value, "op", None) in (*UNARY, *BINARY):
            operands = value.args[: 1 if value.op in UNARY else 2]
            before = [each for each in operands if static_shape(each) == shape]
            if len(before) != 1:
                return False
            value = self.only_use(before[0])
        if not is_op(value, "relax.call_tir"):
            return False
        function = self.builder_.get()[value.args[0]]
        notes = [block.annotations for block in nodes_in(function, NODES.sblock)]
        tiles = [note for note in notes if CONV in note]
        return len(tiles) == 1 and GROUP not in tiles[0] and int(tiles[0][CONV][0]) == 1


def fuse_planes(module: IRModule, target: Target) -> IRModule:
    """Mark functions that come from `write_planes` and `weight_gradients` as elementwise operators,
    in place of the pattern that TVM finds for them."""
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc):
            notes = (block.annotations for block in nodes_in(function.body, NODES.sblock))
            if any(PLANES in note or TAPS in note for note in notes):
                pattern = function.with_attr("op_pattern", OP_PATTERN.elementwise)
                module.update_func(name, pattern)
    return module


def _planes(y: te.Tensor, shape: tuple[int, ...]) -> te.Tensor:
    """Return (images, rows, columns, channels) as `shape`, whose images may have two axes."""

    def element(batch: Any, channel: Any, *place: Any) -> Any:
        *depth, row, column = place
        image = batch * shape[2] + depth[0] if depth else batch
        return y(image, row, column, channel)

    return te.compute(shape, element, name="planes", attrs={PLANES: 1})
