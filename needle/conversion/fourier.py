"""Fourier transforms by matrix products, with separate real and imaginary parts."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from .. import ops
from ..autograd.tensor import Tensor, make_const
from ..sizes.dims import Expression
from .node import NamedNode

_LONGEST = 512  # the longest transform that is a single matrix product
_LARGEST_PRIME = 4096  # the largest prime factor allowed; its transform is one matrix product

Parts = tuple[Tensor, Tensor | None]  # the real and the imaginary part; None stands for 0


def check_length(node: NamedNode, n: int) -> None:
    """Raise UnsupportedError for a length with a prime factor whose matrix would be too large."""
    rest, factor = n, 2
    while factor * factor <= rest:
        rest, factor = (rest // factor, factor) if rest % factor == 0 else (rest, factor + 1)
    if rest > _LARGEST_PRIME:
        raise node.unsupported(
            f"a transform of {n}, which has the prime factor {rest}; the largest is "
            f"{_LARGEST_PRIME}"
        )


def fitted(x: Tensor | None, n: int) -> Any:
    """Return `x` cut, or padded with zeros at the end, to n elements along its last axis."""
    if x is None:
        return None
    given = x.shape[-1]
    if isinstance(given, Expression):
        raise ValueError(f"a signal whose size {given} is a dim cannot be cut or extended to {n}")
    if given > n:
        return x[..., :n]
    return x if given == n else ops.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, n - given),))


def whole(parts: Any, n: int) -> Parts:
    """Return all n frequencies of a real signal, given the first n // 2 + 1. The others are their
    conjugates."""
    rest = (n + 1) // 2  # the first conjugate belongs to frequency rest - 1
    if rest < 2:
        return parts
    both: list[Any] = [
        None
        if part is None
        else ops.concat([part, ops.mul_scalar(_mirrored(part, rest), sign)], -1)
        for part, sign in zip(parts, (1.0, -1.0), strict=True)
    ]
    return both[0], both[1]


def _mirrored(x: Tensor, rest: int) -> Tensor:
    return ops.flip(x[..., 1:rest], -1)


def transformed(x: Any, n: int, bins: int, inverse: bool, parts: int) -> Parts:
    """Return the first `bins` frequencies of signals of n elements along the last axis, or, with
    `inverse`, the signals that have the given frequencies. With `parts` 1, return only the real
    part."""
    made = _forward(x, n, bins, inverse, parts)
    if not inverse:
        return made
    real, imaginary = made
    return ops.mul_scalar(real, 1 / n), None if imaginary is None else ops.mul_scalar(
        imaginary, 1 / n
    )


def signal_of_half(parts: Any, n: int) -> Tensor:
    """Return n times the real signal of n elements whose first n // 2 + 1 frequencies are `parts`.
    The imaginary part of the first frequency counts as 0; so does the imaginary part of the last
    frequency if n is even."""
    if n > _LONGEST:
        return _forward(whole(parts, n), n, n, True, 1)[0]
    bins = n // 2 + 1
    times = np.where((np.arange(bins) * 2) % n == 0, 1.0, 2.0)[:, None]
    steps = np.outer(np.arange(bins), np.arange(n)) % n
    cosines, sines = (times * turns for turns in _turns(steps, n, True))
    return _by_matrices(parts, cosines, sines, 1)[0]


def _forward(x: Any, n: int, bins: int, conjugate: bool, parts: int) -> Parts:
    """Return the transform without its scale. It is one matrix product or, if the signal is long
    and its length n is not prime, a combination of transforms of two lengths whose product is n
    (Cooley and Tukey 1965)."""
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
    """Return the greatest factor of n that is at most the square root of n; 1 for a prime."""
    return next(i for i in range(math.isqrt(n), 0, -1) if n % i == 0)


@functools.lru_cache(maxsize=16)
def _waves(n: int, bins: int, conjugate: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the real and imaginary parts (n, bins) of exp(-2 pi i t k / n) or of its conjugate."""
    return _turns(np.outer(np.arange(n), np.arange(bins)) % n, n, conjugate)


@functools.lru_cache(maxsize=16)
def _twiddles(m: int, bins: int, n: int, conjugate: bool) -> tuple[np.ndarray, np.ndarray]:
    return _turns(np.outer(np.arange(m), np.arange(bins)), n, conjugate)


def _turns(steps: np.ndarray, n: int, conjugate: bool) -> tuple[np.ndarray, np.ndarray]:
    angle = 2 * np.pi / n * steps
    return np.cos(angle), np.sin(angle) if conjugate else -np.sin(angle)


def _by_matrices(x: Any, cosines: np.ndarray, sines: np.ndarray, parts: int) -> Parts:
    real, imaginary = x
    c, s = (make_const(t.astype(real.dtype)) for t in (cosines, sines))
    first, second = ops.matmul(real, c), ops.matmul(real, s) if parts == 2 else None
    if imaginary is not None:
        first = ops.subtract(first, ops.matmul(imaginary, s))
        second = None if second is None else ops.add(second, ops.matmul(imaginary, c))
    return first, second


def _product(a: Tensor, b: Tensor | None, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Return (a + bi) (c + di), element by element."""
    if b is None:
        return a * c, a * d
    return a * c - b * d, a * d + b * c
