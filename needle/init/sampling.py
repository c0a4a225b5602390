"""Tensors of random integers, and random choices.

The numbers are drawn eagerly; drawing while tracing raises TraceError.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import rng
from ..autograd.shapes import as_shape, broadcast_shapes
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import count, not_negative
from ..errors import ShapeError
from ..ops._values import check_within
from .basic import rand, randn


def randint(
    low: int,
    high: Any = None,
    shape: Any = None,
    device: DeviceLike | None = None,
    dtype: str = "int64",
) -> Tensor:
    """Return integers from `low` to high - 1, all equally likely. As in PyTorch, the call is
    randint(low, high, shape), or randint(high, shape) if low is 0. Raises ValueError unless low <
    high."""
    if shape is None:
        low, high, shape = 0, low, high
    extents = as_shape("randint", shape)
    low, high = int(low), int(high)
    if low >= high:
        raise ValueError(f"randint: there is no integer from {low} to {high - 1}")
    return Tensor(rng.integers(extents, low, high), device=device, dtype=dtype, requires_grad=False)


def randperm(n: int, device: DeviceLike | None = None, dtype: str = "int64") -> Tensor:
    """Return 0..n - 1 in random order."""
    n = count("randperm", "n", n, 0)
    return Tensor(rng.permutation(n), device=device, dtype=dtype, requires_grad=False)


def bernoulli(p: Tensor) -> Tensor:
    """Return a tensor like `p` in which each element is 1 with the probability at its position in
    p, else 0. No gradient flows back. Raises ValueError for a probability outside 0..1."""
    if not isinstance(p, Tensor):
        raise TypeError(f"bernoulli: p is a {type(p).__name__}, not a Tensor")
    drawn = rng.uniform(p.shape, 0.0, 1.0)
    chances = p.numpy().astype(np.float64)
    if not ((chances >= 0) & (chances <= 1)).all():
        wrong = chances[~((chances >= 0) & (chances <= 1))][0]
        raise ValueError(f"bernoulli: p has {wrong:g}, which is not a probability in [0, 1]")
    return Tensor(drawn < chances, device=p.device, dtype=p.dtype, requires_grad=False)


def multinomial(weights: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
    """Return `num_samples` positions (int64) for each row of `weights` (a vector, or a matrix of
    rows), drawn with probabilities proportional to the weights. Without `replacement`, the
    positions for a row are distinct. No gradient flows back.

    Raises ValueError if a weight is negative or not finite, if all weights of a row are 0, or if,
    without replacement, a row has fewer than `num_samples` weights above 0.
    """
    if not isinstance(weights, Tensor):
        raise TypeError(f"multinomial: weights are a {type(weights).__name__}, not a Tensor")
    if weights.ndim not in (1, 2):
        raise ShapeError(f"multinomial: weights have shape {weights.shape}, not (n,) or (rows, n)")
    number = count("multinomial", "num_samples", num_samples, 1)
    rows = weights.shape[:-1]
    drawn = rng.uniform((*rows, number if replacement else weights.shape[-1]), 0.0, 1.0)
    w = weights.numpy().astype(np.float64)
    if not (np.isfinite(w).all() and (w >= 0).all() and (w.sum(-1) > 0).all()):
        raise ValueError(
            f"multinomial: the least weight is {w.min():g}, the least sum of a row "
            f"{w.sum(-1).min():g}; weights must be finite, not negative, and not all 0 in a row"
        )
    if replacement:
        below = np.cumsum(w, -1)
        ends = below[..., None, :] / below[..., None, -1:]
        chosen = (drawn[..., None] >= ends).sum(-1)
    else:
        if ((w > 0).sum(-1) < number).any():
            raise ValueError(f"multinomial: a row has fewer than {number} weights above 0")
        # Choose the shortest exponential waiting times with the rates w (Efraimidis and Spirakis).
        with np.errstate(divide="ignore"):
            waits = -np.log1p(-drawn) / w
        waits[w == 0] = np.inf
        chosen = np.argsort(waits, -1, kind="stable")[..., :number]
    return Tensor(chosen.astype(np.int64), device=weights.device, requires_grad=False)


def rand_like(array: Tensor, **options: Any) -> Tensor:
    """Return `rand` with the shape, dtype and device of `array`; `options` are as in rand."""
    return rand(array.shape, **{"device": array.device, "dtype": array.dtype, **options})


def randn_like(array: Tensor, **options: Any) -> Tensor:
    """Return `randn` with the shape, dtype and device of `array`; `options` are as in randn."""
    return randn(array.shape, **{"device": array.device, "dtype": array.dtype, **options})


def normal(mean: Tensor | float, std: Tensor | float, shape: Any = None) -> Tensor:
    """Return normally distributed numbers with the mean `mean` and the standard deviation `std`.
    Each is a number or a tensor with one element per result; they broadcast. If both are numbers,
    `shape` is the shape of the result. No gradient flows back. Raises ValueError for a negative
    std, and ShapeError for tensors that do not broadcast.

    >>> ndl.normal(ndl.zeros(3), 0.1).shape, ndl.normal(0.0, 1.0, (2,)).shape
    ((3,), (2,))
    """
    tensors = [x for x in (mean, std) if isinstance(x, Tensor)]
    if isinstance(std, Tensor):
        check_within("normal", "std", std, 0, float("inf"))
    else:
        not_negative("normal", "std", std)
    if not isinstance(mean, Tensor) and not isinstance(std, Tensor):
        return randn(*as_shape("normal", () if shape is None else shape), mean=mean, std=std)
    if shape is not None:
        raise TypeError("normal: give shape only if mean and std are numbers")
    extents = broadcast_shapes("normal", *[x.shape for x in tensors])
    drawn = randn(*extents, device=tensors[0].device, dtype=tensors[0].dtype)
    return (drawn * std + mean).detach()
