"""Converters of distances and of moments of several variables."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...conversion.values import Value, tensor
from ...tensor import Tensor
from ..operands import cast, wide
from ..program import Node
from ..registry import converter


@converter("aten._cdist_forward", "aten.cdist")
def cdist(node: Node, a: Value, b: Value, p: float, mode: Any = None) -> Tensor:
    """Distances of the rows of two matrices, as norms of their differences; `mode`, which may ask
    for a matrix product, changes no more than the last bits."""
    rows, others = ops.unsqueeze(wide(a), -2), ops.unsqueeze(wide(b), -3)
    return ops.cast(ops.norm(ops.subtract(rows, others), float(p), -1), node.dtype)


@converter("aten._pdist_forward", "aten.pdist")
def pdist(node: Node, x: Value, p: float = 2.0) -> Tensor:
    """Distances of each row and all later ones."""
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


@converter("aten.cov")
def cov(
    node: Node,
    x: Value,
    correction: int = 1,
    counts: Value | None = None,
    weights: Value | None = None,
) -> Tensor:
    """The covariances of variables, which are rows, over observations, which have counts and
    weights."""
    return ops.cast(_covariance(x, node.dtype, correction, counts, weights), node.dtype)


def _covariance(
    x: Value,
    dtype: str,
    correction: int = 1,
    counts: Value | None = None,
    weights: Value | None = None,
) -> Tensor:
    rows = wide(cast(x, dtype))
    rows = rows if rows.ndim == 2 else ops.reshape(rows, (1, rows.size))
    by_weight = None if weights is None else cast(weights, rows.dtype)
    each = by_weight
    if counts is not None:
        times = cast(counts, rows.dtype)
        each = times if each is None else ops.multiply(times, each)
    number = cast(rows.shape[1], rows.dtype) if each is None else ops.summation(each)

    def weighted(values: Tensor) -> Tensor:
        return values if each is None else ops.multiply(values, each)

    mean = ops.divide(ops.summation(weighted(rows), 1, True), number)
    centred = ops.subtract(rows, mean)
    lost: Tensor | float = float(correction)
    if each is not None and by_weight is not None and correction:
        share = ops.divide(ops.summation(ops.multiply(each, by_weight)), number)
        lost = ops.mul_scalar(share, float(correction))
    divisor = ops.maximum(ops.subtract(number, lost), 0.0)
    products = ops.matmul(centred, ops.transpose(weighted(centred)))
    made = ops.divide(products, divisor)
    return ops.reshape(made, ()) if len(x.shape) < 2 or made.size == 1 else made


@converter("aten.corrcoef")
def corrcoef(node: Node, x: Value) -> Tensor:
    """Covariances divided by both deviations."""
    found = _covariance(x, node.dtype)
    if not found.ndim:
        return ops.cast(ops.divide(found, found), node.dtype)
    deviation = ops.sqrt(ops.diagonal(found))
    found = ops.divide(found, ops.reshape(deviation, (deviation.shape[0], 1)))
    return ops.cast(ops.clip(ops.divide(found, deviation), -1.0, 1.0), node.dtype)
