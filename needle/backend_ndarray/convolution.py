"""Convolutions of NDArrays over (N, H, W, C) by the device's own kernels.

A weight is (kh, kw, C, O); stride, padding and dilation are pairs (rows, columns). The kernels take
two float32 or two float64 inputs (`supported`). They raise ValueError if the shapes do not match or
the window does not fit, and never write to their inputs.
"""

from __future__ import annotations

from .ndarray import NDArray, wrap

Pair = tuple[int, int]
DTYPES = ("float32", "float64")


def supported(a: NDArray, b: NDArray) -> bool:
    """Return whether the kernels support the inputs `a` and `b`."""
    return a.dtype == b.dtype and a.dtype in DTYPES and a.device is b.device


def conv2d(x: NDArray, w: NDArray, stride: Pair, padding: Pair, dilation: Pair) -> NDArray:
    """Return the convolution (N, rows, columns, O) of `x` (N, H, W, C) with `w` (kh, kw, C, O).
    `stride`, `padding` and `dilation` are (rows, columns)."""
    return wrap(x.device, x.device.kernels.conv2d(x.view, w.view, stride, padding, dilation))


def conv2d_input(
    g: NDArray, w: NDArray, size: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> NDArray:
    """Return the gradient (N, *`size`, C) of the input from `g` (N, rows, columns, O) and `w` (kh,
    kw, C, O). `stride`, `padding` and `dilation` are as in `conv2d`."""
    kernel = g.device.kernels.conv2d_input
    return wrap(g.device, kernel(g.view, w.view, size, stride, padding, dilation))


def conv2d_weight(
    x: NDArray, g: NDArray, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> NDArray:
    """Return the gradient (*`kernel`, C, O) of the weight from `x` (N, H, W, C) and `g` (N, rows,
    columns, O). `stride`, `padding` and `dilation` are as in `conv2d`."""
    run = x.device.kernels.conv2d_weight
    return wrap(x.device, run(x.view, g.view, kernel, stride, padding, dilation))
