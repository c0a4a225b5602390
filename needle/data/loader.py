"""DataLoader: iterates over a dataset in batches."""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import index as as_int
from typing import Any

import numpy as np

from .. import backend_ndarray as nd
from .. import rng
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import count, not_negative
from ..backend_ndarray.ndarray import as_device
from .collate import converted, default_collate, default_convert
from .dataset import IterableDataset
from .fetch import ORDER, End, Fetcher
from .samplers import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    batches_of,
    checked_generator,
)
from .workers import Workers

_SEEDS = 2**63
_AHEAD = 2  # batches that each worker prepares in advance


@dataclass
class _Pass:
    """One pass over the dataset: its random state, the number of batches it has returned, and
    the states of the samplers' generators when it began."""

    seed: tuple[int, ...]
    handed_out: int = 0
    generators: list[Any] = field(default_factory=list)


class DataLoader:
    """Iterates over `dataset`, which has indexed items or is an IterableDataset, in batches of
    `batch_size` items on `device` (None: the CPU). It takes PyTorch's arguments and some more.

    `collate_fn` makes a batch from a list of items (None: `default_collate`). `sampler` yields the
    indices of the items in the order of the pass, or `batch_sampler` yields lists of indices;
    `shuffle` makes the order random. The last batch may be smaller unless `drop_last`. With
    batch_size=None, the loader returns single items, converted by `default_convert`.

    Each pass has its own order. With a `seed`, or a `generator` (a np.random.Generator), the orders
    and the numbers that transforms draw from needle's generator are the same in every run.

    `num_workers` processes prepare `prefetch_factor` batches each (None: 2) and return them in
    shared memory; `workers` threads prepare batches in this process. Neither changes the batches or
    their order. An error in a worker is raised in place of its batch, with the worker's traceback.
    A worker that dies, or returns no batch within `timeout` seconds (0: no limit), causes a
    RuntimeError. `worker_init_fn(id)` runs first in each process. Python's and NumPy's generators
    are seeded from the pass, differently in each process. `multiprocessing_context` is a start
    method or context of multiprocessing (None: its default); only "fork" works with a dataset that
    cannot be pickled. With `persistent_workers`, the same processes serve all passes. `pin_memory`
    has no effect.

    `state_dict` and `load_state_dict` carry the position over to another run. The position includes
    the order of a sampler that draws from needle's generator or from a np.random.Generator in its
    attribute `generator`. To return to a position in a stream, the loader fetches and drops the
    items before it.

    Raises ValueError or TypeError for values out of range and for arguments that exclude each
    other.

    >>> dataset = ndl.data.NDArrayDataset(np.zeros((10, 3), "float32"), np.arange(10))
    >>> loader = ndl.data.DataLoader(dataset, batch_size=4, shuffle=True, seed=0)
    >>> [x.shape for x, y in loader]
    [(4, 3), (4, 3), (2, 3)]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: np.random.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        seed: int | None = None,
        workers: int = 0,
        device: DeviceLike | None = None,
    ) -> None:
        if not hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset):
            raise TypeError(
                f"DataLoader: dataset is a {type(dataset).__name__}, which has no __getitem__ and "
                "is not an IterableDataset"
            )
        self.dataset = dataset
        self.shuffle = bool(shuffle)
        self.seed = None if seed is None else count("DataLoader", "seed", seed, 0)
        self.drop_last = drop_last
        self.workers = count("DataLoader", "workers", workers, 0)
        self.num_workers = count("DataLoader", "num_workers", num_workers, 0)
        self.timeout = not_negative("DataLoader", "timeout", timeout)
        self.generator = checked_generator("DataLoader", generator)
        self.device = None if device is None else as_device(device)
        self.worker_init_fn = worker_init_fn
        self.pin_memory = pin_memory
        self.persistent_workers = persistent_workers
        self._choose_samplers(batch_size, shuffle, sampler, batch_sampler, drop_last)
        self._check_workers(multiprocessing_context, prefetch_factor)
        is_batched = self.batch_sampler is not None or self.batch_size is not None
        self.collate_fn = collate_fn or (default_collate if is_batched else default_convert)
        self.epoch = 0  # the number of passes begun; it and the seed determine the next order
        self._pass: _Pass | None = None  # the last pass begun
        self._resumes = False  # whether the next pass continues `_pass`
        self._kept: Workers | None = None  # persistent workers that no pass is using

    def _choose_samplers(
        self,
        batch_size: int | None,
        shuffle: bool | None,
        sampler: Iterable[Any] | None,
        batch_sampler: Iterable[Any] | None,
        drop_last: bool,
    ) -> None:
        is_stream = isinstance(self.dataset, IterableDataset)
        for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
            if is_stream and value is not None:
                raise ValueError(
                    f"DataLoader: an IterableDataset has its own order; give no {name}"
                )
        if is_stream and shuffle:
            raise ValueError(
                "DataLoader: shuffle=True needs numbered items; shuffle inside the IterableDataset"
            )
        if sampler is not None and shuffle:
            raise ValueError("DataLoader: sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "DataLoader: batch_sampler option is mutually exclusive with batch_size, "
                    "shuffle, sampler, and drop_last"
                )
            batch_size = None
        elif batch_size is None:
            if drop_last:
                raise ValueError(
                    "DataLoader: batch_size=None disables batches and is mutually exclusive with "
                    "drop_last"
                )
        else:
            batch_size = count("DataLoader", "batch_size", batch_size)
        if sampler is None and not is_stream:
            sampler = (RandomSampler if shuffle else SequentialSampler)(self.dataset)
        if sampler is not None and batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, bool(drop_last))
        self.batch_size, self.sampler, self.batch_sampler = batch_size, sampler, batch_sampler

    def _check_workers(self, context: Any, prefetch_factor: int | None) -> None:
        if self.seed is not None and self.generator is not None:
            raise ValueError("DataLoader: give a seed or a generator, not both")
        if self.workers and (self.num_workers or isinstance(self.dataset, IterableDataset)):
            raise ValueError(
                "DataLoader: workers (threads) work neither with num_workers (processes) nor with "
                "an IterableDataset"
            )
        if not self.num_workers:
            for name, value in (
                ("timeout", self.timeout),
                ("prefetch_factor", prefetch_factor),
                ("persistent_workers", self.persistent_workers),
                ("multiprocessing_context", context),
            ):
                if value:
                    raise ValueError(f"DataLoader: {name}={value!r} needs num_workers > 0")
        if prefetch_factor is not None:
            count("DataLoader", "prefetch_factor", prefetch_factor)
        self.prefetch_factor = (prefetch_factor or _AHEAD) if self.num_workers else None
        if context is None or isinstance(context, str):
            known = multiprocessing.get_all_start_methods()
            if context is not None and context not in known:
                raise ValueError(
                    f"DataLoader: multiprocessing_context {context!r} is not one of {known}"
                )
            context = multiprocessing.get_context(context)
        elif not hasattr(context, "Process"):
            raise TypeError(
                f"DataLoader: multiprocessing_context is a {type(context).__name__}, neither a "
                "start method nor a context"
            )
        self.multiprocessing_context = context

    def __len__(self) -> int:
        if isinstance(self.dataset, IterableDataset):
            items = len(self.dataset)
            return batches_of(items, self.batch_size, self.drop_last) if self.batch_size else items
        order: Any = self._order
        return len(order)

    @property
    def _order(self) -> Iterable[Any]:
        """The indices that a pass requests from the dataset, batch after batch."""
        for order in (self.batch_sampler, self.sampler):
            if order is not None:
                return order
        return itertools.repeat(None)  # the next items of a stream

    def __repr__(self) -> str:
        try:
            size = f"{len(self):,} batches"
        except (NotImplementedError, TypeError):  # from the dataset's or the sampler's __len__
            size = "no length"
        own = not isinstance(self.sampler, (RandomSampler, SequentialSampler, type(None)))
        custom: dict[str, Any] = {"sampler": self.sampler if own else None}
        if not isinstance(self.batch_sampler, BatchSampler):
            custom["batch_sampler"] = self.batch_sampler
        if self.collate_fn not in (default_collate, default_convert):
            custom["collate_fn"] = self.collate_fn
        options: dict[str, Any] = {"batch_size": self.batch_size, "shuffle": self.shuffle}
        options |= {"drop_last": self.drop_last, "num_workers": self.num_workers}
        options |= {"workers": self.workers or None, "seed": self.seed, "device": self.device}
        options |= custom
        always = ("batch_size", "shuffle", "drop_last", "num_workers")
        given = ", ".join(f"{k}={v}" for k, v in options.items() if v is not None or k in always)
        return f"DataLoader({self.dataset!r}, {given}: {size})"

    def __iter__(self) -> Iterator[Any]:
        if self._resumes and self._pass is not None:
            current = self._pass
            for generator, saved in zip(self._generators, current.generators, strict=False):
                generator.bit_generator.state = saved
        else:
            if self.seed is not None:
                seed: tuple[int, ...] = (as_int(self.seed), self.epoch)
            elif self.generator is not None:
                seed = (int(self.generator.integers(_SEEDS)),)
            else:
                seed = (int(rng.integers((), 0, _SEEDS)),)
            current = self._pass = _Pass(seed, generators=self._states())
            self.epoch += 1
        self._resumes = False
        return self._batches(current)

    @property
    def _generators(self) -> list[np.random.Generator]:
        """The generators of the loader and its samplers, without duplicates."""
        owners = (
            self,
            self.batch_sampler,
            self.sampler,
            getattr(self.batch_sampler, "sampler", None),
        )
        found = {id(g): g for g in (getattr(owner, "generator", None) for owner in owners)}
        return [g for g in found.values() if isinstance(g, np.random.Generator)]

    def _states(self) -> list[Any]:
        return [_jsonable(generator.bit_generator.state) for generator in self._generators]

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the latest pass as JSON values. All batches returned so far count
        as used."""
        current = self._pass
        now = None
        states = self._states()
        if current is not None:
            now = {"seed": list(current.seed), "batches": current.handed_out}
            if not self._is_over(current):
                states = current.generators
        return {"epoch": self.epoch, "pass": now} | ({"generators": states} if states else {})

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Make the next pass continue from where `state_dict` was called. A finished pass is not
        repeated.

        Raises ValueError if `values` are not such a state, if its position is beyond this loader's
        last batch, or if its generators are of other kinds than this loader's.
        """
        try:
            epoch, now = as_int(values["epoch"]), values["pass"]
            current, states = None, list(values.get("generators", ()))
            if now is not None:
                seed = tuple(as_int(n) for n in now["seed"])
                current = _Pass(seed, as_int(now["batches"]), states)
            kinds = [state["bit_generator"] for state in states]
        except (KeyError, TypeError) as error:
            raise ValueError(f"DataLoader: the state is not a loader's: {error!r}") from None
        if current is not None and not 0 <= current.handed_out <= self._length():
            raise ValueError(
                f"DataLoader: the state is {current.handed_out} batches into a pass, but a pass "
                f"has {len(self)} here"
            )
        here = [type(generator.bit_generator).__name__ for generator in self._generators]
        if kinds != here:
            raise ValueError(
                f"DataLoader: the state has generators {kinds}, but this loader has {here}"
            )
        for generator, saved in zip(self._generators, states, strict=True):
            generator.bit_generator.state = saved
        self.epoch, self._pass = epoch, current
        self._resumes = current is not None and not self._is_over(current)

    def _length(self) -> float:
        try:
            return len(self)
        except TypeError:  # from a stream or sampler without a length
            return math.inf

    def _is_over(self, current: _Pass) -> bool:
        return current.handed_out >= self._length()

    def _batches(self, current: _Pass) -> Iterator[Any]:
        is_batched = self.batch_sampler is not None or self.batch_size is not None
        fetch = Fetcher(self.dataset, self.collate_fn, is_batched, self.batch_size, self.drop_last)
        tasks: Iterator[tuple[int, Any]] = enumerate(self._ordered(current.seed))
        skipped = current.handed_out
        if self.sampler is not None or self.batch_sampler is not None:
            tasks, skipped = itertools.islice(tasks, skipped, None), 0
        with contextlib.closing(self._fetched(fetch, current.seed, tasks)) as prepared:
            for batch in itertools.islice(prepared, skipped, None):
                current.handed_out += 1
                yield self._finished(batch)

    def _ordered(self, seed: tuple[int, ...]) -> Iterator[Any]:
        """Yield the indices of each batch. Samplers draw from the pass's own generator."""
        own, end = np.random.default_rng((*seed, ORDER)), object()
        with rng.using(own):
            order = iter(self._order)
        while True:
            with rng.using(own):
                indices = next(order, end)
            if indices is end:
                return
            yield indices

    def _fetched(
        self, fetch: Fetcher, seed: tuple[int, ...], tasks: Iterator[tuple[int, Any]]
    ) -> Generator[Any, None, None]:
        if self.num_workers:
            yield from self._by_processes(fetch, seed, tasks)
        elif self.workers:
            yield from _by_threads(lambda task: fetch(seed, *task), tasks, self.workers)
        else:
            for number, indices in tasks:
                batch = fetch(seed, number, indices)
                if batch is End:
                    return
                yield batch

    def _by_processes(
        self, fetch: Fetcher, seed: tuple[int, ...], tasks: Iterator[tuple[int, Any]]
    ) -> Iterator[Any]:
        pool, self._kept = self._kept, None
        if pool is None or not pool.are_alive():
            pool = Workers(
                fetch,
                self.num_workers,
                self.prefetch_factor or _AHEAD,
                seed,
                self.worker_init_fn,
                self.multiprocessing_context,
                self.timeout,
            )
        try:
            yield from pool.batches(seed, tasks)
        except GeneratorExit:
            self._end(pool)
            raise
        except BaseException:
            pool.close()
            raise
        self._end(pool)

    def _end(self, pool: Workers) -> None:
        """Stop the workers, or keep them for the next pass."""
        if self.persistent_workers and self._kept is None:
            pool.drop_waiting()
            if pool.are_alive():
                self._kept = pool
                return
        pool.close()

    def _finished(self, batch: Any) -> Any:
        """Return the batch as Tensors on the loader's device. In a batch from a user's collate_fn,
        only Tensors are moved."""
        if self.collate_fn in (default_collate, default_convert):
            return converted(batch, self._tensor, tuple)
        if self.device is None:
            return batch
        return converted(batch, lambda x: self._tensor(x) if isinstance(x, Tensor) else x, tuple)

    def _tensor(self, x: Any) -> Tensor:
        if isinstance(x, Tensor):
            return x if self.device is None else x.to(self.device)
        if self.num_workers and isinstance(x, np.ndarray) and x.dtype.isbuiltin == 1:
            x = nd.from_dlpack(x)  # no copy: x was already copied out of shared memory
        return Tensor(x, device=self.device, requires_grad=False)


def _jsonable(state: Any) -> Any:
    """Return `state`, the state of a bit generator, with lists in place of arrays."""
    if isinstance(state, Mapping):
        return {key: _jsonable(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


def _by_threads(fetch: Any, tasks: Iterator[Any], workers: int) -> Iterator[Any]:
    """Yield fetch(task) for each task, in order. Threads prepare the results in advance."""
    with contextlib.ExitStack() as stack:
        pool = ThreadPoolExecutor(workers, thread_name_prefix="needle-data")
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        waiting: deque[Future[Any]] = deque()
        for task in tasks:
            waiting.append(pool.submit(fetch, task))
            if len(waiting) > workers * _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
