"""Datasets: collections of indexed items, or streams of items."""

from __future__ import annotations

import bisect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from .. import rng
from ..autograd.tensor import Tensor, make_const
from ..backend_ndarray.arguments import count
from ..backend_ndarray.masked import as_numpy, refuse_masked
from .collate import collated
from .samplers import checked_generator, drawing_from

Array = np.ndarray[Any, Any]
Transform = Callable[[Any], Any]


class Dataset:
    """Base class of all datasets. Define `__len__` and `__getitem__`, which returns one item: an
    array, a Tensor or a number, or a tuple, list or dict of these. A DataLoader accepts any object
    with both methods.

    A dataset that can build a whole batch faster than item by item may also define
    `batch(indices)`. Datasets apply `transforms`, by `apply_transforms`, to the first array of an
    item.
    """

    def __init__(self, transforms: Sequence[Transform] | None = None) -> None:
        self.transforms = transforms

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} defines no __getitem__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} defines no __len__")

    def __repr__(self) -> str:
        try:
            size = f"{len(self):,} items"
        except (NotImplementedError, AttributeError):  # AttributeError: during __init__
            size = "no length"
        about = f", {self.extra_repr()}" if self.extra_repr() else ""
        transforms = getattr(self, "transforms", None)
        applied = f", transforms={list(transforms)}" if transforms else ""
        return f"{type(self).__name__}({size}{about}{applied})"

    def extra_repr(self) -> str:
        """Return the text that `repr` shows besides the length and the transforms."""
        return ""

    def apply_transforms(self, x: Any) -> Any:
        """Apply every transform to x. Raises TypeError if one returns a masked array."""
        for transform in self.transforms or ():
            x = transform(x)
        refuse_masked(x, type(self).__name__)  # np.stack drops masks silently
        return x

    def batch(self, indices: Array) -> Any:
        """Return the items at the array `indices` as one batch of arrays (see
        `default_collate`)."""
        return collated([self[i] for i in indices.tolist()], lambda x: x)

    def __add__(self, other: Any) -> ConcatDataset:
        return ConcatDataset([self, other])


def has_batches(dataset: Any) -> bool:
    """Return whether `dataset` has a `batch` that fits its `__getitem__`: the class that defines
    `batch` also defines `__getitem__` or derives from the class that does."""
    for cls in type(dataset).__mro__:
        if "batch" in vars(cls):
            return isinstance(dataset, Dataset) and cls is not Dataset
        if "__getitem__" in vars(cls):
            return False
    return False


class IterableDataset(Dataset):
    """A dataset that is a stream. Define `__iter__`, which yields items, and `__len__` if the
    number of items is known. Every worker process of a DataLoader has its own copy of the dataset,
    so `__iter__` should call `get_worker_info()` to decide which part of the stream to yield.
    `transforms` are as in Dataset."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} defines no __iter__")

    def __len__(self) -> int:  # list() ignores a TypeError
        raise TypeError(f"{type(self).__name__} defines no __len__")


class NDArrayDataset(Dataset):
    """The rows of `arrays`: item i is the tuple of row i of each array. Raises ValueError if the
    arrays differ in length.

    >>> dataset = ndl.data.NDArrayDataset(np.arange(4.0), np.arange(4))
    >>> len(dataset), [float(part) for part in dataset[2]]
    (4, [2.0, 2.0])
    """

    def __init__(self, *arrays: Any) -> None:
        super().__init__()
        self.arrays = tuple(as_numpy(a, "NDArrayDataset") for a in arrays)
        for a in self.arrays:
            if not a.ndim:
                raise ValueError(f"NDArrayDataset: {a!r} has no rows")
        lengths = [len(a) for a in self.arrays]
        if len(set(lengths)) != 1:
            raise ValueError(f"NDArrayDataset: arrays have lengths {lengths}; they must be equal")

    def __getitem__(self, index: Any) -> tuple[Array, ...]:
        return tuple(a[index] for a in self.arrays)

    def __len__(self) -> int:
        return len(self.arrays[0])

    def extra_repr(self) -> str:
        return ", ".join(f"{a.dtype}{list(a.shape[1:])}" for a in self.arrays)

    def batch(self, indices: Array) -> tuple[Array, ...]:
        return tuple(a[indices] for a in self.arrays)


class TensorDataset(Dataset):
    """The rows of `tensors`: item i is the tuple of row i of each tensor, without gradient. Raises
    TypeError for an argument that is not a Tensor, and ValueError if the tensors differ in length.

    >>> dataset = ndl.data.TensorDataset(ndl.arange(4), ndl.ones(4, 2))
    >>> [part.tolist() for part in dataset[3]]
    [3, [1.0, 1.0]]
    """

    def __init__(self, *tensors: Tensor) -> None:
        super().__init__()
        for i, x in enumerate(tensors):
            if not isinstance(x, Tensor):
                raise TypeError(f"TensorDataset: tensor {i} is a {type(x).__name__}, not a Tensor")
        sizes = [x.shape[:1] for x in tensors]
        if not sizes or () in sizes or len(set(sizes)) != 1:
            shapes = [x.shape for x in tensors]
            raise ValueError(
                f"TensorDataset: tensors have shapes {shapes}; they must have equally many rows"
            )
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(make_const(x.realize_cached_data()[index]) for x in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])

    def extra_repr(self) -> str:
        return ", ".join(f"{x.dtype}{list(x.shape[1:])}" for x in self.tensors)

    def batch(self, indices: Array) -> tuple[Tensor, ...]:
        return self[indices]


class Subset(Dataset):
    """The items of `dataset` at `indices`."""

    def __init__(self, dataset: Any, indices: Sequence[Any]) -> None:
        super().__init__()
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)

    def extra_repr(self) -> str:
        return f"of {self.dataset!r}"

    def batch(self, indices: Array) -> Any:
        if not has_batches(self.dataset):
            return super().batch(indices)
        return self.dataset.batch(np.asarray([self.indices[i] for i in indices.tolist()]))


class ConcatDataset(Dataset):
    """The items of all `datasets`, one dataset after the other. Raises ValueError if there are no
    datasets, and TypeError for an IterableDataset.

    >>> both = ndl.data.ConcatDataset([[1, 2], [3]])
    >>> len(both), both[2], both[-3]
    (3, 3, 1)
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        super().__init__()
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset: datasets should not be an empty iterable")
        if any(isinstance(dataset, IterableDataset) for dataset in self.datasets):
            raise TypeError("ConcatDataset: an IterableDataset has no indexed items")
        self.cumulative_sizes = list(accumulate(len(dataset) for dataset in self.datasets))

    def __getitem__(self, index: int) -> Any:
        ends = self.cumulative_sizes
        if not -ends[-1] <= index < ends[-1]:
            raise IndexError(f"ConcatDataset: index {index} is out of range for {ends[-1]} items")
        index = index % ends[-1]
        number = bisect.bisect_right(ends, index)
        return self.datasets[number][index - (ends[number - 1] if number else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


def random_split(
    dataset: Any, lengths: Sequence[float], generator: np.random.Generator | None = None
) -> list[Subset]:
    """Split `dataset` at random into Subsets that do not overlap and have `lengths` items.
    `generator` draws the order.

    Lengths that sum to 1 are fractions of the dataset: each size is rounded down, and the first
    Subsets get one more item each until none are left. Raises ValueError if the lengths do not sum
    to the dataset's length or one is negative, and TypeError if they are neither fractions nor
    integers.
    """
    checked_generator("random_split", generator)
    total = len(dataset)
    sizes: list[Any] = list(lengths)
    if math.isclose(sum(sizes), 1) and sum(sizes) <= 1:
        for i, share in enumerate(lengths):
            if not 0 <= share <= 1:
                raise ValueError(f"random_split: fraction {share} at index {i} is not in [0, 1]")
        sizes = [math.floor(total * share) for share in lengths]
        for i in range(total - sum(sizes)):
            sizes[i % len(sizes)] += 1
        for i, size in enumerate(sizes):
            if not size:
                text = f"random_split: the length of split {i} is 0, which makes an empty dataset"
                warnings.warn(text, stacklevel=2)
    sizes = [count("random_split", "lengths", size, 0) for size in sizes]
    if sum(sizes) != total:
        raise ValueError(
            f"random_split: lengths {list(lengths)} do not sum to the dataset's length, {total}"
        )
    with drawing_from(generator):
        order = rng.permutation(total).tolist()
    ends = accumulate(sizes)
    return [Subset(dataset, order[end - n : end]) for n, end in zip(sizes, ends, strict=True)]
