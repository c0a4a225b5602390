"""Value, a tensor of the graph that rules write."""

from __future__ import annotations

from typing import Any

from ._shapes import Shape


class Value:
    """A tensor of the graph. `array` is known for weights and constants; `folds` says that a moved
    copy may stand in the file in their place."""

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
        """The shape, which the rule that asks has made sure is known."""
        if self.shape is None:
            raise RuntimeError(f"the shape of {self.name} was not noted")
        return self.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.extents)
