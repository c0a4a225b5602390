"""Converters of Fourier transforms of whole tensors and of frames of a signal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.fourier import check_length, fitted, signal_of_half, transformed
from ...conversion.values import Value, normal_axes, tensor
from ...sizes.dims import Expression
from ...sizes.extents import is_symbolic
from ..complexes import REAL, Complex
from ..program import Node
from ..registry import complex_converter, converter


def _size(node: Node, n: Any) -> int:
    """Return the length of a transform, which must be fixed and at least 1."""
    if isinstance(n, Expression) or n < 1:
        raise node.unsupported(f"a transform of {n} elements: the length must be fixed and above 0")
    check_length(node, n)
    return int(n)


def _scale(mode: int, sizes: Sequence[int]) -> float:
    """Return the factor of a transform: 1, 1 / sqrt(count) or 1 / count for `mode` 0, 1 or 2."""
    count = math.prod(sizes)
    return (1.0, 1 / math.sqrt(count), 1 / count)[mode]


def _scaled(x: Tensor, by: float) -> Tensor:
    return x if by == 1 else ops.mul_scalar(x, by)


def _last(x: Tensor, axis: int) -> Tensor:
    """Return x with an axis moved to the end."""
    return x if axis == x.ndim - 1 else ops.moveaxis(x, axis, -1)


def _back(x: Tensor, axis: int) -> Tensor:
    return x if axis == x.ndim - 1 else ops.moveaxis(x, -1, axis)


def _along(node: Node, x: Complex, axis: int, forward: bool) -> Complex:
    """Return the transform along an axis, without a factor."""
    n = _size(node, x.shape[axis])
    parts = tuple(_last(each, axis) for each in x.parts)
    real, imag = transformed(parts, n, n, not forward, 2)
    by = 1.0 if forward else float(n)
    return Complex(*(_back(_scaled(_required(each), by), axis) for each in (real, imag)))


@complex_converter("aten._fft_c2c")
def fft_c2c(node: Node, x: Complex, axes: tuple[int, ...], mode: int, forward: bool) -> Complex:
    axes = normal_axes(node, axes, len(x.shape))
    by = _scale(mode, [_size(node, x.shape[axis]) for axis in axes])
    for axis in axes:
        x = _along(node, x, axis, forward)
    return Complex(*(_scaled(each, by) for each in x.parts))


@converter("aten._fft_r2c")
@complex_converter("aten._fft_r2c")
def fft_r2c(node: Node, x: Value, axes: tuple[int, ...], mode: int, onesided: bool) -> Complex:
    """Transform real numbers. Along the last of the axes, return the non-redundant half or all
    frequencies."""
    signal = tensor(x)
    axes = normal_axes(node, axes, signal.ndim)
    sizes = [_size(node, signal.shape[axis]) for axis in axes]
    last, n = axes[-1], sizes[-1]
    bins = n // 2 + 1 if onesided else n
    real, imag = transformed((_last(signal, last), None), n, bins, False, 2)
    found = Complex(_back(real, last), _back(_required(imag), last))
    for axis in axes[:-1]:
        found = _along(node, found, axis, True)
    by = _scale(mode, sizes)
    return Complex(*(_scaled(each, by) for each in found.parts))


@complex_converter("aten._fft_c2r")
def fft_c2r(node: Node, x: Complex, axes: tuple[int, ...], mode: int, length: Any) -> Tensor:
    """Invert `_fft_r2c`, with `length` points along the last of the axes."""
    axes = normal_axes(node, axes, len(x.shape))
    n, last = _size(node, length), axes[-1]
    by = _scale(mode, [*(_size(node, x.shape[axis]) for axis in axes[:-1]), n])
    for axis in axes[:-1]:
        x = _along(node, x, axis, False)
    half = tuple(fitted(_last(each, last), n // 2 + 1) for each in x.parts)
    return _scaled(_back(signal_of_half(half, n), last), by)


@converter("aten.stft.default")
@complex_converter("aten.stft.default")
def stft(
    node: Node,
    x: Any,
    n: int,
    hop: int | None = None,
    length: int | None = None,
    window: Any = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Any:
    """Return the transforms (..., frequencies, frames) of windowed frames."""
    n, parts = _size(node, n), _parts(x)
    hop = n // 4 if hop is None else hop
    lead, size = parts[0].shape[:-1], parts[0].shape[-1]
    frames = (size - n) // hop + 1
    shape = (*lead, frames, n)
    cut: Any = [None if each is None else _frames(each, n, hop, shape) for each in parts]
    by = _window(node, window, n, length, cut[0].dtype)
    if by is not None:
        cut = [None if each is None else ops.multiply(each, by) for each in cut]
    half = isinstance(x, (Tensor, np.ndarray)) if onesided is None else onesided
    real, imag = transformed(tuple(cut), n, n // 2 + 1 if half else n, False, 2)
    scale = _scale(1 if normalized else 0, [n])
    found = [ops.swapaxes(_scaled(_required(each), scale), -1, -2) for each in (real, imag)]
    return Complex(*found) if node.dtype in REAL else ops.stack(found, -1)


def _parts(x: Any) -> tuple[Tensor, Tensor | None]:
    return x.parts if isinstance(x, Complex) else (tensor(x), None)


def _frames(x: Tensor, n: int, hop: int, shape: tuple[Any, ...]) -> Tensor:
    """Return frames of n elements along the last axis of a signal, `hop` apart."""
    columns = ops.reshape(x, (-1, x.shape[-1], 1, 1))
    return ops.reshape(ops.sliding_windows(columns, (n, 1), (hop, 1)), shape)


def _window(node: Node, window: Any, n: int, length: int | None, dtype: str) -> Value | None:
    """Return a window padded with zeros to n elements, or None if the window is all ones."""
    if isinstance(window, Complex):
        raise node.unsupported("a complex window")
    size = n if length is None else length
    if window is None:
        if size == n:
            return None
        window = np.ones(size, dtype)
    left = (n - size) // 2
    around = ((left, n - size - left),)
    if isinstance(window, np.ndarray):
        return np.pad(window, around).astype(dtype)
    return ops.pad(ops.cast(window, dtype), around)


@complex_converter("aten.istft")
def istft(
    node: Node,
    x: Complex,
    n: int,
    hop: int | None = None,
    length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    size: Any = None,
    return_complex: bool = False,
) -> Any:
    """Return the signal whose frames have the transforms x (..., frequencies, frames): the sum of
    the windowed frames, divided by the sum of the squared windows."""
    n = _size(node, n)
    hop = n // 4 if hop is None else hop
    lead, frames = x.shape[:-2], x.shape[-1]
    if is_symbolic((frames, size)):
        raise node.unsupported("a number of frames or a length that dims leave open")
    half = tuple(ops.swapaxes(each, -1, -2) for each in x.parts)  # (..., frames, frequencies)
    if return_complex:
        scale = math.sqrt(n) if normalized else 1.0
        signals = [_scaled(_required(each), scale) for each in transformed(half, n, n, True, 2)]
    else:
        used = tuple(fitted(each, n // 2 + 1) for each in half)
        signals = [_scaled(signal_of_half(used, n), _scale(1 if normalized else 2, [n]))]
    by = _window(node, window, n, length, x.real.dtype)
    total, first = n + hop * (frames - 1), n // 2 if center else 0
    last = total - first if size is None else first + size
    sums = _summed_windows(by, n, frames, hop, x.real.dtype)
    results = []
    for each in signals:
        windowed = ops.reshape(each if by is None else ops.multiply(each, by), (-1, frames, n))
        signal = ops.divide(_summed(windowed, hop)[:, first:last], sums[first:last])
        if last > total:
            signal = ops.pad(signal, ((0, 0), (0, last - total)))
        results.append(ops.reshape(signal, (*lead, last - first)))
    return Complex(*results) if return_complex else results[0]


def _summed(frames: Tensor, hop: int) -> Tensor:
    """Sum frames (batch, frames, n), `hop` apart, where they overlap: (batch, length)."""
    batch, count, n = frames.shape
    columns = ops.reshape(frames, (batch, count, 1, n, 1, 1))
    total = n + hop * (count - 1)
    return ops.reshape(ops.overlap_add(columns, (total, 1), (hop, 1)), (batch, total))


def _summed_windows(by: Any, n: int, frames: int, hop: int, dtype: str) -> Tensor:
    """Return the sums of squared windows, by which the summed frames are divided."""
    if isinstance(by, Tensor):
        squared = ops.broadcast_to(ops.multiply(by, by), (1, frames, n))
        return ops.reshape(_summed(squared, hop), (-1,))
    window = np.ones(n) if by is None else by.astype(np.float64)
    sums = np.zeros(n + hop * (frames - 1))
    for start in range(0, hop * frames, hop):
        sums[start : start + n] += window**2
    return tensor(sums.astype(dtype))


def _required(x: Tensor | None) -> Tensor:
    assert x is not None, "two parts were requested"
    return x
