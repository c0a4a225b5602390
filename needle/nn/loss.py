"""Losses."""

from __future__ import annotations

from .. import ops
from ..backend_ndarray.arguments import share
from ..errors import ShapeError
from ..tensor import Tensor
from .module import Module


class _Loss(Module):
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(
                f"{type(self).__name__}: reduction {reduction!r} is not 'mean', 'sum' or 'none'"
            )
        self.reduction = reduction

    def _reduced(self, losses: Tensor) -> Tensor:
        if self.reduction == "none":
            return losses
        return losses.mean() if self.reduction == "mean" else losses.sum()

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class CrossEntropyLoss(_Loss):
    """Cross entropy of logits (N, C) against class numbers (N,), which are integers or whole
    floats; reduction: mean, sum, or none for a loss of shape (N,).

    With `label_smoothing` s the target is 1 - s + s / C for the class and s / C for all others.
    """

    def __init__(self, reduction: str = "mean", label_smoothing: float = 0.0) -> None:
        super().__init__(reduction)
        self.label_smoothing = share("CrossEntropyLoss", "label_smoothing", label_smoothing)

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        if logits.ndim != 2 or y.shape != logits.shape[:1]:
            raise ShapeError(
                f"CrossEntropyLoss: logits {logits.shape} and y {y.shape} are not (N, C) and (N,)"
            )
        picked = (logits * ops.one_hot(y, logits.shape[1], logits.dtype)).sum(1)
        s = self.label_smoothing
        if s:
            picked = picked * (1 - s) + logits.mean(1) * s
        return self._reduced(ops.logsumexp(logits, axes=1) - picked)


class MSELoss(_Loss):
    """(x - y) ** 2 for x and y of one shape; reduction: mean, sum, or none."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if x.shape != y.shape:
            raise ShapeError(f"MSELoss: shapes {x.shape} and {y.shape} differ")
        difference = x - y
        return self._reduced(difference * difference)
