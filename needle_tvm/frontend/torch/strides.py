"""Decompositions of PyTorch's operators that read or write a tensor at computed places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def _in_memory(x: Any) -> tuple[Any, list[int]]:
    """x with its axes in the order in which it lies in memory, and that order.

    Raises ValueError for an x that has gaps there, or does not begin its memory: its strides are of
    another tensor, which is not known here.
    """
    order = sorted(range(x.ndim), key=x.stride, reverse=True)
    lying = x.permute(order)
    if not lying.is_contiguous() or x.storage_offset():
        raise ValueError("as_strided of a tensor that is a part of another is not taken")
    return lying, order


def _places(size: Sequence[int], stride: Sequence[int], offset: int | None) -> Any:
    """The place in memory of each element that these strides show."""
    import torch

    places = torch.full((), offset or 0)
    for extent, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + torch.arange(extent) * step
    return places


def as_strided(x: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    lying, _ = _in_memory(x)
    places = _places(size, stride, storage_offset)
    return lying.reshape(-1).index_select(0, places.reshape(-1)).reshape(size)


def as_strided_scatter(
    x: Any, source: Any, size: Any, stride: Any, storage_offset: int | None = None
) -> Any:
    lying, order = _in_memory(x)
    places = _places(size, stride, storage_offset)
    written = lying.reshape(-1).index_put((places.reshape(-1),), source.reshape(-1))
    return written.reshape(lying.shape).permute([order.index(axis) for axis in range(x.ndim)])


def diagonal_scatter(x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    import torch

    dim1, dim2 = dim1 % x.ndim, dim2 % x.ndim
    extent, place = source.shape[-1], torch.arange(source.shape[-1])
    rest = [axis for axis in range(x.ndim) if axis not in (dim1, dim2)]
    order = [dim1, dim2, *rest]
    at = place + max(-offset, 0), place + max(offset, 0)
    if not extent:
        return x.clone()
    written = x.permute(order).index_put(at, source.movedim(-1, 0))
    return written.permute([order.index(axis) for axis in range(x.ndim)])


def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """x with the elements of `source`, in their order, where a mask is true."""
    import torch

    x, mask = torch.broadcast_tensors(x, mask)
    number = mask.reshape(-1).cumsum(0) - 1
    chosen = source.reshape(-1).index_select(0, number.clamp(0, source.numel() - 1))
    return chosen.reshape(x.shape).where(mask, x)


def take(x: Any, index: Any) -> Any:
    import torch

    return torch.ops.aten.index.Tensor(x.reshape(-1), [index])  # x[0-d index] reads its value


def put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """x with elements of its own flat order replaced, or added to."""
    written = x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return written.reshape(x.shape)


def index_reduce(
    x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    if x.ndim == 0:
        x, source = x.reshape(1), source.reshape(1)
        return index_reduce(
            x, 0, index.reshape(1), source, reduce, include_self=include_self
        ).reshape(())
    shape = [1] * source.ndim
    shape[dim] = -1
    places = index.reshape(shape).expand(source.shape)
    return x.scatter_reduce(dim, places, source, reduce, include_self=include_self)


def unfold(x: Any, dim: int, size: int, step: int) -> Any:
    """Windows along an axis, with the positions in a window as the last axis."""
    import torch

    if x.ndim == 0:
        return x.reshape(1).narrow(0, 0, size)
    dim %= x.ndim
    count = (x.shape[dim] - size) // step + 1
    places = torch.arange(count)[:, None] * step + torch.arange(size)
    windows = x.index_select(dim, places.reshape(-1)).unflatten(dim, (count, size))
    return windows.movedim(dim + 1, -1)


def _copied(name: str) -> Callable[..., Any]:
    """An operator as a copy instead of a view."""

    def of(x: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        return getattr(torch.ops.aten, name).default(x, *args, **kwargs).clone()

    return of


# By PyTorch's name of the operator.
DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "as_strided.default": as_strided,
    **{
        f"{name}_copy.default": _copied(name)
        for name in ("as_strided", "expand", "narrow", "permute", "unfold", "view")
    },
    "as_strided_scatter.default": as_strided_scatter,
    "diagonal_scatter.default": diagonal_scatter,
    "masked_scatter.default": masked_scatter,
    "take.default": take,
    "put.default": put,
    "index_reduce.default": index_reduce,
    "unfold.default": unfold,
    "unbind_copy.int": lambda x, dim=0: [each.clone() for each in x.unbind(dim)],
}
