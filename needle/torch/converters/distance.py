"""Converters of distances."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, tensor
from ..operands import wide
from ..program import Node
from ..registry import converter


@converter("aten._cdist_forward", "aten.cdist")
def cdist(node: Node, a: Value, b: Value, p: float, mode: Any = None) -> Tensor:
    """Return the distances between the rows of two matrices, as norms of their differences. `mode`
    may request a matrix product in PyTorch and is ignored: it affects only the last bits."""
    rows, others = ops.unsqueeze(wide(a), -2), ops.unsqueeze(wide(b), -3)
    return ops.cast(ops.norm(ops.subtract(rows, others), float(p), -1), node.dtype)


@converter("aten._pdist_forward", "aten.pdist")
def pdist(node: Node, x: Value, p: float = 2.0) -> Tensor:
    """Return the distances from each row to all later rows."""
    source = wide(x)
    count = source.shape[0]
    if not isinstance(count, int):
        raise node.unsupported("the number of rows is open")
    first, second = (np.asarray(each, "int64") for each in np.triu_indices(count, 1))
    rows, later = (ops.take(source, tensor(each), 0) for each in (first, second))
    return ops.cast(ops.norm(ops.subtract(rows, later), float(p), -1), node.dtype)


@converter("aten.dist")
def dist(node: Node, a: Value, b: Value, p: float = 2.0) -> Tensor:
    return ops.cast(ops.norm(ops.subtract(wide(a), wide(b)), float(p)), node.dtype)
