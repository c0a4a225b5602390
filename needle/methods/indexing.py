"""Methods of Tensor that move, cut or choose elements. binding.py binds them; needle.ops documents
their results and errors."""

# mypy: disable-error-code="misc"
# Each `self` is an instance of the class that the function is bound to.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autograd.shapes import Axes
from ..autograd.tensor import Tensor, TensorTuple
from ..errors import ShapeError
from . import unchecked_ops as ops
from .indexed_update import At


class IndexingMethods:
    """Methods of Tensor with PyTorch's names."""

    @property
    def at(self: Tensor) -> At:
        """The start of x.at[key].set(value), .add, .multiply, .max or .min, which return an updated
        copy of x."""
        return At(self)

    def __setitem__(self: Tensor, key: Any, value: Any) -> None:
        raise TypeError(
            "a Tensor does not allow x[i] = v: write x = x.at[i].set(v) or, if p is a Parameter, "
            "p.data = p.data.at[i].set(v) (an NDArray does allow it)"
        )

    @property
    def T(self: Tensor) -> Tensor:
        """The tensor with its axes in reverse order, as in NumPy."""
        return self if self.ndim < 2 else ops.permute(self, range(self.ndim)[::-1])

    @property
    def mT(self: Tensor) -> Tensor:
        """The tensor with its last two axes exchanged."""
        return ops.transpose(self)

    def t(self: Tensor) -> Tensor:
        """Return the transpose of a matrix. A vector or a number stays as it is. Raises ShapeError
        for more than two axes."""
        if self.ndim > 2:
            raise ShapeError(f"t: shape {self.shape} has more than two axes; use mT or permute")
        return self.T

    def narrow(self: Tensor, axis: int, start: int, length: int) -> Tensor:
        return ops.narrow(self, axis, start, length)

    def select(self: Tensor, axis: int, index: int) -> Tensor:
        return ops.select(self, axis, index)

    def index_select(self: Tensor, axis: int, index: Tensor) -> Tensor:
        return ops.index_select(self, axis, index)

    index_add = ops.index_add
    index_fill = ops.index_fill
    diff = ops.diff
    fliplr = ops.fliplr
    flipud = ops.flipud

    def ravel(self: Tensor) -> Tensor:
        return ops.ravel(self)

    def view_as(self: Tensor, other: Tensor) -> Tensor:
        """Return the tensor reshaped to the shape of `other`."""
        return ops.reshape(self, other.shape)

    def nelement(self: Tensor) -> int:
        """Return the number of elements, as `numel` does."""
        return self.numel()

    def ndimension(self: Tensor) -> int:
        """Return the number of axes, `ndim`."""
        return self.ndim

    def take(self: Tensor, index: Tensor, axis: int | None = None) -> Tensor:
        return ops.take(self, index, axis)

    def take_along_axis(self: Tensor, index: Tensor, axis: int) -> Tensor:
        return ops.take_along_axis(self, index, axis)

    def gather(self: Tensor, axis: int, index: Tensor) -> Tensor:
        return ops.gather(self, axis, index)

    def scatter(self: Tensor, axis: int, index: Tensor, source: Tensor | float) -> Tensor:
        return ops.scatter(self, axis, index, source)

    def scatter_add(self: Tensor, axis: int, index: Tensor, source: Tensor | float) -> Tensor:
        return ops.scatter_add(self, axis, index, source)

    def masked_fill(self: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
        return ops.masked_fill(self, mask, value)

    def masked_select(self: Tensor, mask: Tensor) -> Tensor:
        return ops.masked_select(self, mask)

    def nonzero(self: Tensor, as_tuple: bool = False) -> Any:
        return ops.nonzero(self, as_tuple)

    def unique(
        self: Tensor,
        return_inverse: bool = False,
        return_counts: bool = False,
        axis: int | None = None,
    ) -> Any:
        return ops.unique(self, return_inverse, return_counts, axis)

    def view(self: Tensor, *shape: Any) -> Tensor:
        """Return the tensor reshaped to `shape`, as `reshape` does. Elements are copied if
        necessary."""
        return ops.reshape(self, shape)

    def reshape_as(self: Tensor, other: Tensor) -> Tensor:
        """Return the tensor reshaped to the shape of `other`."""
        return ops.reshape(self, other.shape)

    def expand_as(self: Tensor, other: Tensor) -> Tensor:
        """Return the tensor broadcast to the shape of `other`."""
        return ops.broadcast_to(self, other.shape)

    def squeeze(self: Tensor, axes: Axes = None) -> Tensor:
        return ops.squeeze(self, axes)

    def unsqueeze(self: Tensor, axes: int | Sequence[int]) -> Tensor:
        return ops.unsqueeze(self, axes)

    def flatten(self: Tensor, start_axis: int = 0, end_axis: int = -1) -> Tensor:
        return ops.flatten(self, start_axis, end_axis)

    def unflatten(self: Tensor, axis: int, shape: Sequence[int]) -> Tensor:
        return ops.unflatten(self, axis, shape)

    def moveaxis(
        self: Tensor, source: int | Sequence[int], destination: int | Sequence[int]
    ) -> Tensor:
        return ops.moveaxis(self, source, destination)

    movedim = ops.moveaxis

    def swapaxes(self: Tensor, axis1: int, axis2: int) -> Tensor:
        return ops.swapaxes(self, axis1, axis2)

    swapdims = ops.swapaxes

    def expand(self: Tensor, *shape: Any) -> Tensor:
        return ops.expand(self, *shape)

    def repeat(self: Tensor, *repeats: Any) -> Tensor:
        return ops.repeat(self, *repeats)

    def tile(self: Tensor, *repeats: Any) -> Tensor:
        return ops.tile(self, *repeats)

    def repeat_interleave(
        self: Tensor, repeats: int | Sequence[int] | Tensor, axis: int | None = None
    ) -> Tensor:
        return ops.repeat_interleave(self, repeats, axis)

    def flip(self: Tensor, axes: Axes = None) -> Tensor:
        return ops.flip(self, axes)

    def roll(self: Tensor, shifts: int | Sequence[int], axes: Axes = None) -> Tensor:
        return ops.roll(self, shifts, axes)

    def split(self: Tensor, sizes: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
        """Split along `axis` into parts of these `sizes`, or of one size, as
        `needle.ops.split_sizes` does (PyTorch's split)."""
        return ops.split_sizes(self, sizes, axis)

    def chunk(self: Tensor, chunks: int, axis: int = 0) -> tuple[Tensor, ...]:
        return ops.chunk(self, chunks, axis)

    def unbind(self: Tensor, axis: int = 0) -> TensorTuple:
        return ops.unbind(self, axis)

    def unfold(self: Tensor, axis: int, size: int, step: int = 1) -> Tensor:
        """Return all windows of `size` elements along `axis`, `step` apart, as `needle.ops.windows`
        does. (`needle.ops.unfold` is for images.)"""
        return ops.windows(self, axis, size, step)

    def diagonal(self: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        return ops.diagonal(self, offset, axis1, axis2)

    def diag(self: Tensor, k: int = 0) -> Tensor:
        return ops.diag(self, k)

    def tril(self: Tensor, k: int = 0) -> Tensor:
        return ops.tril(self, k)

    def triu(self: Tensor, k: int = 0) -> Tensor:
        return ops.triu(self, k)
