"""Converters of Fourier transforms and related operators: windows and mel filters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.budget import bounded
from ...conversion.fourier import Parts, check_length, fitted, transformed, whole
from ...conversion.values import (
    Value,
    known_integer,
    known_number,
    normal_axis,
    tensor,
)
from ...sizes.dims import Expression
from ..graph import Node
from ..registry import converter


@converter("DFT", since=17, known=(1,))
def dft_of_attribute(node: Node, data: Value, length: Value | None = None) -> Tensor:
    return _dft(node, tensor(data), length, node.integer("axis"))


@converter("DFT", since=20, known=(1, 2))
def dft(node: Node, data: Value, length: Value | None = None, axis: Value | None = None) -> Tensor:
    at = -2 if axis is None else known_integer(node, axis, "the axis")
    return _dft(node, tensor(data), length, at)


def _dft(node: Node, x: Tensor, length: Value | None, axis: int) -> Tensor:
    if x.ndim < 2 or x.shape[-1] not in (1, 2):
        raise node.invalid(f"an input {x.spec} is not (..., n, 1) or (..., n, 2)")
    axis, last = normal_axis(node, axis, x.ndim), x.ndim - 2
    if axis > last:
        raise node.invalid(f"axis {axis} is the axis of the real and imaginary parts")
    inverse, onesided = node.flag("inverse"), node.flag("onesided")
    n = x.shape[axis]
    if length is not None:
        n = known_integer(node, length, "dft_length")
    elif inverse and onesided:
        n = 2 * (n - 1)
    if isinstance(n, Expression) or n < 1:
        raise node.unsupported(f"a transform of the length {n}; it must be fixed and above 0")
    bounded((*x.shape[:axis], n, *x.shape[axis + 1 :]))
    check_length(node, n)
    order = (*(i for i in range(last + 1) if i != axis), axis, x.ndim - 1)
    parts = _parts(ops.permute(x, order))
    if inverse and onesided:
        parts = whole(tuple(fitted(part, n // 2 + 1) for part in parts), n)
        made = ops.unsqueeze(transformed(parts, n, n, True, 1)[0], -1)
    else:
        parts = tuple(fitted(part, n) for part in parts)
        bins = n // 2 + 1 if onesided else n
        made = _stacked(transformed(parts, n, bins, inverse, 2))
    back = (*range(axis), last, *range(axis, last), x.ndim - 1)
    return ops.permute(made, back)


def _parts(x: Tensor) -> Parts:
    return x[..., 0], x[..., 1] if x.shape[-1] == 2 else None


def _stacked(parts: Parts) -> Tensor:
    real, imaginary = parts
    assert imaginary is not None  # two parts were requested
    return ops.stack([real, imaginary], -1)


@converter("STFT", since=17, known=(1, 2, 3))
def stft(
    node: Node,
    signal: Value,
    step: Value,
    window: Value | None = None,
    length: Value | None = None,
) -> Tensor:
    x, hop = tensor(signal), known_integer(node, step, "frame_step")
    if x.ndim != 3 or x.shape[-1] not in (1, 2):
        raise node.invalid(f"a signal {x.spec} is not (batch, length, 1) or (batch, length, 2)")
    n = x.shape[1] if window is None else window.shape[0]
    if length is not None:
        n = known_integer(node, length, "frame_length")
    if isinstance(n, Expression) or n < 1 or hop < 1:
        raise node.unsupported(f"frames of {n} elements, {hop} apart; both must be fixed and > 0")
    check_length(node, n)
    if window is not None and tuple(window.shape) != (n,):
        raise node.invalid(f"a window of shape {tuple(window.shape)} does not fit frames of {n}")
    frames = (x.shape[1] - n) // hop + 1
    if isinstance(frames, int):
        bounded((x.shape[0], max(frames, 0), n))
    begin = ops.arange(frames, device=x.device) * hop
    index = ops.unsqueeze(begin, 1) + ops.arange(n, device=x.device)
    cut: Any = tuple(None if p is None else ops.take(p, index, 1) for p in _parts(x))
    if window is not None:
        by = tensor(window)
        cut = tuple(None if p is None else ops.multiply(p, ops.cast(by, x.dtype)) for p in cut)
    bins = n // 2 + 1 if node.flag("onesided") else n
    return _stacked(transformed(cut, n, bins, False, 2))


# Windows and filters


def _hann(at: np.ndarray, n: int) -> np.ndarray:
    return np.sin(np.pi * at / n) ** 2


def _hamming(at: np.ndarray, n: int) -> np.ndarray:
    return 25 / 46 - 21 / 46 * np.cos(2 * np.pi * at / n)


def _blackman(at: np.ndarray, n: int) -> np.ndarray:
    return 0.42 - 0.5 * np.cos(2 * np.pi * at / n) + 0.08 * np.cos(4 * np.pi * at / n)


_WINDOWS = {"BlackmanWindow": _blackman, "HammingWindow": _hamming, "HannWindow": _hann}


@converter(*_WINDOWS, since=17, known=(0,))
def window(node: Node, size: Value) -> np.ndarray:
    n = known_integer(node, size, "the size")
    if isinstance(n, Expression) or n < 0:
        raise node.unsupported(f"a window of the size {n}; the size must be fixed")
    bounded([n])
    period = n if node.flag("periodic") else n - 1
    if n == 1 and period == 0:
        return _as(node, np.ones(1))  # the peak of a window
    return _as(node, _WINDOWS[node.op_type](np.arange(n), max(period, 1)))


def _as(node: Node, values: np.ndarray) -> np.ndarray:
    """Return numbers in the dtype that the node requests."""
    return np.asarray(tensor(values).astype(node.dtype("output_datatype")).numpy())


@converter("MelWeightMatrix", since=17, known=(0, 1, 2, 3, 4))
def mel_weight_matrix(
    node: Node, bins: Value, length: Value, rate: Value, low: Value, high: Value
) -> np.ndarray:
    """Return triangular filters over the frequencies of a spectrum, evenly spaced on the mel
    scale."""
    count, n = (known_integer(node, v, "the sizes") for v in (bins, length))
    bounded((count + 2, n))
    per_second = known_integer(node, rate, "the sample rate")
    edges = [float(known_number(node, v, "the edges")) for v in (low, high)]
    first, last = (2595 * math.log10(1 + hertz / 700) for hertz in edges)
    mels = np.arange(count + 2) * ((last - first) / (count + 2)) + first
    hertz = 700 * (10 ** (mels / 2595) - 1)
    places = ((n + 1) * hertz // per_second).astype(np.int64)
    frequencies = n // 2 + 1
    if count < 1 or places.min() < 0 or places.max() >= frequencies:
        raise node.invalid(
            f"{count} bins from {edges[0]} to {edges[1]} Hz do not fit {frequencies} frequencies"
        )
    made = np.zeros((frequencies, count))
    for i, (begin, centre, end) in enumerate(zip(places, places[1:], places[2:], strict=False)):
        up, down = np.arange(begin, centre + 1), np.arange(centre, end)
        made[up, i] = 1 if begin == centre else (up - begin) / (centre - begin)
        if end > centre:
            made[down, i] = (end - down) / (end - centre)
    return _as(node, made)
