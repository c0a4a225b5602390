"""Losses with margins or several labels, and negative log-likelihoods, as modules;
needle.nn.functional has them as functions."""

from __future__ import annotations

from collections.abc import Callable

from ..autograd.tensor import Tensor
from ..backend_ndarray.arguments import finite, not_negative
from . import functional as F
from .loss import Loss, WeightedLoss


class HingeEmbeddingLoss(Loss):
    """x where y is 1 and max(0, margin - x) where it is -1, for x and y of the same shape;
    reduction: mean, sum, or none."""

    def __init__(self, margin: float = 1.0, *, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = finite("HingeEmbeddingLoss", "margin", margin)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.hinge_embedding_loss(x, y, self.margin, self.reduction)


class MarginRankingLoss(Loss):
    """max(0, margin - y * (x1 - x2)), where y is 1 if x1 should be larger than x2, else -1;
    reduction: mean, sum, or none."""

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = finite("MarginRankingLoss", "margin", margin)

    def forward(self, x1: Tensor, x2: Tensor, y: Tensor) -> Tensor:
        return F.margin_ranking_loss(x1, x2, y, self.margin, self.reduction)


class SoftMarginLoss(Loss):
    """log(1 + exp(-y * x)) for x and y of the same shape, where y is 1 or -1; reduction: mean, sum,
    or none."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.soft_margin_loss(x, y, self.reduction)


class MultiMarginLoss(WeightedLoss):
    """The sum of max(0, margin - x[y] + x[i]) ** p / C over the classes i other than y, for x (N,
    C) and class numbers y (N,), with a p of 1 or 2. `weight` (C,) multiplies each class's losses;
    reduction: mean, sum, or none."""

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Tensor | None = None,
        *,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction, weight)
        if p not in (1, 2):
            raise ValueError(f"MultiMarginLoss: p {p!r} is not 1 or 2")
        self.p = p
        self.margin = finite("MultiMarginLoss", "margin", margin)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.multi_margin_loss(x, y, self.p, self.margin, self.weight, self.reduction)


class MultiLabelMarginLoss(Loss):
    """The sum of max(0, 1 - x[j] + x[i]) / C over all labels j and all classes i that are not
    labels, for x (N, C). The labels are the class numbers in y (N, C) before the first -1;
    reduction: mean, sum, or none."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.multilabel_margin_loss(x, y, self.reduction)


class MultiLabelSoftMarginLoss(WeightedLoss):
    """The mean over the classes (the last axis) of the binary cross entropies of logits x and
    labels y of the same shape, times `weight`; reduction: mean, sum, or none."""

    def __init__(self, weight: Tensor | None = None, *, reduction: str = "mean") -> None:
        super().__init__(reduction, weight)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.multilabel_soft_margin_loss(x, y, self.weight, self.reduction)


class PoissonNLLLoss(Loss):
    """exp(x) - y * x, for counts y with mean exp(x). Without `log_input`, x - y * log(x + eps), for
    counts y with mean x. `full` adds Stirling's approximation of log(y!) where y is above 1;
    reduction: mean, sum, or none."""

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        *,
        eps: float = 1e-8,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.log_input, self.full = log_input, full
        self.eps = not_negative("PoissonNLLLoss", "eps", eps)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.poisson_nll_loss(x, y, self.log_input, self.full, self.eps, self.reduction)


class GaussianNLLLoss(Loss):
    """(log(var) + (x - y) ** 2 / var) / 2, for values y with mean x and variance `var`, which
    counts as at least `eps`. `full` adds log(2 pi) / 2; reduction: mean, sum, or none. Shapes and
    errors are as in `needle.nn.functional.gaussian_nll_loss`."""

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.full = full
        self.eps = finite("GaussianNLLLoss", "eps", eps)

    def forward(self, x: Tensor, y: Tensor, var: Tensor | float) -> Tensor:
        return F.gaussian_nll_loss(x, y, var, self.full, self.eps, self.reduction)


class TripletMarginWithDistanceLoss(Loss):
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), where d is `distance_function`
    (None: the Euclidean distance). With `swap`, d(positive, negative) replaces d(anchor, negative)
    where it is smaller. reduction: mean, sum, or none."""

    def __init__(
        self,
        *,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.distance_function = distance_function
        self.margin = finite("TripletMarginWithDistanceLoss", "margin", margin)
        self.swap = swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_with_distance_loss(
            anchor,
            positive,
            negative,
            distance_function=self.distance_function,
            margin=self.margin,
            swap=self.swap,
            reduction=self.reduction,
        )
