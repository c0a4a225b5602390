"""Decompositions of PyTorch operators that read or write a tensor's memory by strides.

needle's tensors have no strides. While PyTorch exports a model, the memory layout of each tensor is
known, so strides select elements at known positions of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions, by PyTorch operator."""
    import torch

    aten = torch.ops.aten
    return {
        aten.as_strided.default: as_strided,
        aten.as_strided_copy.default: as_strided,
        aten.as_strided_scatter.default: as_strided_scatter,
    }


def as_strided(x: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    """Return the elements of the memory of `x` that `size`, `stride` and `storage_offset` select.
    Raises ValueError if `x` has gaps in memory or an element is outside `x`."""
    offset = x.storage_offset() if storage_offset is None else storage_offset
    lying, _ = _in_memory(x)
    places = _places(lying, size, stride, offset)
    return lying.reshape(-1).index_select(0, places.reshape(-1)).reshape(size)


def as_strided_scatter(
    x: Any, source: Any, size: Any, stride: Any, storage_offset: Any = None
) -> Any:
    """Return `x` with the elements of `source` at the positions in memory that `size`, `stride` and
    `storage_offset` select. Raises ValueError if `x` has gaps in memory or an element is outside
    `x`."""
    offset = x.storage_offset() if storage_offset is None else storage_offset
    lying, order = _in_memory(x)
    places = _places(lying, size, stride, offset)
    written = lying.reshape(-1).index_put((places.reshape(-1),), source.reshape(-1))
    return written.reshape(lying.shape).permute([order.index(axis) for axis in range(x.ndim)])


def _in_memory(x: Any) -> tuple[Any, list[int]]:
    """Return x with its axes in the order of their strides in memory, and that order.

    Raises ValueError if x has gaps in memory, because the elements in the gaps are unknown.
    """
    order = sorted(range(x.ndim), key=x.stride, reverse=True)
    lying = x.permute(order)
    if not lying.is_contiguous():
        raise ValueError("it reads a tensor with gaps in memory by strides (as_strided)")
    return lying, order


def _places(x: Any, size: Sequence[Any], stride: Sequence[Any], offset: Any) -> Any:
    """Return the position in x of each element that the strides select, starting at `offset` in x's
    memory. Raises ValueError if an element is outside x, in a tensor that x is a view of."""
    import torch

    first = offset - x.storage_offset()
    last = first + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if all(n > 0 for n in size) and not 0 <= first <= last < x.numel():
        raise ValueError(
            "it reads by strides (as_strided) elements outside a tensor that is a view of another"
        )
    places = torch.full((), first)
    for extent, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + torch.arange(extent) * step
    return places


def places_of(size: Sequence[int], stride: Sequence[int], first: int) -> Any:
    """Return the positions that `size` and `stride` select from `first` on, as a flat tensor with
    known values."""
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        places = torch.full((), first)
        for extent, step in zip(size, stride, strict=True):
            places = places.unsqueeze(-1) + torch.arange(extent) * step
        return places.reshape(-1)
