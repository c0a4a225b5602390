"""Datasets: a length and items, each a tuple of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..backend_ndarray.masked import as_numpy, refuse_masked

Array = np.ndarray[Any, Any]
Transform = Callable[[Any], Any]


class Dataset:
    """Base of all datasets: define `__getitem__` (one item, a tuple of arrays) and `__len__`.

    Datasets that call `apply_transforms` apply `transforms` to the first array of an item.
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
        except (NotImplementedError, AttributeError):  # AttributeError: in a constructor
            size = "no length"
        about = f", {self.extra_repr()}" if self.extra_repr() else ""
        transforms = getattr(self, "transforms", None)
        applied = f", transforms={list(transforms)}" if transforms else ""
        return f"{type(self).__name__}({size}{about}{applied})"

    def extra_repr(self) -> str:
        """What `repr` shows besides the length and the transforms."""
        return ""

    def apply_transforms(self, x: Any) -> Any:
        """Apply every transform to x. TypeError if one returns a masked array."""
        for transform in self.transforms or ():
            x = transform(x)
        refuse_masked(x, type(self).__name__)  # np.stack drops masks silently
        return x

    def batch(self, indices: Array) -> tuple[Array, ...]:
        """The items at `indices`, stacked array by array."""
        items = [self[int(i)] for i in indices]
        items = [item if isinstance(item, (tuple, list)) else (item,) for item in items]
        return tuple(
            np.stack([as_numpy(x, "batch") for x in column]) for column in zip(*items, strict=True)
        )


class NDArrayDataset(Dataset):
    """`arrays` of equal length; item i is the tuple of their rows i. ValueError if lengths differ.

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
            raise ValueError(f"NDArrayDataset: arrays of lengths {lengths}; they must be equal")

    def __getitem__(self, index: Any) -> tuple[Array, ...]:
        return tuple(a[index] for a in self.arrays)

    def __len__(self) -> int:
        return len(self.arrays[0])

    def extra_repr(self) -> str:
        return ", ".join(f"{a.dtype}{list(a.shape[1:])}" for a in self.arrays)

    def batch(self, indices: Array) -> tuple[Array, ...]:
        return tuple(a[indices] for a in self.arrays)
