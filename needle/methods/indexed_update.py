"""`x.at[key].set(value)` and the like: return a new Tensor in which part of x is updated."""

from __future__ import annotations

from typing import Any

from .. import ops
from ..autograd.tensor import Tensor


class At:
    """The object x.at, which takes a key in brackets."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __getitem__(self, key: Any) -> IndexUpdate:
        return IndexUpdate(self._tensor, key)


class IndexUpdate:
    """The object x.at[key]. Its methods return a copy of x that differs at key; x does not
    change."""

    __slots__ = ("_key", "_tensor")

    def __init__(self, tensor: Tensor, key: Any) -> None:
        self._tensor, self._key = tensor, key

    def get(self) -> Tensor:
        """Return the elements x[key]."""
        return ops.getitem(self._tensor, self._key)

    def set(self, value: Any) -> Tensor:
        """Return a copy of x with x[key] = value. If the key names an element repeatedly, the last
        value wins.

        >>> x = ndl.zeros(2, 2)
        >>> x.at[0, 1].set(3.0).numpy().tolist(), x.numpy().tolist()
        ([[0.0, 3.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]])
        """
        return ops.set_at(self._tensor, self._key, value)

    def add(self, value: Any) -> Tensor:
        """Return a copy of x with `value` added to x[key], once for each time that the key names an
        element.

        >>> ndl.zeros(3).at[[0, 0, 2]].add(1.0).numpy().tolist()
        [2.0, 0.0, 1.0]
        """
        return ops.add_at(self._tensor, self._key, value)

    def multiply(self, value: Any) -> Tensor:
        """Return a copy of x with x[key] multiplied by `value`, once for each time that the key
        names an element."""
        return ops.mul_at(self._tensor, self._key, value)

    def max(self, value: Any) -> Tensor:
        """Return a copy of x with the larger of x[key] and `value` at the key."""
        return ops.max_at(self._tensor, self._key, value)

    def min(self, value: Any) -> Tensor:
        """Return a copy of x with the smaller of x[key] and `value` at the key."""
        return ops.min_at(self._tensor, self._key, value)
