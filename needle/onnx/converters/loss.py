"""Converters of classification losses. The classes are along axis 1."""

from __future__ import annotations

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, tensor
from ..graph import Node
from ..registry import converter
from .index import index_tensor


@converter("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood(
    node: Node, data: Value, target: Value, weight: Value | None = None
) -> Tensor:
    return _loss(node, tensor(data), target, weight)


@converter("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy(
    node: Node, scores: Value, labels: Value, weight: Value | None = None
) -> tuple[Tensor, Tensor]:
    logarithms = ops.logsoftmax(tensor(scores), 1)
    return _loss(node, logarithms, labels, weight), logarithms


def _loss(node: Node, x: Tensor, target: Value, weight: Value | None) -> Tensor:
    """Return the reduction of -x[n, target[n, ...], ...], each times the weight of its class.
    Targets equal to `ignore_index` are not counted."""
    reduction = node.text("reduction")
    if reduction not in ("none", "sum", "mean"):
        raise node.invalid(f"reduction {reduction!r} is not one of none, sum, mean")
    classes = index_tensor(target)
    if x.ndim < 2 or classes.shape != (x.shape[0], *x.shape[2:]):
        raise node.invalid(f"targets {classes.spec} do not fit {x.spec}")
    counts = None
    if node.has("ignore_index"):
        counts = ops.not_equal(classes, node.integer("ignore_index"))
        classes = ops.where(counts, classes, 0)
    picked = ops.squeeze(ops.take_along_axis(x, ops.unsqueeze(classes, 1), 1), 1)
    weights = None if weight is None else ops.take(tensor(weight), classes, 0)
    if counts is not None:
        factor = ops.cast(counts, x.dtype) if weights is None else weights
        weights = ops.where(counts, factor, 0.0)
        picked = ops.where(counts, picked, 0.0)  # also removes infinities and NaN
    loss = ops.negate(picked if weights is None else ops.multiply(picked, weights))
    if reduction == "none":
        return loss
    if reduction == "mean" and weights is None:
        return ops.mean(loss)
    total = ops.sum(loss)
    return total if reduction == "sum" or weights is None else ops.divide(total, ops.sum(weights))
