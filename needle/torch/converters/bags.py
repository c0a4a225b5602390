"""Converters of embedding bags: sums, means and maxima of rows of a table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, is_known, tensor
from ...init import zeros
from ..operands import cast, in_float32
from ..program import Node
from ..registry import converter

_SUM, _MEAN, _MAX = range(3)
_GIVEN = ("aten._embedding_bag", "aten._embedding_bag_forward_only")


@converter("aten.embedding_bag", *_GIVEN)
def embedding_bag(
    node: Node,
    weight: Value,
    indices: Value,
    offsets: Value,
    by_frequency: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample: Value | None = None,
    include_last: bool = False,
    padding: int | None = None,
) -> tuple[Any, ...]:
    """Return the bags (B, D) that begin at `offsets`, and None for three results that only a
    gradient reads."""
    table, places = tensor(weight), tensor(indices)
    if node.operator.startswith(_GIVEN) and padding == -1:  # for these, -1 means no padding
        padding = None
    elif padding is not None and padding < 0:
        padding += table.shape[0]
    counted = None if padding is None else ops.not_equal(places, padding)
    size = _bag_size(places, offsets, include_last)

    def bags(table: Tensor, shares: Tensor | None) -> Tensor:
        rows = ops.take(table, places, 0)
        if shares is not None:
            rows = ops.multiply(rows, ops.unsqueeze(shares, 1))
        if size is not None:
            return _of_one_size(rows, counted, mode, size)
        return _of_any_size(rows, counted, mode, tensor(offsets), include_last)

    made = in_float32(bags, table, None if per_sample is None else tensor(per_sample))
    return made, None, None, None


def _bag_size(places: Tensor, offsets: Value, include_last: bool) -> int | None:
    """Return the number of elements that every bag has, or None if it is unknown, varies or is
    0."""
    if not is_known(offsets) or not isinstance(places.shape[0], int):
        return None
    ends = [*offsets.tolist(), *([] if include_last else [places.shape[0]])]
    sizes = set(np.diff(ends).tolist())
    covers = bool(ends) and ends[-1] == places.shape[0]
    return sizes.pop() if covers and len(sizes) == 1 and min(sizes) > 0 else None


def _of_one_size(rows: Tensor, counted: Tensor | None, mode: int, size: int) -> Tensor:
    count = rows.shape[0] // size
    rows = ops.reshape(rows, (count, size, rows.shape[1]))
    if counted is None:
        reduction = {_SUM: ops.sum, _MEAN: ops.mean, _MAX: ops.max}[mode]
        made: Tensor = reduction(rows, 1)
        return made
    counted = ops.reshape(counted, (count, size, 1))
    if mode == _MAX:
        found = ops.max(ops.where(counted, rows, -math.inf), 1)
        return ops.where(ops.max(cast(counted, "int32"), 1) > 0, found, 0.0)
    total = ops.sum(ops.where(counted, rows, 0.0), 1)
    return total if mode == _SUM else _mean(total, ops.sum(cast(counted, rows.dtype), 1))


def _of_any_size(
    rows: Tensor, counted: Tensor | None, mode: int, offsets: Tensor, include_last: bool
) -> Tensor:
    """Reduce bags of any sizes. Each row belongs to the last bag that begins at or before it;
    padding rows go to an additional bag, which is dropped."""
    length, count = rows.shape[0], offsets.shape[0] - include_last
    marks = zeros(1, dtype="int64", device=rows.device, requires_grad=False)
    one = ops.add_scalar(marks, 1)
    begun = ops.scatter_add(
        ops.broadcast_to(marks, (length + 1,)),
        0,
        ops.cast(offsets, "int64"),
        ops.broadcast_to(one, (offsets.shape[0],)),
    )
    bag = ops.add_scalar(ops.cumsum(begun, 0)[:length], -1)
    if counted is not None:
        bag = ops.where(counted, bag, count)
    bag = ops.minimum(bag, count)

    def summed(x: Tensor) -> Tensor:
        return ops.segment_sum(x, bag, count + 1, 0)[:count]

    each = ops.broadcast_to(cast(one, rows.dtype), (length,))
    numbers = ops.unsqueeze(summed(each), 1)
    if mode == _MAX:
        lowest = ops.broadcast_to(
            zeros(1, 1, dtype=rows.dtype, device=rows.device, requires_grad=False) - math.inf,
            (count + 1, rows.shape[1]),
        )
        index = ops.broadcast_to(ops.unsqueeze(bag, 1), rows.shape)
        found = ops.scatter_max(lowest, 0, index, rows)[:count]
        return ops.where(numbers > 0, found, 0.0)
    return summed(rows) if mode == _SUM else _mean(summed(rows), numbers)


def _mean(total: Tensor, count: Tensor) -> Tensor:
    return ops.divide(total, ops.maximum(count, 1.0))
