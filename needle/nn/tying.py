"""Weight tying: a Linear and an Embedding that share one Parameter.

The Parameter keeps the layout of the layer that created it: (in, out) for a Linear, (count, dim)
for an Embedding. The other layer expects these axes the other way round, so it reads the transpose.
"""

from __future__ import annotations

from typing import Any

from .module import Module
from .parameter import Parameter


class Tying(Module):
    """Base of Linear and Embedding: the weight of either class may be assigned to the other."""

    _is_transposed = False  # whether a layer of the other class created the weight

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "weight":
            own = self._torch_axes["weight"]
            is_transposed = isinstance(value, Parameter) and value._axes == own[::-1]
            if is_transposed != self._is_transposed:
                super().__setattr__("_is_transposed", is_transposed)
