"""Converters of grouped matmuls, as in a mixture of experts."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, tensor
from ..operands import cast, in_float32
from ..program import Node
from ..registry import converter


@converter("aten._grouped_mm", "transformers.grouped_mm_fallback")
def grouped_mm(
    node: Node,
    x: Value,
    y: Value,
    offsets: Value | None = None,
    bias: Value | None = None,
    dtype: str | None = None,
) -> Tensor:
    """Multiply groups of two tensors. If an operand has two axes, its rows, its columns or the
    summed axis are divided into groups; group g ends before `offsets[g]`."""
    if bias is not None:
        raise node.unsupported("a bias")
    ends = None if offsets is None else tensor(offsets)

    def product(a: Tensor, b: Tensor) -> Tensor:
        if ends is None:
            return ops.matmul(a, b)
        if a.ndim == 2 and b.ndim == 3:
            return _rows(a, b, ends)
        if a.ndim == 3:
            return ops.transpose(_rows(ops.transpose(b), ops.swapaxes(a, 1, 2), ends))
        group = _groups(ends, b.shape[0])
        number = ops.reshape(ops.arange(ends.shape[0], dtype="int64"), (ends.shape[0], 1, 1))
        return ops.matmul(ops.where(ops.equal(group, number), a, 0.0), b)

    return cast(in_float32(product, tensor(x), tensor(y)), node.dtype)


def _groups(ends: Tensor, count: Any) -> Tensor:
    """Return the group number of each of `count` rows: the number of groups that end before it."""
    row = ops.reshape(ops.arange(count, dtype="int64"), (count, 1))
    ended = ops.less_equal(ops.cast(ends, "int64"), row)
    return ops.sum(ops.cast(ended, "int64"), 1)


def _rows(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Multiply rows (S, K) by the matrices (G, K, N) of their groups. Rows after the last group are
    0."""
    return ops.grouped_matmul(rows, matrices, _groups(ends, rows.shape[0]))
