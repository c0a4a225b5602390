"""Leaves of traced graphs."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..autograd.node import Node
from ..backend_ndarray import NDArray


@dataclasses.dataclass(eq=False)
class Leaf:
    """An input (`value` is the example), a parameter or buffer, or a constant of a graph."""

    name: str
    node: Node
    value: NDArray = dataclasses.field(repr=False)
    others: tuple[str, ...] = ()  # other names of a parameter

    @property
    def spec(self) -> Any:
        """The shape, dtype and device."""
        return self.node.spec
