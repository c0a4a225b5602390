"""Losses with margins or several labels, and negative log-likelihoods of Poisson and Gaussian
data."""

from __future__ import annotations

import math
from collections.abc import Callable

from ... import init, ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.arguments import finite, not_negative
from ...common.state import state
from ...errors import ShapeError
from ...ops._arguments import check_tensors
from ...ops._values import check_integers, check_within
from .basic import pairwise_distance
from .loss import check_pair, check_reduction, check_weight, reduced


def hinge_embedding_loss(
    x: Tensor, y: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Return x where y is 1, max(0, margin - x) where it is -1, and the sum of both for any other
    y. x and y have the same shape (raises ShapeError otherwise)."""
    check_pair("hinge_embedding_loss", x, y)
    apart = ops.clip(finite("hinge_embedding_loss", "margin", margin) - x, 0)
    losses = ops.where(y == 1, 0, apart) + ops.where(y == -1, 0, x)
    return reduced("hinge_embedding_loss", losses, reduction)


def margin_ranking_loss(
    x1: Tensor, x2: Tensor, y: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return max(0, margin - y * (x1 - x2)), where y is 1 if x1 should be larger than x2, else -1.
    Raises ShapeError unless all three have the same number of axes and broadcast."""
    check_tensors("margin_ranking_loss", x1=x1, x2=x2, y=y)
    if not x1.ndim == x2.ndim == y.ndim:
        raise ShapeError(
            f"margin_ranking_loss: x1 {x1.shape}, x2 {x2.shape} and y {y.shape} do not have "
            "the same number of axes"
        )
    losses = ops.clip((x2 - x1) * y + finite("margin_ranking_loss", "margin", margin), 0)
    return reduced("margin_ranking_loss", losses, reduction)


def soft_margin_loss(x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Return log(1 + exp(-y * x)) for x and y of the same shape (raises ShapeError otherwise),
    without overflow; y is 1 or -1."""
    check_pair("soft_margin_loss", x, y)
    return reduced("soft_margin_loss", -ops.logsigmoid(x * y), reduction)


def multi_margin_loss(
    x: Tensor,
    y: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the sum of max(0, margin - x[y] + x[i]) ** p / C over the classes i other than y, for
    x (N, C) and class numbers y (N,), or x (C,) and y (). `weight` (C,) multiplies each class's
    losses.

    Raises ValueError for a p other than 1 and 2, ShapeError for shapes that do not fit, and
    IndexError for a class number outside 0..C - 1.
    """
    check_tensors("multi_margin_loss", x=x, y=y)
    if p not in (1, 2):
        raise ValueError(f"multi_margin_loss: p {p} is not 1 or 2")
    if x.ndim not in (1, 2) or y.shape != x.shape[:-1]:
        raise ShapeError(
            f"multi_margin_loss: x {x.shape} and y {y.shape} are not (N, C) and (N,), or (C,) "
            "and ()"
        )
    classes = x.shape[-1]
    check_integers("multi_margin_loss", "y", y)
    check_within("multi_margin_loss", "y", y, 0, classes - 1, IndexError)
    check_weight("multi_margin_loss", weight, classes)
    index = ops.unsqueeze(y, -1)
    right = ops.take_along_axis(x, index, -1)
    margin = finite("multi_margin_loss", "margin", margin)
    terms = ops.clip(x - right + margin, 0)
    terms = terms if p == 1 else terms * terms
    terms = ops.where(ops.one_hot(y, classes, "bool"), 0, terms)
    if weight is not None:
        terms = terms * ops.take(weight, index, 0)
    return reduced("multi_margin_loss", ops.summation(terms, -1) / classes, reduction)


def multilabel_margin_loss(x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Return the sum of max(0, 1 - x[j] + x[i]) / C over all labels j and all classes i that are
    not labels, for x (N, C) or (C,). The labels are the class numbers before the first -1 in y.
    Raises ShapeError unless x and y have the same shape, and IndexError for a class number outside
    -1..C - 1."""
    check_pair("multilabel_margin_loss", x, y)
    check_integers("multilabel_margin_loss", "y", y)
    if x.ndim not in (1, 2):
        raise ShapeError(f"multilabel_margin_loss: x has shape {x.shape}, not (N, C) or (C,)")
    classes = x.shape[-1]
    check_within("multilabel_margin_loss", "y", y, -1, classes - 1, IndexError)
    counts = ops.cumprod(ops.cast(y >= 0, "int64"), -1) > 0
    index = ops.where(counts, y, 0)
    labels = ops.unsqueeze(ops.take_along_axis(x, index, -1), -1)
    of_label = ops.one_hot(index, classes, "bool") & ops.unsqueeze(counts, -1)
    is_other = ops.logical_not(ops.any(of_label, -2, keepdims=True))
    terms = ops.clip(ops.unsqueeze(x, -2) - labels + 1.0, 0)
    terms = ops.where(is_other & ops.unsqueeze(counts, -1), terms, 0)
    losses = ops.summation(terms, (-2, -1)) / classes
    return reduced("multilabel_margin_loss", losses, reduction)


def multilabel_soft_margin_loss(
    x: Tensor, y: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Return the mean over the classes (the last axis) of the binary cross entropies of logits x
    and labels y, times `weight`. Raises ShapeError unless x and y have the same shape."""
    check_pair("multilabel_soft_margin_loss", x, y)
    losses = -(y * ops.logsigmoid(x) + (1 - y) * ops.logsigmoid(-x))
    losses = losses if weight is None else losses * weight
    return reduced("multilabel_soft_margin_loss", ops.mean(losses, -1), reduction)


def poisson_nll_loss(
    x: Tensor,
    y: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """Return exp(x) - y * x, for counts y with mean exp(x). Without `log_input`, return x - y *
    log(x + eps), for counts y with mean x. `full` adds Stirling's approximation of log(y!) where y
    is above 1. x and y broadcast."""
    check_tensors("poisson_nll_loss", x=x, y=y)
    eps = not_negative("poisson_nll_loss", "eps", eps)
    losses = ops.exp(x) - y * x if log_input else x - y * ops.log(x + eps)
    if full:
        inner = ops.where(y > 1, y, 2)
        stirling = inner * ops.log(inner) - inner + ops.log(inner * (2 * math.pi)) * 0.5
        losses = losses + ops.where(y > 1, stirling, 0)
    return reduced("poisson_nll_loss", losses, reduction)


def gaussian_nll_loss(
    x: Tensor,
    y: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Return (log(var) + (x - y) ** 2 / var) / 2, for values y with mean x and variance `var`.
    `var` is a number or a tensor of x's shape, whose last axis may be missing or have extent 1. A
    variance below `eps` counts as eps, in the gradient too. `full` adds log(2 pi) / 2.

    Raises ShapeError for a var of another shape, and ValueError for a negative var and for an eps
    that is not above 0.
    """
    check_tensors("gaussian_nll_loss", x=x, y=y)
    check_reduction("gaussian_nll_loss", reduction)
    if not finite("gaussian_nll_loss", "eps", eps) > 0:
        raise ValueError(f"gaussian_nll_loss: eps {eps} is not above 0")
    if not isinstance(var, Tensor):
        number = not_negative("gaussian_nll_loss", "var", var)
        var = init.full_like(x, number)
    if var.shape != x.shape and var.shape == x.shape[:-1]:
        var = ops.unsqueeze(var, -1)
    elif var.shape != x.shape and var.shape != (*x.shape[:-1], 1):
        raise ShapeError(
            f"gaussian_nll_loss: var has shape {var.shape}, which does not fit {x.shape}"
        )
    if state.trace is None and var.size and (least := var.cached_data.min().item()) < 0:
        raise ValueError(f"gaussian_nll_loss: var has the element {least:g}, which is negative")
    fixed = var.detach()
    var = var + (ops.clip(fixed, eps) - fixed)
    difference = x - y
    losses = (ops.log(var) + difference * difference / var) * 0.5
    losses = losses + 0.5 * math.log(2 * math.pi) if full else losses
    return reduced("gaussian_nll_loss", losses, reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Return max(0, d(anchor, positive) - d(anchor, negative) + margin), where d is
    `distance_function` (None: `pairwise_distance`). With `swap`, d(positive, negative) replaces
    d(anchor, negative) where it is smaller. Raises ShapeError unless all three have the same
    shape."""
    check_pair("triplet_margin_with_distance_loss", anchor, positive)
    check_pair("triplet_margin_with_distance_loss", anchor, negative)
    margin = finite("triplet_margin_with_distance_loss", "margin", margin)
    distance = pairwise_distance if distance_function is None else distance_function
    far = distance(anchor, negative)
    if swap:
        far = ops.minimum(far, distance(positive, negative))
    losses = ops.clip(distance(anchor, positive) - far + margin, 0)
    return reduced("triplet_margin_with_distance_loss", losses, reduction)
