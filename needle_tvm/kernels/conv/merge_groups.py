"""Merges groups of a convolution that are too small to fill a vector.

Before: `conv2d(x, w)` in the layouts NHWC and HWIO with groups, where
- `w` depends on parameters of the function alone; all shapes are static, no extent is 0,
- the convolution is not depthwise: a group has more than one channel of input or of output,
- a group's output channels fill so little of a vector that multiplying by extra zeros is faster.

After: a convolution with fewer groups, or with one. Its weights are zero between channels that were
in different groups before. An infinity or NaN in one input channel makes the results of all groups
that were merged with its group NaN.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import IRModule, Target, expr_functor, te, tirx
from needle_tvm.graph.convolutions import conv_shapes, with_weights
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.kernels.blocks import item_bytes
from needle_tvm.kernels.conv.cpu_tiles import conv_cycles

_WORTH_IT = 0.9  # a fraction of the unmerged time: weights become larger, and NaN spreads


def merge_groups(module: IRModule, target: Target) -> IRModule:
    """Merge the groups of every convolution that meets the preconditions, in every Relax
    function."""
    return rewrite(module, target, _Merger, with_parameters=True)


@expr_functor.mutator
class _Merger(Rewriter):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        shapes = conv_shapes(call)
        if shapes is None or not self.is_parameter_work(call.args[1]):
            return call
        groups, (rows, columns, inputs, n) = int(call.attrs.groups), shapes[1]
        outputs = n // groups
        if groups == 1 or inputs == outputs == 1:
            return call
        dtype, terms = str(call.args[1].ty.dtype), rows * columns * inputs
        step = groups * inputs * item_bytes(dtype)
        count = merged_at_best(groups, shapes[2], terms, dtype, self.target, step)
        if count == 1:
            return call
        w = self.builder_.emit_te(
            lambda w: merged(w, count, outputs),
            call.args[1],
            primfunc_name_hint="merge_groups",
        )
        return with_weights(call, w, groups=groups // count)


def merged_at_best(
    groups: int, output: tuple[int, ...], terms: int, dtype: str, target: Target, step: int = 1
) -> int:
    """Return the number of groups to merge for the least estimated time; 1 to merge none.

    Before merging, each element of `output` (B, rows, columns, N) sums `terms` products, of pixels
    that are `step` bytes apart.
    """
    batch, rows, columns, n = output

    def cycles(count: int) -> float:
        group = None if count == groups else n // groups * count
        return conv_cycles((batch, rows, columns, n), terms * count, dtype, target, group, step)

    best = min((m for m in range(1, groups + 1) if groups % m == 0), key=cycles)
    return best if cycles(best) < _WORTH_IT * cycles(1) else 1


def merged(w: te.Tensor, count: int, outputs: int) -> te.Tensor:
    """Return weights in which every `count` groups of `outputs` output channels are merged:
    (kh, kw, C, N) -> (kh, kw, count * C, N)."""
    *window, inputs, n = (int(extent) for extent in w.shape)

    def element(y: Any, z: Any, c: Any, channel: Any) -> Any:
        own = tirx.floordiv(channel, outputs) % count
        value = w(y, z, c % inputs, channel)
        zero = tirx.const(0, w.dtype)
        return tirx.if_then_else(tirx.EQ(tirx.floordiv(c, inputs), own), value, zero)

    return te.compute((*window, count * inputs, n), element, name="merge_groups")
