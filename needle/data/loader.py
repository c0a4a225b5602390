"""DataLoader: a dataset in batches."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from operator import index as as_int
from typing import Any

import numpy as np

from .. import rng
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import count
from ..backend_ndarray.ndarray import as_device
from .dataset import Dataset

_SEEDS = 2**63
_AHEAD = 2  # batches each worker prepares before they are asked for
# Uses of a pass's seed: the order, and the random numbers within each batch.
_ORDER, _WITHIN = 0, 1


@dataclass
class _Pass:
    """One pass over the dataset: its random state, and the number of batches it has returned."""

    seed: tuple[int, ...]
    handed_out: int = 0


class DataLoader:
    """Iterates over `dataset` in batches of `batch_size` items (None: 1): tuples of Tensors on
    `device` (None: the CPU) that require no gradient.

    With `shuffle` each pass has its own order; with a `seed` as well, the orders and the numbers
    that transforms draw are the same in every run. The last batch may be smaller unless
    `drop_last`. `workers` threads prepare batches ahead; their number changes neither the batches
    nor their order. `state_dict` and `load_state_dict` carry the position over to another run.
    ValueError for a batch size below 1, a negative seed or number of workers; TypeError for a value
    that is not an integer.

    >>> dataset = ndl.data.NDArrayDataset(np.zeros((10, 3), "float32"), np.arange(10))
    >>> loader = ndl.data.DataLoader(dataset, batch_size=4, shuffle=True, seed=0)
    >>> [x.shape for x, y in loader]
    [(4, 3), (4, 3), (2, 3)]
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | None = 1,
        shuffle: bool = False,
        *,
        seed: int | None = None,
        drop_last: bool = False,
        workers: int = 0,
        device: DeviceLike | None = None,
    ) -> None:
        if not hasattr(dataset, "batch"):
            raise TypeError(f"DataLoader: dataset is a {type(dataset).__name__}, not a Dataset")
        self.dataset = dataset
        self.batch_size = count("DataLoader", "batch_size", 1 if batch_size is None else batch_size)
        self.shuffle = shuffle
        self.seed = None if seed is None else count("DataLoader", "seed", seed, 0)
        self.drop_last = drop_last
        self.workers = count("DataLoader", "workers", workers, 0)
        self.device = None if device is None else as_device(device)
        self.epoch = 0  # passes begun; with the seed it determines the next order
        self._pass: _Pass | None = None  # the last pass begun
        self._resumes = False  # whether the next pass continues it

    def __len__(self) -> int:
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __repr__(self) -> str:
        try:
            size = f"{len(self):,} batches"
        except NotImplementedError:  # of the dataset's __len__
            size = "no length"
        set_here = {"seed": self.seed, "device": self.device}
        options: dict[str, Any] = {"batch_size": self.batch_size, "shuffle": self.shuffle}
        options |= {"drop_last": self.drop_last, "workers": self.workers}
        options |= {name: value for name, value in set_here.items() if value is not None}
        given = ", ".join(f"{name}={value}" for name, value in options.items())
        return f"DataLoader({self.dataset!r}, {given}: {size})"

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        if self._resumes and self._pass is not None:
            current = self._pass
        else:
            if self.seed is None:
                seed: tuple[int, ...] = (int(rng.integers((), 0, _SEEDS)),)
            else:
                seed = (as_int(self.seed), self.epoch)
            current = self._pass = _Pass(seed)
            self.epoch += 1
        self._resumes = False
        return self._batches(current)

    def state_dict(self) -> dict[str, Any]:
        """The position of the last pass as JSON values; returned batches count as used."""
        if self._pass is None:
            return {"epoch": self.epoch, "pass": None}
        now = {"seed": list(self._pass.seed), "batches": self._pass.handed_out}
        return {"epoch": self.epoch, "pass": now}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue the next pass where `state_dict` was called (a finished pass is not repeated).

        ValueError if `values` are not such a state, or one of a loader with fewer batches.
        """
        try:
            epoch, now = as_int(values["epoch"]), values["pass"]
            current = None
            if now is not None:
                current = _Pass(tuple(as_int(n) for n in now["seed"]), as_int(now["batches"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"DataLoader: not the state of a loader: {error!r}") from None
        if current is not None and not 0 <= current.handed_out <= len(self):
            raise ValueError(
                f"DataLoader: the state is {current.handed_out} batches into a pass, which has "
                f"{len(self)} here"
            )
        self.epoch, self._pass = epoch, current
        self._resumes = current is not None and current.handed_out < len(self)

    def _batches(self, current: _Pass) -> Iterator[tuple[Tensor, ...]]:
        count = len(self.dataset)
        order = np.arange(count)
        if self.shuffle:
            order = np.random.default_rng((*current.seed, _ORDER)).permutation(count)

        def fetch(number: int) -> tuple[Any, ...]:
            chosen = order[number * self.batch_size : (number + 1) * self.batch_size]
            within = np.random.default_rng((*current.seed, _WITHIN, number))
            with rng.using(within):
                return self.dataset.batch(chosen)

        numbers = range(current.handed_out, len(self))
        prepared = _ahead(fetch, numbers, self.workers) if self.workers else map(fetch, numbers)
        for columns in prepared:
            current.handed_out += 1
            yield tuple(
                Tensor(column, device=self.device, requires_grad=False) for column in columns
            )


def _ahead(fetch: Any, numbers: range, workers: int) -> Iterator[Any]:
    """fetch(number) for each number, in order, prepared by threads."""
    with contextlib.ExitStack() as stack:
        pool = ThreadPoolExecutor(workers, thread_name_prefix="needle-data")
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        waiting: deque[Future[Any]] = deque()
        for number in numbers:
            waiting.append(pool.submit(fetch, number))
            if len(waiting) > workers * _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
