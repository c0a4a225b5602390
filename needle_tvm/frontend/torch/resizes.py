"""PyTorch's resizes, of which TVM's operators have other positions, or take longer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from needle.backend_ndarray.dtypes import compute_dtype, is_floating
from needle.nn.functional.resize import Filter
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


def blended(
    is_cubic: bool, antialias: bool = False, otherwise: str | None = None
) -> Callable[[Any, Any], Any]:
    """A converter for bilinear or bicubic resizes: needle's own, one axis after the other.

    TVM's operator looks for each element's place again, takes the scale from the sizes, and divides
    by 0 for one position between aligned corners. Its converter, named `otherwise`, takes those of
    open extents and of integers.
    """

    def convert(node: Any, importer: Any) -> Any:
        x, sizes, align, *scales = node.args
        out, builder = importer.env[x], importer.block_builder
        shape, dtype = extents_of(out), str(out.ty.dtype)
        factors = (*scales, None, None)[:2] if antialias else (*scales, None)[0] or (None, None)
        if sizes is None:
            sizes = [
                int(n * by) if isinstance(n, int) else None
                for n, by in zip(shape[2:], factors, strict=True)
            ]
        is_open = not all(isinstance(n, int) for n in (*shape[2:], *sizes))
        if is_open and (otherwise is None or None in sizes):
            raise ValueError("a resize of an axis whose size is open")
        if otherwise is not None and (is_open or not is_floating(dtype)):
            return getattr(importer, otherwise)(node)
        if not is_floating(dtype):
            raise ValueError(f"{node.target} of {dtype}, which PyTorch rounds in its own way")
        kind, wide = Filter(is_cubic, align, antialias), compute_dtype(dtype)
        out = builder.emit(_op.astype(out, wide)) if wide != dtype else out
        resized = zip((2, 3), shape[2:], sizes, factors, strict=True)
        # As in needle: the less there is, the less there is to do; rows are vectors.
        for axis, n, m, factor in sorted(resized, key=lambda each: (each[2] / each[1], -each[0])):
            if n == m and (align or factor in (None, 1)):
                continue
            places, weights = kind.table(n, m, factor)
            rule = partial(Resample(axis).emit_te, TE_NAMESPACE)
            tables = relax.const(places, "int64"), relax.const(weights, wide)
            out = builder.emit_te(rule, out, *tables, primfunc_name_hint="resample")
        return builder.emit(_op.astype(out, dtype)) if wide != dtype else out

    return convert


CONVERTERS: dict[str, Callable[[Any, Any], Any]] = {
    "upsample_nearest2d.vec": nearest,
    "upsample_bilinear2d.vec": blended(is_cubic=False, otherwise="_upsample_bilinear2d"),
    "upsample_bicubic2d.vec": blended(is_cubic=True, otherwise="_upsample_bicubic2d"),
    "_upsample_bilinear2d_aa.default": blended(is_cubic=False, antialias=True),
    "_upsample_bicubic2d_aa.default": blended(is_cubic=True, antialias=True),
}
