"""Fetcher, which makes batches from a dataset's items, in the process or thread that calls it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import rng
from .collate import collated, default_collate
from .dataset import IterableDataset, has_batches

# Uses of a pass's seed: the order, random numbers within a batch, and the workers' seeds.
ORDER, WITHIN, WORKERS = 0, 1, 2

Seed = tuple[int, ...]


class End:
    """Returned (the class itself) in place of a batch when a stream has ended."""


class Fetcher:
    """Makes batches from `dataset` with `collate_fn`, or returns items if `is_batched` is false. A
    batch of a stream is the next `batch_size` items.

    The numbers that the dataset draws from needle's generator depend only on the seed of the pass
    and the number of the batch.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        is_batched: bool,
        batch_size: int | None,
        drop_last: bool,
    ) -> None:
        self.dataset, self.collate_fn, self.is_batched = dataset, collate_fn, is_batched
        self.batch_size, self.drop_last = batch_size, drop_last
        self._stream: Iterator[Any] | None = None

    def __call__(self, seed: Seed, number: int, indices: Any, begins: bool = False) -> Any:
        """Return batch `number` of the pass with this seed. `begins` restarts a stream first."""
        if begins:
            self._stream = None
        with rng.using(np.random.default_rng((*seed, WITHIN, number))):
            if isinstance(self.dataset, IterableDataset):
                items = self._next()
                return End if items is End else self._collated(items)
            if not self.is_batched:
                return self._collated(self.dataset[indices])
            if self.collate_fn is default_collate and has_batches(self.dataset):
                batch = self.dataset.batch(np.asarray(indices))
                return list(batch) if type(batch) is tuple else batch
            if hasattr(self.dataset, "__getitems__"):
                return self._collated(self.dataset.__getitems__(indices))
            return self._collated([self.dataset[i] for i in indices])

    def _next(self) -> Any:
        """Return the items of the next batch of the stream, or End."""
        if self._stream is None:
            self._stream = iter(self.dataset)
        if not self.is_batched:
            return next(self._stream, End)
        items = list(itertools.islice(self._stream, self.batch_size))
        wanted = self.batch_size if self.drop_last else 1
        return End if len(items) < (wanted or 1) else items

    def _collated(self, items: Any) -> Any:
        # Worker processes send arrays; the loader converts them to Tensors.
        if self.collate_fn is default_collate:
            return collated(items, lambda x: x)
        return self.collate_fn(items)
