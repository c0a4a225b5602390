"""Rules for pooling."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...backend_ndarray.dtypes import is_floating
from ...ops._windows import lowest
from ._dtypes import has_kernel
from ._layouts import first, first_shape, last
from ._rules import Site, rule
from ._writer import Value, Writer
from .windows import windows


@rule(ops.MaxPool)
def max_pool(s: Site, x: Value) -> Value:
    if has_kernel("MaxPool", x.dtype):
        return _pool(s, "MaxPool", x, lowest(x.dtype), dilations=list(s.op.window.dilation))
    return _of_windows(s, "ReduceMax", x, lowest(x.dtype))


@rule(ops.AvgPool)
def avg_pool(s: Site, x: Value) -> Value:
    x = s.w.cast(x, s.out.dtype)
    if has_kernel("AveragePool", x.dtype):
        return _pool(s, "AveragePool", x, 0, count_include_pad=1)
    return _of_windows(s, "ReduceMean", x, 0)


def _pool(s: Site, op_type: str, x: Value, fill: float, **attributes: Any) -> Value:
    w, window = s.w, s.op.window
    padding = window.padding
    if any(pad >= kernel for pad, kernel in zip(padding, window.kernel, strict=True)):
        x, padding = _padded(w, x, padding, fill), (0, 0)  # ONNX Runtime rejects such padding
    made: Value = w.node(
        op_type,
        first(w, x),
        shape=first_shape(s.out.shape),
        kernel_shape=list(window.kernel),
        strides=list(window.stride),
        pads=[*padding, *padding],
        **attributes,
    )
    return last(w, made)


def _padded(w: Writer, x: Value, padding: tuple[int, int], fill: float) -> Value:
    p_, q = padding
    return w.pad(x, [(0, 0), (p_, p_), (q, q), (0, 0)], fill)


def _of_windows(s: Site, op_type: str, x: Value, fill: float) -> Value:
    value = fill if is_floating(x.dtype) else int(fill)
    seen = windows(s.w, x, s.op.window, s.out.shape[1:3], value)
    return s.w.reduce(op_type, seen, (3, 4), False)
