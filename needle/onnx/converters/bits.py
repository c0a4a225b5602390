"""The converter of BitCast, which reinterprets bits as another dtype of the same width."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...conversion.values import Value, dtype_of, known, tensor
from ..graph import Node
from ..registry import converter


@converter("BitCast", since=26)
def bit_cast(node: Node, data: Value) -> Value:
    """Reinterpret bits. Between integers this is a cast. Otherwise the values must be known."""
    given, to = (np.dtype(name) for name in (dtype_of(data), node.dtype("to")))
    if given.itemsize != to.itemsize:
        raise node.invalid(f"{given} and {to} have different widths")
    if given == to or (given.kind in "iub" and to.kind in "iu"):
        return ops.cast(tensor(data), to.name)
    return known(node, data, f"the bits of {given} as {to}").view(to)
