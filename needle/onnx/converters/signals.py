"""Converters of Fourier transforms and what goes with them."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ... import ops
from ...conversion.budget import bounded
from ...conversion.values import (
    Value,
    known_integer,
    known_number,
    normal_axis,
    tensor,
)
from ...dims import Expression
from ...tensor import Tensor, make_const
from ..graph import Node
from ..registry import converter

_LONGEST = 512  # a transform that is one product with a matrix
_LARGEST_PRIME = 4096  # a factor of a length, whose transform is a matrix

Complex = tuple[Tensor, Tensor | None]  # the real and the imaginary part; None is 0


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
        raise node.invalid(f"axis {axis} is that of the real and imaginary parts")
    inverse, onesided = node.flag("inverse"), node.flag("onesided")
    n = x.shape[axis]
    if length is not None:
        n = known_integer(node, length, "dft_length")
    elif inverse and onesided:
        n = 2 * (n - 1)
    if isinstance(n, Expression) or n < 1:
        raise node.unsupported(f"a transform of the length {n}; give it a fixed one above 0")
    bounded((*x.shape[:axis], n, *x.shape[axis + 1 :]))
    _check_length(node, n)
    order = (*(i for i in range(last + 1) if i != axis), axis, x.ndim - 1)
    parts = _parts(ops.permute(x, order))
    if inverse and onesided:
        parts = _whole(tuple(_fitted(part, n // 2 + 1) for part in parts), n)
        made = ops.unsqueeze(_transformed(parts, n, n, True, 1)[0], -1)
    else:
        parts = tuple(_fitted(part, n) for part in parts)
        bins = n // 2 + 1 if onesided else n
        made = _stacked(_transformed(parts, n, bins, inverse, 2))
    back = (*range(axis), last, *range(axis, last), x.ndim - 1)
    return ops.permute(made, back)


def _check_length(node: Node, n: int) -> None:
    rest, factor = n, 2
    while factor * factor <= rest:
        rest, factor = (rest // factor, factor) if rest % factor == 0 else (rest, factor + 1)
    if rest > _LARGEST_PRIME:
        raise node.unsupported(f"a transform of {n}, which has the prime factor {rest}")


def _parts(x: Tensor) -> Complex:
    return x[..., 0], x[..., 1] if x.shape[-1] == 2 else None


def _stacked(parts: Complex) -> Tensor:
    real, imaginary = parts
    assert imaginary is not None  # two parts were asked for
    return ops.stack([real, imaginary], -1)


def _fitted(x: Tensor | None, n: int) -> Any:
    """`x` with n elements along its last axis: cut, or with zeros behind."""
    if x is None:
        return None
    given = x.shape[-1]
    if isinstance(given, Expression):
        raise ValueError(f"a signal of the open size {given} is not cut or extended to {n}")
    if given > n:
        return x[..., :n]
    return x if given == n else ops.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, n - given),))


def _whole(parts: Any, n: int) -> Complex:
    """The n frequencies of a real signal from the n // 2 + 1 that are not conjugates of others."""
    rest = (n + 1) // 2  # the first of the conjugates is that of rest - 1
    if rest < 2:
        return parts
    whole: list[Any] = [
        None
        if part is None
        else ops.concat([part, ops.mul_scalar(_mirrored(part, rest), sign)], -1)
        for part, sign in zip(parts, (1.0, -1.0), strict=True)
    ]
    return whole[0], whole[1]


def _mirrored(x: Tensor, rest: int) -> Tensor:
    return ops.flip(x[..., 1:rest], -1)


def _transformed(x: Any, n: int, bins: int, inverse: bool, parts: int) -> Complex:
    """The first frequencies of signals of n elements along the last axis, or signals of
    frequencies; with one part only the real one."""
    made = _forward(x, n, bins, inverse, parts)
    if not inverse:
        return made
    real, imaginary = made
    return ops.mul_scalar(real, 1 / n), None if imaginary is None else ops.mul_scalar(
        imaginary, 1 / n
    )


def _forward(x: Any, n: int, bins: int, conjugate: bool, parts: int) -> Complex:
    """The sums of the transform: one product with a matrix, or, of a long signal that can be
    divided, transforms of both factors (Cooley and Tukey 1965)."""
    factor = _factor(n) if n > _LONGEST else 1
    if factor == 1:
        return _by_matrices(x, *_waves(n, bins, conjugate), parts)
    other = n // factor
    lead = x[0].shape[:-1]
    grid = tuple(
        None if part is None else ops.swapaxes(ops.reshape(part, (*lead, factor, other)), -1, -2)
        for part in x
    )
    real, imaginary = _forward(grid, factor, factor, conjugate, 2)  # (..., other, factor)
    cosines, sines = _twiddles(other, factor, n, conjugate)
    turned = _product(
        real, imaginary, *(make_const(t.astype(real.dtype)) for t in (cosines, sines))
    )
    columns = tuple(ops.swapaxes(part, -1, -2) for part in turned)
    made = _forward(columns, other, other, conjugate, parts)  # (..., factor, other)
    found: list[Any] = [
        None if part is None else ops.reshape(ops.swapaxes(part, -1, -2), (*lead, n))[..., :bins]
        for part in made
    ]
    return found[0], found[1]


def _factor(n: int) -> int:
    """The greatest factor of n that is not above its root; 1 for a prime."""
    return next(i for i in range(math.isqrt(n), 0, -1) if n % i == 0)


@functools.lru_cache(maxsize=16)
def _waves(n: int, bins: int, conjugate: bool) -> tuple[np.ndarray, np.ndarray]:
    """The real and imaginary parts of exp(-2 pi i t k / n), (n, bins), or of its conjugate."""
    return _turns(np.outer(np.arange(n), np.arange(bins)) % n, n, conjugate)


@functools.lru_cache(maxsize=16)
def _twiddles(m: int, bins: int, n: int, conjugate: bool) -> tuple[np.ndarray, np.ndarray]:
    return _turns(np.outer(np.arange(m), np.arange(bins)), n, conjugate)


def _turns(steps: np.ndarray, n: int, conjugate: bool) -> tuple[np.ndarray, np.ndarray]:
    angle = 2 * np.pi / n * steps
    return np.cos(angle), np.sin(angle) if conjugate else -np.sin(angle)


def _by_matrices(x: Any, cosines: np.ndarray, sines: np.ndarray, parts: int) -> Complex:
    real, imaginary = x
    c, s = (make_const(t.astype(real.dtype)) for t in (cosines, sines))
    first, second = ops.matmul(real, c), ops.matmul(real, s) if parts == 2 else None
    if imaginary is not None:
        first = ops.subtract(first, ops.matmul(imaginary, s))
        second = None if second is None else ops.add(second, ops.matmul(imaginary, c))
    return first, second


def _product(a: Tensor, b: Tensor | None, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """(a + bi) (c + di), element by element."""
    if b is None:
        return a * c, a * d
    return a * c - b * d, a * d + b * c


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
        raise node.unsupported(f"frames of {n} elements, {hop} apart; both are fixed ones above 0")
    _check_length(node, n)
    if window is not None and tuple(window.shape) != (n,):
        raise node.invalid(f"a window of shape {tuple(window.shape)} for frames of {n}")
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
    return _stacked(_transformed(cut, n, bins, False, 2))


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
        raise node.unsupported(f"a window of the size {n}; give it a fixed one")
    bounded([n])
    period = n if node.flag("periodic") else n - 1
    if n == 1 and period == 0:
        return _as(node, np.ones(1))  # the middle of a window
    return _as(node, _WINDOWS[node.op_type](np.arange(n), max(period, 1)))


def _as(node: Node, values: np.ndarray) -> np.ndarray:
    """Numbers in the dtype that the node says."""
    return np.asarray(tensor(values).astype(node.dtype("output_datatype")).numpy())


@converter("MelWeightMatrix", since=17, known=(0, 1, 2, 3, 4))
def mel_weight_matrix(
    node: Node, bins: Value, length: Value, rate: Value, low: Value, high: Value
) -> np.ndarray:
    """Triangles, evenly apart on the mel scale, over the frequencies of a spectrum."""
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
        raise node.invalid(f"{count} bins from {edges[0]} to {edges[1]} Hz of {frequencies}")
    made = np.zeros((frequencies, count))
    for i, (begin, centre, end) in enumerate(zip(places, places[1:], places[2:], strict=False)):
        up, down = np.arange(begin, centre + 1), np.arange(centre, end)
        made[up, i] = 1 if begin == centre else (up - begin) / (centre - begin)
        if end > centre:
            made[down, i] = (end - down) / (end - centre)
    return _as(node, made)
