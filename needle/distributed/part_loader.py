"""A DataLoader that yields one rank's rows of each batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .. import rng
from ..data import DataLoader


class PartLoader(DataLoader):
    """A loader that yields this rank's rows of each batch of `loader`."""

    def __init__(self, loader: DataLoader, group: Any) -> None:
        vars(self).update(vars(loader))
        self._group = group
        self._sizes: list[int] = []  # sizes of the latest pass's whole batches

    def _ordered(self, seed: tuple[int, ...]) -> Iterator[Any]:
        sizes = self._sizes
        for indices in super()._ordered(seed):
            sizes.append(len(indices))
            rows, _ = self._part(len(indices))
            yield indices[rows.first : rows.end]

    def _part(self, total: int) -> tuple[rng.Rows, float]:
        """Return this rank's rows of a batch, and their weight in a mean over the batch.

        A rank without rows gets the last row, with weight 0.
        """
        rank, size = self._group.rank, self._group.size
        first, end = total * rank // size, total * (rank + 1) // size
        if first == end:
            return rng.Rows(total - 1, total, total), 0.0
        return rng.Rows(first, end, total), (end - first) / total

    def _fetched(self, fetch: Any, seed: tuple[int, ...], tasks: Any) -> Any:
        return super()._fetched(fetch, (*seed, *[self._group.rank] * (self._group.rank > 0)), tasks)

    def _batches(self, current: Any) -> Iterator[Any]:
        group, sizes = self._group, list[int]()
        self._sizes = sizes
        before, rows = (rng.rows, group._weight, group._at), rng.rows
        whole: Any = super()._batches(current)
        with contextlib.closing(whole) as batches:
            try:
                for batch in batches:
                    number = current.handed_out
                    rows, group._weight = self._part(sizes[number - 1])
                    group._at = f" at batch {number} of pass {self.epoch} ({rows.total} rows)"
                    rng.rows = rows
                    yield batch
            finally:
                if rng.rows is rows:
                    rng.rows, group._weight, group._at = before
