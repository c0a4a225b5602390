"""DataLoader: a dataset in batches."""

from __future__ import annotations

from collections.abc import Iterator
from operator import index as as_int

import numpy as np

from .. import rng
from ..autograd import Tensor
from ..backend_ndarray import Device
from .dataset import Dataset


class DataLoader:
    """Iterates over `dataset` in batches: tuples of Tensors that require no gradient.

    With `shuffle` each pass has an order of its own; with a `seed` too the orders are the same in
    every run. The last batch may be smaller unless `drop_last`. ValueError for a batch size
    below 1.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int | None = None,
        drop_last: bool = False,
        device: Device | None = None,
    ) -> None:
        if as_int(batch_size) < 1:
            raise ValueError(f"DataLoader: batch_size {batch_size} is below 1")
        self.dataset = dataset
        self.batch_size = as_int(batch_size)
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.device = device
        self.epoch = 0  # passes begun; with the seed it decides the order of the next

    def __len__(self) -> int:
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        count = len(self.dataset)
        if not self.shuffle:
            order = np.arange(count)
        elif self.seed is None:
            order = rng.permutation(count)
        else:
            order = np.random.default_rng((self.seed, self.epoch)).permutation(count)
        self.epoch += 1
        return self._batches(order)

    def _batches(self, order: np.ndarray) -> Iterator[tuple[Tensor, ...]]:
        for i in range(len(self)):
            chosen = order[i * self.batch_size : (i + 1) * self.batch_size]
            yield tuple(
                Tensor(column, device=self.device, requires_grad=False)
                for column in self.dataset.batch(chosen)
            )
