"""Packs the weights of convolutions and replaces them with a kernel that reads packed weights.

Before: `conv2d(x, w)` in the layouts NHWC and HWIO, where
- `w` has the static shape (kh, kw, C / groups, N); it depends on parameters of the function alone,
  or meets so many pixels that packing it in every call pays off,
- `x` (B, H, W, C) does not depend on parameters alone; B, H and W may be symbolic,
- both are float32, or both float64, and no extent is 0.

After: `conv(x, pack_weight(w))`, where `pack_weight` lays `w` out as panels
`[ceil(N / nt)][kh][kw][C][nt]`, which the kernel reads front to back for each of its register
tiles. The kernel itself pads the image with zeros. If `x` has few channels and was permuted from
NCHW, the kernel reads its source plane by plane.

As with dense layers (`pack_weights`), packing is work on parameters, which `LiftTransformParams`
moves out of `main`, and elementwise ops after the convolution are fused into its write-back.
"""

from __future__ import annotations

import math
from typing import Any

from needle_tvm._tvm.names import OP_PATTERN, IRModule, Target, expr_functor, relax
from needle_tvm.graph.convolutions import conv_extents
from needle_tvm.graph.dependence import bindings_of, is_op
from needle_tvm.graph.rewrite import rewrite
from needle_tvm.kernels.blocks import erf_vectors, item_bytes
from needle_tvm.kernels.conv.cpu_tiles import LARGE, WIDEST, ConvTile, conv_tile, depthwise_tile
from needle_tvm.kernels.conv.te import Channels, Geometry, conv
from needle_tvm.kernels.dense.pack_weights import Packer
from needle_tvm.tir.extents import is_static, shape_of

_DTYPES = ("float32", "float64")
_FEWEST_PIXELS = 16  # pixels of the result, if weights are packed in every call
_WITH_ERF = ("relax.nn.gelu", "relax.erf")
_ARITHMETIC = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide")
_FEW_CHANNELS = 8  # fewer channels do not fill a vector when the input is copied


def pack_conv(module: IRModule, target: Target) -> IRModule:
    """Rewrite every convolution that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _ConvPacker, with_parameters=True)


@expr_functor.mutator
class _ConvPacker(Packer):
    def __init__(self, module: IRModule, function: relax.Function, target: Target) -> None:
        super().__init__(module, function, target)
        self._planes_first: dict[Any, Any] = {}
        self._before_erf = _before_erf(function)
        self._bound: Any = None  # the variable whose value is visited

    def visit_var_binding_(self, binding: Any) -> None:
        self._bound = binding.var
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if not self._fits(call):
            return call
        (x, w), attrs = call.args, call.attrs
        batch, rows, columns, n = shape_of(call) or ()
        padding = [int(zeros) for zeros in attrs.padding]
        geometry = Geometry(
            (rows, columns),
            _pair(attrs.strides),
            _pair(attrs.dilation),
            (padding[0], padding[1]),
            (padding[2], padding[3]),
        )
        channels, x = self._channels(call, x, n)
        # With a symbolic batch or symbolic image sizes, each tile lies in one image.
        images = batch if is_static((batch, rows, columns)) else 1
        sizes = self.large(rows, LARGE), self.large(columns, LARGE)
        tile = self._tile(channels, (images, *sizes, n), geometry, w)
        return self.builder_.call_te(
            lambda a, p: conv(a, p, n, geometry, channels, tile),
            x,
            self.panels(self._planes_outside(w) if channels.planar else w, tile.channels),
            primfunc_name_hint="depthwise_conv" if channels.depthwise else "conv",
            primfunc_attrs={"op_pattern": OP_PATTERN.out_fusable},
        )

    def _channels(self, call: Any, x: Any, n: int) -> tuple[Channels, Any]:
        """Return how output channels read input channels, and the tensor to read them from."""
        groups = int(call.attrs.groups)
        inputs = int(x.ty.shape.values[-1]) // groups
        planes = self._planes(x) if groups == 1 else None
        depthwise = inputs == 1 and groups == n and n > 1
        planar = planes is not None
        return Channels(inputs, n // groups, depthwise, planar), planes if planar else x

    def _tile(
        self, channels: Channels, output: tuple[int, int, int, int], geometry: Geometry, w: Any
    ) -> ConvTile:
        rows, columns, inputs, _ = (int(extent) for extent in w.ty.shape.values)
        dtype = str(w.ty.dtype)
        if channels.depthwise:
            return depthwise_tile(output, (rows, columns), geometry.stride, dtype, self.target)
        each = channels.outputs if channels.outputs != output[3] else None
        overlapping = columns > 1 and channels.inputs < _FEW_CHANNELS
        terms = rows * columns * inputs
        channels_of_pixel = 1 if channels.planar else inputs * (output[3] // channels.outputs)
        step = channels_of_pixel * geometry.stride[1] * item_bytes(dtype)
        return conv_tile(
            output,
            terms,
            dtype,
            self.target,
            each,
            step=step,
            overlapping=overlapping,
            widest=erf_vectors(self.target) if self._bound in self._before_erf else WIDEST,
        )

    def _fits(self, call: Any) -> bool:
        if conv_extents(call) is None:
            return False
        x, w = call.args
        if x.ty.dtype not in _DTYPES or x.ty.dtype != w.ty.dtype:
            return False
        if self.is_parameter_work(x):
            return False
        pixels = math.prod(self.least(extent) for extent in (shape_of(call) or ())[:-1])
        return self.is_parameter_work(w) or pixels >= _FEWEST_PIXELS

    def _planes(self, x: Any) -> Any:
        """Return the (B, C, H, W) tensor of few channels that `x` permutes, or None."""
        value = self.lookup_binding(x) if isinstance(x, relax.Var) else None
        if not is_op(value, "relax.permute_dims"):
            return None
        order = [int(axis) for axis in value.attrs.axes or ()]
        few = int(x.ty.shape.values[-1]) < _FEW_CHANNELS
        return value.args[0] if few and order == [0, 2, 3, 1] else None

    def _planes_outside(self, w: Any) -> Any:
        """Return (kh, kw, C, N) as (C, kh, kw, N), permuted once for all layers that share it."""
        if w not in self._planes_first:
            self._planes_first[w] = self.builder_.emit(relax.op.permute_dims(w, [2, 0, 1, 3]))
        return self._planes_first[w]


def _before_erf(function: relax.Function) -> set[Any]:
    """Return the variables that erf reads, directly or through arithmetic: their kernels will
    probably be fused with it."""
    values = bindings_of(function)
    found: set[Any] = set()
    pending = [
        argument
        for value in values.values()
        if any(is_op(value, name) for name in _WITH_ERF)
        for argument in value.args
    ]
    while pending:
        variable = pending.pop()
        if not isinstance(variable, relax.Var) or variable in found:
            continue
        found.add(variable)
        value: Any = values.get(variable)
        if any(is_op(value, name) for name in _ARITHMETIC):
            pending.extend(value.args)
    return found


def _pair(values: Any) -> tuple[int, int]:
    """Return the first two numbers of an operator's attribute: (rows, columns) or (top, left)."""
    return int(values[0]), int(values[1])
