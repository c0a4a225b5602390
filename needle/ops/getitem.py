"""Indexing with arrays and masks, composed of a slice, a permutation and one take."""

from __future__ import annotations

import functools
from math import prod
from typing import Any

import numpy as np

from ..autograd.dispatch import moved
from ..autograd.shapes import broadcast_shapes
from ..autograd.tensor import Tensor, make_const
from ..backend_ndarray import NDArray, indexing
from ..backend_ndarray.dtypes import INTEGER
from ..common.state import state
from ..errors import TraceError
from ..sizes.dims import Expression
from ..sizes.extents import is_symbolic
from ._keys import as_key
from .index import RavelIndex, take
from .shape import permute, reshape
from .slicing import Slice
from .slicing import slice as get_slice


def getitem(a: Tensor, key: Any) -> Tensor:
    """Return a[key] by NumPy's rules. The `key` holds ints, slices, None, Ellipsis, integer arrays
    and bool masks (NumPy arrays, lists, NDArrays or Tensors).

    Raises IndexError for an index out of range and for masks and arrays that do not fit, ValueError
    for an index on another device. Raises TraceError while tracing for a mask whose values are not
    known, because the number of its True elements decides the shape. A compiled function checks the
    indices it is called with, and clamps those that it computes itself.

    >>> x = ndl.Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> x[1, ::2].numpy().tolist(), x[x > 4].numpy().tolist(), x[[1, 0], [0, 2]].numpy().tolist()
    ([4.0, 6.0], [5.0, 6.0], [4.0, 3.0])
    """
    found = moved("index", a, key, _slice_of)
    if found is not None:
        return found
    if not isinstance(a, Tensor) or indexing.is_basic(key) or _has_sizes_alone(key):
        return get_slice(a, key)
    return take(*_placed(a, key)[1:])


def _slice_of(key: Any) -> Slice:
    return Slice(as_key(key))


def _placed(a: Tensor, key: Any) -> tuple[indexing.Arrangement, Tensor, Tensor, int]:
    """Turn a key with arrays into one index along one axis. Return NumPy's arrangement of the key,
    `a` in that arrangement with the indexed axes merged, the index, and the axis."""
    entries = tuple(_entry(a, e) for e in (key if type(key) is tuple else (key,)))
    plan = indexing.arrange(entries, a.shape, functools.partial(broadcast_shapes, "index"))
    if any(entry != slice(None) for entry in plan.kept):
        a = get_slice(a, plan.kept)
    if plan.order != tuple(range(a.ndim)):
        a = permute(a, plan.order)
    if len(plan.arrays) == 1:
        return plan, a, _tensor(a, plan.arrays[0]), plan.axis
    end = plan.axis + len(plan.arrays)
    extents = a.shape[plan.axis : end]
    merged = reshape(a, (*a.shape[: plan.axis], prod(extents), *a.shape[end:]))
    return plan, merged, _linear(a, plan, extents), plan.axis


def _has_sizes_alone(key: Any) -> bool:
    """Return whether a key is basic except for ints that are expressions of dims."""
    entries = key if type(key) is tuple else (key,)
    return is_symbolic(entries) and indexing.is_basic(
        tuple(entry for entry in entries if not isinstance(entry, Expression))
    )


def _entry(a: Tensor, entry: Any) -> Any:
    """Return a key's entry: an integer Tensor unchanged, any other array as a NumPy array."""
    if not isinstance(entry, (Tensor, NDArray)):
        return entry
    if entry.device is not a.device:
        raise ValueError(f"index: arrays are on different devices: {a.device}, {entry.device}")
    if isinstance(entry, Tensor) and entry.dtype in INTEGER:
        return entry
    if state.trace is not None and entry.dtype == "bool":
        try:
            return entry.numpy()
        except TraceError as error:
            raise TraceError(
                f"{error} (the number of True elements of a mask decides the shape of the "
                "result; use where)"
            ) from None
    return entry.numpy()


def _tensor(a: Tensor, index: Tensor | np.ndarray) -> Tensor:
    return index if isinstance(index, Tensor) else make_const(index, a.device)


def _linear(a: Tensor, plan: indexing.Arrangement, extents: tuple[int, ...]) -> Tensor:
    """Return the index arrays combined into one index over the product of `extents`."""
    if is_symbolic(extents) or any(isinstance(i, Tensor) for i in plan.arrays):
        return RavelIndex(extents)(*[_tensor(a, i) for i in plan.arrays])
    return make_const(indexing.linear_index(plan.arrays, extents, plan.shape), a.device)
