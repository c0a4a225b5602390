"""Decompositions of PyTorch's operators that read or write the memory of a tensor by strides.

needle's tensors have no strides. Where a tensor lies in memory is known while PyTorch exports a
model, so that what strides show are elements at known places of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The decompositions, by operator of PyTorch's."""
    import torch

    aten = torch.ops.aten
    return {
        aten.as_strided.default: as_strided,
        aten.as_strided_copy.default: as_strided,
        aten.as_strided_scatter.default: as_strided_scatter,
    }


def as_strided(x: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    """The elements of x's memory at these strides."""
    offset = x.storage_offset() if storage_offset is None else storage_offset
    lying, _ = _in_memory(x)
    places = _places(lying, size, stride, offset)
    return lying.reshape(-1).index_select(0, places.reshape(-1)).reshape(size)


def as_strided_scatter(
    x: Any, source: Any, size: Any, stride: Any, storage_offset: Any = None
) -> Any:
    """x with the elements of `source` at the places in memory that these strides show."""
    offset = x.storage_offset() if storage_offset is None else storage_offset
    lying, order = _in_memory(x)
    places = _places(lying, size, stride, offset)
    written = lying.reshape(-1).index_put((places.reshape(-1),), source.reshape(-1))
    return written.reshape(lying.shape).permute([order.index(axis) for axis in range(x.ndim)])


def _in_memory(x: Any) -> tuple[Any, list[int]]:
    """x with its axes in the order in which it lies in memory, and that order.

    Raises ValueError for an x with gaps in memory: what is there is not known.
    """
    order = sorted(range(x.ndim), key=x.stride, reverse=True)
    lying = x.permute(order)
    if not lying.is_contiguous():
        raise ValueError("it takes a tensor with gaps in memory by strides (as_strided)")
    return lying, order


def _places(x: Any, size: Sequence[Any], stride: Sequence[Any], offset: Any) -> Any:
    """The place in x of each element that these strides show from `offset` in x's memory on.
    ValueError if one is beyond x, in the tensor that x is a part of."""
    import torch

    first = offset - x.storage_offset()
    last = first + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if all(n > 0 for n in size) and not 0 <= first <= last < x.numel():
        raise ValueError(
            "it takes elements beyond a tensor, which is a part of another, by strides (as_strided)"
        )
    places = torch.full((), first)
    for extent, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + torch.arange(extent) * step
    return places


def places_of(size: Sequence[int], stride: Sequence[int], first: int) -> Any:
    """The places that these strides show from `first` on, flat and known."""
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        places = torch.full((), first)
        for extent, step in zip(size, stride, strict=True):
            places = places.unsqueeze(-1) + torch.arange(extent) * step
        return places.reshape(-1)
