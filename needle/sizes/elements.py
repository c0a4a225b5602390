"""The number of elements of a tensor: NumPy's `x.size`. It can also be called as in PyTorch, where
`x.size()` and `x.size(0)` return extents."""

from __future__ import annotations

from typing import Any

from ..errors import ShapeError
from .dims import Expression


def _extents(shape: tuple[Any, ...], dim: int | None) -> Any:
    if dim is None:
        return shape
    if not -len(shape) <= dim < len(shape):
        raise ShapeError(f"size: axis {dim} is out of range for shape {shape}")
    return shape[dim]


class Elements(int):
    """A number of elements that also holds the shape it was counted from."""

    shape: tuple[int, ...]

    def __call__(self, dim: int | None = None) -> Any:
        """Return the shape, or its extent along the axis `dim`."""
        return _extents(self.shape, dim)

    def __reduce__(self) -> Any:
        return int, (int(self),)


class OpenElements(Expression):
    """The number of elements of a shape with dims. `as_extent` returns its plain expression."""

    __slots__ = ("number", "shape")

    def __init__(self, number: Expression, shape: tuple[Any, ...]) -> None:
        self._terms, self._key = number._terms, number._key
        self.number, self.shape = number, shape

    def __call__(self, dim: int | None = None) -> Any:
        """Return the shape, or its extent along the axis `dim`."""
        return _extents(self.shape, dim)


def elements(shape: tuple[Any, ...]) -> Any:
    """Return the number of elements of a shape."""
    number: Any = 1
    for n in shape:
        number *= n
    if isinstance(number, Expression):
        return OpenElements(number, shape)
    made = Elements(number)
    made.shape = shape
    return made
