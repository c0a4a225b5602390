"""PyTorch's resizes whose positions or weights TVM's operators do not have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from needle.backend_ndarray.dtypes import is_floating
from needle.nn.functional.resize import wide_taps
from needle.ops.resample import Resample
from needle_tvm._tvm.names import TE_NAMESPACE, relax
from needle_tvm.frontend.torch.nodes import extents_of

_op = relax.op


def nearest(node: Any, importer: Any) -> Any:
    """The nearest element below each position. TVM's operator rounds positions differently."""
    x, sizes, scales = (*node.args, None, None)[:3]
    out, shape = importer.env[x], extents_of(importer.env[x])
    for i, extent in enumerate(shape[2:]):
        if not isinstance(extent, int):
            raise ValueError("a resize of an axis whose size is open")
        size = int(extent * scales[i]) if sizes is None else sizes[i]
        ratio = np.float32(extent / size if scales is None else 1 / scales[i])
        places = np.floor(np.arange(size, dtype=np.float32) * ratio).clip(0, extent - 1)
        index = relax.const(places.astype("int64"), "int64")
        out = importer.block_builder.emit(_op.take(out, index, axis=i + 2))
    return out


def antialiased(is_cubic: bool) -> Callable[[Any, Any], Any]:
    """A converter for bilinear or bicubic resizes by filters as wide as the steps between the new
    pixels (`antialias=True`), one axis after the other."""

    def convert(node: Any, importer: Any) -> Any:
        x, sizes, align, *scales = node.args
        out, builder = importer.env[x], importer.block_builder
        shape, dtype = extents_of(out), str(out.ty.dtype)
        if not is_floating(dtype):
            raise ValueError(f"{node.target} of {dtype}, which PyTorch rounds in its own way")
        for axis in (3, 2):
            extent, size, scale = shape[axis], sizes[axis - 2], (*scales, None, None)[axis - 2]
            if not isinstance(extent, int):
                raise ValueError("a resize of an axis whose size is open")
            if align:
                ratio = (extent - 1) / (size - 1) if size > 1 else 0.0
            else:
                ratio = 1 / scale if scale else extent / size
            if ratio == 1 and extent == size:
                continue
            places, weights = wide_taps(extent, size, ratio, is_cubic)
            rule = partial(Resample(axis).emit_te, TE_NAMESPACE)
            tables = relax.const(places, "int64"), relax.const(weights, dtype)
            out = builder.emit_te(rule, out, *tables, primfunc_name_hint="resample")
        return out

    return convert


CONVERTERS: dict[str, Callable[[Any, Any], Any]] = {
    "upsample_nearest2d.vec": nearest,
    "_upsample_bilinear2d_aa.default": antialiased(is_cubic=False),
    "_upsample_bicubic2d_aa.default": antialiased(is_cubic=True),
}
