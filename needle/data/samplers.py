"""Samplers: the order in which a DataLoader reads the items of a dataset.

A sampler without a `generator` (a np.random.Generator) draws from needle's generator (see
needle.rng). A DataLoader uses a new generator for each pass, so a position that it saves also
restores the samplers' order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from .. import rng
from ..backend_ndarray.arguments import count, flag


def drawing_from(generator: np.random.Generator | None) -> AbstractContextManager[None]:
    """Return a context in which needle.rng draws from `generator`, unless that is None."""
    return nullcontext() if generator is None else rng.using(generator)


def checked_generator(owner: str, generator: Any) -> Any:
    """Return `generator`. Raises TypeError unless it is None or a np.random.Generator."""
    if generator is None or isinstance(generator, np.random.Generator):
        return generator
    kind = type(generator).__name__
    raise TypeError(f"{owner}: generator is a {kind}, not a np.random.Generator")


class Sampler:
    """Base class of samplers: define `__iter__`, which yields indices, and `__len__` if their
    number is known."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} defines no __iter__")


class SequentialSampler(Sampler):
    """The indices of `data_source` in order."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """`num_samples` (None: all) indices of `data_source` in random order, drawn from `generator`.

    With `replacement`, each index is drawn from all indices. Without it, the indices are permuted
    again whenever all have been drawn. Raises TypeError unless `num_samples` is an integer, and
    ValueError if it is below 1.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: np.random.Generator | None = None,
    ) -> None:
        self.data_source = data_source
        self.replacement = flag("RandomSampler", "replacement", replacement)
        if num_samples is not None:
            num_samples = count("RandomSampler", "num_samples", num_samples)
        self._num_samples = num_samples
        self.generator = checked_generator("RandomSampler", generator)

    @property
    def num_samples(self) -> int:
        """The number of indices in a pass."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        size, left = len(self.data_source), self.num_samples
        while size and left:
            with drawing_from(self.generator):
                drawn = (
                    rng.integers((left,), 0, size) if self.replacement else rng.permutation(size)
                )
            yield from drawn[:left].tolist()
            left -= min(left, len(drawn))

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """The elements of `indices` in random order, drawn from `generator`."""

    def __init__(
        self, indices: Sequence[Any], generator: np.random.Generator | None = None
    ) -> None:
        self.indices = indices
        self.generator = checked_generator("SubsetRandomSampler", generator)

    def __iter__(self) -> Iterator[Any]:
        with drawing_from(self.generator):
            order = rng.permutation(len(self.indices)).tolist()
        return (self.indices[i] for i in order)

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """`num_samples` indices of `weights`, each drawn from `generator` with a probability
    proportional to its weight; without `replacement`, no index is drawn twice.

    `num_samples` must be an integer of at least 1. The weights must form one axis of finite numbers
    of at least 0, and their sum must be positive. Without replacement, at least `num_samples`
    weights must be positive. Raises TypeError or ValueError otherwise.
    """

    def __init__(
        self,
        weights: Any,
        num_samples: int,
        replacement: bool = True,
        generator: np.random.Generator | None = None,
    ) -> None:
        name = type(self).__name__
        self.num_samples = count(name, "num_samples", num_samples)
        self.replacement = flag(name, "replacement", replacement)
        self.weights = np.asarray(weights, np.float64)
        if self.weights.ndim != 1:
            raise ValueError(f"{name}: weights have shape {self.weights.shape}, not one axis")
        if not np.isfinite(self.weights).all() or (self.weights < 0).any():
            raise ValueError(f"{name}: weights contain an infinity, NaN or a number below 0")
        positive = int((self.weights > 0).sum())
        if not positive:
            raise ValueError(f"{name}: the sum of the weights is not above 0")
        if not self.replacement and positive < self.num_samples:
            raise ValueError(
                f"{name}: {self.num_samples} samples without replacement need as many positive "
                f"weights; there are {positive}"
            )
        self.generator = checked_generator(name, generator)

    def __iter__(self) -> Iterator[int]:
        with drawing_from(self.generator):
            if self.replacement:
                limits = np.cumsum(self.weights)
                points = rng.uniform((self.num_samples,), 0.0, 1.0) * limits[-1]
                # A product may round up to limits[-1]; the search would then return an index after
                # the last positive weight.
                last = int(np.flatnonzero(self.weights)[-1])
                drawn = np.minimum(np.searchsorted(limits, points, side="right"), last)
            else:
                # Sort by exponential arrival times with the rates `weights` (Efraimidis and
                # Spirakis 2006, "Weighted random sampling with a reservoir").
                waits = -np.log1p(-rng.uniform(self.weights.shape, 0.0, 1.0))
                with np.errstate(divide="ignore", invalid="ignore"):
                    times = np.where(self.weights > 0, waits / self.weights, np.inf)
                drawn = np.argsort(times, kind="stable")[: self.num_samples]
        return iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of `batch_size` indices from `sampler`, any iterable; the last list may be shorter
    unless `drop_last`. Raises TypeError unless the batch size is an integer, and ValueError if it
    is below 1.

    >>> list(ndl.data.BatchSampler(range(5), batch_size=2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        self.sampler = sampler
        self.batch_size = count("BatchSampler", "batch_size", batch_size)
        self.drop_last = flag("BatchSampler", "drop_last", drop_last)

    def __iter__(self) -> Iterator[list[Any]]:
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) < self.batch_size and self.drop_last:
                return
            yield batch

    def __len__(self) -> int:
        sampler: Any = self.sampler
        return batches_of(len(sampler), self.batch_size, self.drop_last)


def batches_of(items: int, batch_size: int, drop_last: bool) -> int:
    """Return the number of batches into which `items` items are divided."""
    whole, rest = divmod(items, batch_size)
    return whole + (rest > 0 and not drop_last)
