"""Splits a dilated convolution into one per tap if its window meets more padding than image.

Before: `conv2d(x, w)` in the layouts NHWC and HWIO with dilation, where
- `w` depends on parameters of the function alone; there are no groups, all shapes are static, no
  extent is 0,
- the 1x1 convolutions of the pixels that each tap (a row and column of `w`) meets, and their sum,
  are estimated to take less time.

After: the sum of these convolutions, with zeros around their results where a tap meets padding. The
products with padding are not computed, so an infinite weight there no longer gives NaN. A 3x3
window with dilation 12 computes only 18 % of the products of 14 x 14 pixels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax
from needle_tvm.graph.convolutions import conv_shapes, with_weights
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.kernels.blocks import item_bytes
from needle_tvm.kernels.conv.cpu_tiles import conv_cycles
from needle_tvm.target.info import target_info

_WORTH_IT = 0.7  # a fraction of the time of the unsplit convolution
_SUM = 4  # cycles to pad and add a vector of results


def split_taps(module: IRModule, target: Target) -> IRModule:
    """Split every convolution that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Splitter, with_parameters=True)


class Part(NamedTuple):
    """The part of an axis that a tap meets: the first input `begin` and the outputs [first,
    end)."""

    tap: int
    begin: int
    first: int
    end: int


def parts(
    size: int, taps: int, outputs: int, stride: int, dilation: int, before: int
) -> list[Part]:
    """Return, for each tap of a window, the part of `size` inputs that the tap meets; leave out
    taps that meet only padding."""
    found = []
    for tap in range(taps):
        offset = tap * dilation - before  # the input for output 0
        first = max(0, -(offset // stride))
        end = min(outputs, (size - 1 - offset) // stride + 1)
        if first < end:
            found.append(Part(tap, first * stride + offset, first, end))
    return found


@expr_functor.mutator
class _Splitter(Rewriter):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        shapes, attrs = conv_shapes(call), call.attrs
        if shapes is None or not self.is_parameter_work(call.args[1]):
            return call
        if int(attrs.groups) != 1 or all(int(step) == 1 for step in attrs.dilation):
            return call
        taps = list(self._taps(call, shapes))
        if not taps or not self._pays(shapes, taps, str(call.args[1].ty.dtype)):
            return call
        total = None
        for rows, columns in taps:
            result = self._around(self._product(call, rows, columns), rows, columns, shapes[2])
            total = result if total is None else relax.op.add(self.builder_.emit(total), result)
        return total

    def _taps(self, call: Any, shapes: Any) -> Iterator[tuple[Part, Part]]:
        """Yield the rows and columns of each tap that meets inputs, the most inputs first."""
        images, weights, output = shapes
        rows, columns = (
            parts(
                images[1 + axis],
                weights[axis],
                output[1 + axis],
                int(call.attrs.strides[axis]),
                int(call.attrs.dilation[axis]),
                int(call.attrs.padding[axis]),
            )
            for axis in (0, 1)
        )
        yield from sorted(itertools.product(rows, columns), key=lambda pair: -_pixels(*pair))

    def _pays(self, shapes: Any, taps: list[tuple[Part, Part]], dtype: str) -> bool:
        (_, _, _, inputs), (height, width, _, n), output = shapes
        step = inputs * item_bytes(dtype)

        def cycles(rows: int, columns: int, terms: int) -> float:
            return conv_cycles((output[0], rows, columns, n), terms, dtype, self.target, None, step)

        whole = cycles(output[1], output[2], height * width * inputs)
        lanes = target_info(self.target).lanes(dtype)
        split = math.prod(output) / lanes * _SUM * len(taps)
        for rows, columns in taps:
            split += cycles(rows.end - rows.first, columns.end - columns.first, inputs)
        return split < _WORTH_IT * whole

    def _product(self, call: Any, rows: Part, columns: Part) -> Any:
        """Return the convolution of one tap with the pixels that it meets."""
        x, w = call.args
        emit, slice_ = self.builder_.emit, relax.op.strided_slice
        begins, ends, steps = [], [], [int(each) for each in call.attrs.strides]
        for part, step in zip((rows, columns), steps, strict=True):
            begins.append(part.begin)
            ends.append(part.begin + (part.end - part.first - 1) * step + 1)
        met = emit(slice_(x, [1, 2], begins, ends, steps, assume_inbound=True))
        taps = [rows.tap, columns.tap]
        weights = emit(slice_(w, [0, 1], taps, [tap + 1 for tap in taps], assume_inbound=True))
        return emit(
            with_weights(
                call, weights, images=met, strides=[1, 1], padding=[0] * 4, dilation=[1, 1]
            )
        )

    def _around(self, result: Any, rows: Part, columns: Part, output: tuple[int, ...]) -> Any:
        """Return a tap's results, with zeros where it meets padding."""
        widths = [0, 0]
        for part, outputs in zip((rows, columns), output[1:3], strict=True):
            widths += [part.first, outputs - part.end]
        if not any(widths):
            return result
        return self.builder_.emit(relax.op.nn.pad(result, [*widths, 0, 0]))


def _pixels(rows: Part, columns: Part) -> int:
    return (rows.end - rows.first) * (columns.end - columns.first)
