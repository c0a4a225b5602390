"""`Value` is a tensor of the graph that rules write."""

from __future__ import annotations

from typing import Any

from ._shapes import Shape


class Value:
    """A tensor of the graph. `array` has the elements of weights and constants; `folds` means that
    the file may store a rearranged copy instead."""

    __slots__ = ("array", "dtype", "folds", "name", "shape")

    def __init__(
        self,
        name: str,
        dtype: str,
        shape: Shape | None,
        array: Any = None,
        folds: bool = False,
    ) -> None:
        self.name, self.dtype, self.shape = name, dtype, shape
        self.array, self.folds = array, folds

    @property
    def extents(self) -> Shape:
        """The shape. Rules read it only if it is known."""
        if self.shape is None:
            raise RuntimeError(f"the shape of {self.name} was not recorded")
        return self.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.extents)
