"""Losses as modules; needle.nn.functional has them as functions."""

from __future__ import annotations

from typing import Any

from .. import ops
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import count, finite, not_negative, share
from ..errors import ShapeError
from ..ops._values import check_within, whole_numbers
from . import functional as F
from .basic import Linear
from .functional.loss import check_reduction
from .module import Module


class SoftmaxLoss(Module):
    """The mean cross entropy of logits (N, C) and class numbers (N,), which are integers or floats
    with whole values."""

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        if logits.ndim != 2 or y.shape != logits.shape[:1]:
            raise ShapeError(
                f"SoftmaxLoss: logits {logits.shape} and y {y.shape} are not (N, C) and (N,)"
            )
        rows, classes = logits.shape
        y = whole_numbers("SoftmaxLoss", "y", y)
        check_within("SoftmaxLoss", "y", y, 0, classes - 1, IndexError)
        picked = logits * ops.one_hot(y, classes, logits.dtype)
        return (ops.logsumexp(logits, axes=1) - picked.sum(1)).sum() / rows


class Loss(Module):
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        check_reduction(type(self).__name__, reduction)
        self.reduction = reduction

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class WeightedLoss(Loss):
    """Base class of losses with a buffer of weights for classes or elements."""

    def __init__(self, reduction: str, weight: Tensor | None) -> None:
        super().__init__(reduction)
        self.weight = self._constant("weight", weight)

    def _constant(self, what: str, weight: Any) -> Tensor | None:
        if weight is None:
            return None
        if not isinstance(weight, Tensor):
            name = type(self).__name__
            raise TypeError(f"{name}: {what} is a {type(weight).__name__}, not a Tensor or None")
        return weight.detach()


class CrossEntropyLoss(WeightedLoss):
    """The cross entropy of logits (N, C, ...) and targets: class numbers (N, ...), which are
    integers or floats with whole values, or probabilities of the logits' shape. reduction: mean,
    sum, or none (a loss of shape (N, ...)).

    With `label_smoothing` s, the target is 1 - s + s / C for the class y and s / C for all others.
    `weight` (C,) multiplies the losses of each class; it may also be the first argument. Rows of
    class `ignore_index` do not count. A mean is the sum of the losses divided by the sum of the
    weights of the rows that count.

    >>> round(nn.CrossEntropyLoss()(ndl.zeros(2, 4), ndl.Tensor([0, 3])).item(), 4)
    1.3863
    """

    def __init__(
        self,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
    ) -> None:
        if isinstance(reduction, Tensor):  # in PyTorch the weights are the first argument
            if weight is not None:
                raise TypeError("CrossEntropyLoss: weight is given twice, first as reduction")
            reduction, weight = "mean", reduction
        super().__init__(reduction, weight)
        self.label_smoothing = share("CrossEntropyLoss", "label_smoothing", label_smoothing)
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        options = self.weight, self.ignore_index, self.reduction, self.label_smoothing
        return F.cross_entropy(logits, y, *options)


class LinearCrossEntropyLoss(CrossEntropyLoss):
    """`linear`, a Linear from in_features to num_classes, followed by CrossEntropyLoss: x (N,
    in_features), y (N,). Arguments and errors are as in CrossEntropyLoss and Linear."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = False,
        device: DeviceLike | None = None,
        dtype: str = "float32",
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        ignored = -100 if ignore_index is None else ignore_index
        super().__init__(reduction, label_smoothing, weight=weight, ignore_index=ignored)
        self.linear = Linear(in_features, num_classes, bias, device, dtype)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(self.linear(x), y)


class NLLLoss(WeightedLoss):
    """-x[y] for log-probabilities x (N, C, ...) and class numbers y (N, ...). `weight`,
    `ignore_index` and `reduction` are as in CrossEntropyLoss."""

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction, weight)
        self.ignore_index = ignore_index

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.nll_loss(x, y, self.weight, self.ignore_index, self.reduction)


class MSELoss(Loss):
    """(x - y) ** 2 for x and y of the same shape; reduction: mean, sum, or none.

    >>> nn.MSELoss()(ndl.Tensor([1.0, 3.0]), ndl.zeros(2)).item()
    5.0
    """

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(x, y, self.reduction)


class L1Loss(Loss):
    """|x - y| for x and y of the same shape; reduction: mean, sum, or none."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.l1_loss(x, y, self.reduction)


class SmoothL1Loss(Loss):
    """With d = x - y, d * d / (2 beta) where |d| < beta, else |d| - beta / 2; reduction: mean, sum,
    or none."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = not_negative("SmoothL1Loss", "beta", beta)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.smooth_l1_loss(x, y, self.reduction, self.beta)


class HuberLoss(Loss):
    """With d = x - y, d * d / 2 where |d| < delta, else delta * (|d| - delta / 2); reduction: mean,
    sum, or none (Huber 1964)."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = finite("HuberLoss", "delta", delta)
        if not delta > 0:
            raise ValueError(f"HuberLoss: delta {delta} is not above 0")

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.huber_loss(x, y, self.reduction, self.delta)


class BCELoss(WeightedLoss):
    """-(y * log(x) + (1 - y) * log(1 - x)) * weight for probabilities x and y of the same shape,
    where a logarithm below -100 counts as -100; reduction: mean, sum, or none. Raises ValueError
    for an element of x or y outside [0, 1]."""

    def __init__(self, weight: Tensor | None = None, *, reduction: str = "mean") -> None:
        super().__init__(reduction, weight)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy(x, y, self.weight, self.reduction)


class BCEWithLogitsLoss(WeightedLoss):
    """The binary cross entropy of logits x and probabilities y of the same shape, without overflow,
    times `weight`; `pos_weight` multiplies the term with the factor y. reduction: mean, sum, or
    none.

    >>> round(nn.BCEWithLogitsLoss()(ndl.zeros(3), ndl.ones(3)).item(), 4)
    0.6931
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(reduction, weight)
        self.pos_weight = self._constant("pos_weight", pos_weight)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        options = self.weight, self.reduction, self.pos_weight
        return F.binary_cross_entropy_with_logits(x, y, *options)


class KLDivLoss(Module):
    """y * (log(y) - x) for log-probabilities x and probabilities y; with `log_target`, y has
    log-probabilities too. reduction: mean, sum, none, or batchmean, which is the sum divided by the
    extent of axis 0 (Kullback and Leibler 1951)."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__()
        check_reduction("KLDivLoss", reduction, "batchmean")
        self.reduction = reduction
        self.log_target = log_target

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.kl_div(x, y, self.reduction, self.log_target)

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, log_target={self.log_target}"


class CTCLoss(Loss):
    """Connectionist temporal classification: the negative log-probability that a sequence of
    classes and blanks spells a target (Graves et al. 2006). blank, reduction, the arguments of
    forward, shapes and errors are as in `needle.nn.functional.ctc_loss`."""

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        super().__init__(reduction)
        self.blank = count("CTCLoss", "blank", blank, 0)
        self.zero_infinity = zero_infinity

    def forward(
        self, log_probs: Tensor, targets: Any, input_lengths: Any, target_lengths: Any
    ) -> Tensor:
        options = self.blank, self.reduction, self.zero_infinity
        return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, *options)


class CosineEmbeddingLoss(Loss):
    """1 - cos(x1, x2) where y is 1, max(0, cos(x1, x2) - margin) where it is -1, for x1 and x2 (N,
    D) and y (N,); reduction: mean, sum, or none."""

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = finite("CosineEmbeddingLoss", "margin", margin)

    def forward(self, x1: Tensor, x2: Tensor, y: Tensor) -> Tensor:
        return F.cosine_embedding_loss(x1, x2, y, self.margin, self.reduction)


class TripletMarginLoss(Loss):
    """max(0, |anchor - positive| - |anchor - negative| + margin) with the p-norm over the last
    axis. With `swap`, |positive - negative| replaces |anchor - negative| where it is smaller.
    reduction: mean, sum, or none (Balntas et al. 2016)."""

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        *,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.margin = finite("TripletMarginLoss", "margin", margin)
        self.p = finite("TripletMarginLoss", "p", p)
        self.eps = finite("TripletMarginLoss", "eps", eps)
        self.swap = swap
        if not p > 0:
            raise ValueError(f"TripletMarginLoss: p {p} is not above 0")

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        options = self.margin, self.p, self.eps, self.swap, self.reduction
        return F.triplet_margin_loss(anchor, positive, negative, *options)
