"""Losses, all with a reduction "mean", "sum" or "none"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.arguments import finite, share
from ...backend_ndarray.dtypes import finfo, is_floating
from ...common.state import state
from ...errors import ShapeError
from ...ops._arguments import check_tensors
from ...ops._values import check_within, whole_numbers
from .basic import linear


def check_reduction(owner: str, reduction: str, *more: str) -> None:
    """Raise TypeError or ValueError unless `reduction` is known."""
    known = ("mean", "sum", "none", *more)
    if isinstance(reduction, Tensor):
        raise TypeError(f"{owner}: reduction is a Tensor; give weights by name, weight=...")
    if reduction not in known:
        names = ", ".join(map(repr, known[:-1])) + f" or {known[-1]!r}"
        raise ValueError(f"{owner}: reduction {reduction!r} is not {names}")


def reduced(owner: str, losses: Tensor, reduction: str) -> Tensor:
    """Return the mean or the sum of `losses`, or `losses` itself. Raises ValueError for an unknown
    `reduction`."""
    check_reduction(owner, reduction)
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def check_pair(owner: str, x: Tensor, y: Tensor) -> None:
    """Raise TypeError unless x and y are Tensors, and ShapeError unless they have the same
    shape."""
    check_tensors(owner, x=x, y=y)
    if x.shape != y.shape:
        raise ShapeError(f"{owner}: shapes {x.shape} and {y.shape} differ")


def mse_loss(x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Return (x - y) ** 2 for x and y of the same shape (raises ShapeError otherwise).

    >>> F.mse_loss(ndl.ones(3), ndl.zeros(3), reduction="sum").item()
    3.0
    """
    check_pair("mse_loss", x, y)
    difference = x - y
    return reduced("mse_loss", difference * difference, reduction)


def l1_loss(x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Return |x - y| for x and y of the same shape (raises ShapeError otherwise)."""
    check_pair("l1_loss", x, y)
    return reduced("l1_loss", ops.abs(x - y), reduction)


def smooth_l1_loss(x: Tensor, y: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """Return d * d / (2 beta) where |d| < beta, else |d| - beta / 2, with d = x - y. Raises
    ShapeError unless x and y have the same shape, and ValueError for a negative beta."""
    check_pair("smooth_l1_loss", x, y)
    if not finite("smooth_l1_loss", "beta", beta) >= 0:
        raise ValueError(f"smooth_l1_loss: beta {beta} is not >= 0")
    if beta == 0:
        return l1_loss(x, y, reduction)
    losses = _bent(ops.abs(x - y), float(beta)) / float(beta)
    return reduced("smooth_l1_loss", losses, reduction)


def huber_loss(x: Tensor, y: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """Return d * d / 2 where |d| < delta, else delta * (|d| - delta / 2), with d = x - y (Huber
    1964). Raises ShapeError unless x and y have the same shape, and ValueError unless delta is
    above 0."""
    check_pair("huber_loss", x, y)
    if not finite("huber_loss", "delta", delta) > 0:
        raise ValueError(f"huber_loss: delta {delta} is not above 0")
    return reduced("huber_loss", _bent(ops.abs(x - y), float(delta)), reduction)


def _bent(d: Tensor, end: float) -> Tensor:
    """Return d * d / 2 for d from 0 to `end`. For larger d, including inf, return the line with
    slope `end` that continues the parabola."""
    is_near = d < end
    near = ops.where(is_near, d, 0)  # inf * inf would give a NaN gradient
    return ops.where(is_near, near * near * 0.5, (d - 0.5 * end) * end)


def binary_cross_entropy(
    x: Tensor, y: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Return -(y * log(x) + (1 - y) * log(1 - x)) * weight for probabilities x and y of the
    same shape (raises ShapeError otherwise). Logarithms below -100 count as -100. In the gradient,
    the divisor x * (1 - x) is at least 1e-12. Raises ValueError for an element of x or y outside
    [0, 1], such as NaN."""
    check_pair("binary_cross_entropy", x, y)
    for what, values in (("x", x), ("y", y)):
        check_within("binary_cross_entropy", what, values, 0, 1)

    # Near 0 and 1, where the slope grows without bound, replace the loss by a line through its
    # value at x with a bounded slope.
    least = max(1e-12, 1 / float(finfo(x.dtype).max)) if is_floating(x.dtype) else 1e-12
    fixed, is_end = x.detach(), x * (1 - x) < least
    inner = ops.where(is_end, 0.5, x)
    between = y * ops.log(inner) + (1 - y) * ops.log(1 - inner)
    left, right = (ops.maximum(ops.log(p), -100) for p in (fixed, 1 - fixed))
    end = y * left + (1 - y) * right + (x - fixed) * ((y - fixed) / least)
    losses = -ops.where(is_end, end, between)
    losses = losses if weight is None else losses * weight
    return reduced("binary_cross_entropy", losses, reduction)


def binary_cross_entropy_with_logits(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Return -(pos_weight * y * log(sigmoid(x)) + (1 - y) * log(1 - sigmoid(x))) * weight for
    logits x and probabilities y of the same shape (raises ShapeError otherwise), without
    overflow."""
    check_pair("binary_cross_entropy_with_logits", x, y)
    scale = 1 if pos_weight is None else (pos_weight - 1) * y + 1
    losses = (1 - y) * x - ops.logsigmoid(x) * scale
    losses = losses if weight is None else losses * weight
    return reduced("binary_cross_entropy_with_logits", losses, reduction)


def kl_div(x: Tensor, y: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Return y * (log(y) - x) (Kullback and Leibler 1951) for log-probabilities x and
    probabilities y, which broadcast. With `log_target`, y has log-probabilities too. The reduction
    "batchmean" is the sum divided by the extent of axis 0."""
    check_reduction("kl_div", reduction, "batchmean")
    check_tensors("kl_div", x=x, y=y)
    if log_target:
        losses = ops.exp(y) * (y - x)
    else:
        losses = y * ops.log(ops.where(y == 0, 1, y)) - y * x
    if reduction == "batchmean":
        return losses.sum() / x.shape[0]
    return reduced("kl_div", losses, reduction)


def _rows(owner: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Return x (N, C, ...) or (C,) as (M, C), class numbers y (N, ...) or () as (M,), and y's
    shape. Raises ShapeError for shapes that do not fit."""
    check_tensors(owner, x=x, y=y)
    fits = x.ndim >= 1 and y.shape == (x.shape[:1] + x.shape[2:] if x.ndim > 1 else ())
    if not fits:
        raise ShapeError(
            f"{owner}: logits {x.shape} and y {y.shape} are not (N, C, ...) and (N, ...), or (C,) "
            "and ()"
        )
    index = whole_numbers(owner, "y", y)
    if x.ndim > 2:
        x = ops.permute(x, (0, *range(2, x.ndim), 1))
    classes = x.shape[-1]
    rows = x if x.ndim == 2 else ops.reshape(x, (-1, classes))
    return rows, (index if index.ndim == 1 else ops.reshape(index, (-1,))), y.shape


def check_weight(owner: str, weight: Tensor | None, classes: int) -> None:
    """Raise TypeError or ShapeError unless `weight` is None or has one element for each class."""
    if weight is None:
        return
    check_tensors(owner, weight=weight)
    if weight.shape != (classes,):
        raise ShapeError(f"{owner}: weight has shape {weight.shape}, not ({classes},)")


def _picked(x: Tensor, index: Tensor) -> Tensor:
    """Return x[i, index[i]] for each row i of x (M, C)."""
    chosen = ops.one_hot(index, x.shape[1], "bool")
    return ops.summation(ops.where(chosen, x, 0), 1)


@dataclass(frozen=True)
class _Counted:
    """The rows that count, as the class numbers (0 for ignored rows), a mask of the rows to keep,
    the weight of each row (None: 1) and, while tracing, a mask of the class numbers in range."""

    index: Tensor
    kept: Tensor
    weights: Tensor | None
    valid: Tensor | None

    def reduced(self, owner: str, losses: Tensor, reduction: str, shape: Any) -> Tensor:
        """Reduce the `losses` (M,) of the rows that count. A mean is the sum of the losses divided
        by the sum of the rows' weights."""
        check_reduction(owner, reduction)
        if self.valid is not None:  # compiled code cannot raise
            losses = ops.where(self.valid, losses, float("nan"))
        losses = ops.where(self.kept, losses, 0)
        if reduction == "none":
            return ops.reshape(losses, shape)
        total = losses.sum()
        if reduction == "sum":
            return total
        if self.weights is None:
            return total / ops.cast(self.kept.sum(), losses.dtype)
        return total / ops.where(self.kept, self.weights, 0).sum()

    def weighted(self, losses: Tensor) -> Tensor:
        """Return `losses` (M,) times the weights."""
        return losses if self.weights is None else losses * self.weights


def _counted(
    owner: str, rows: Tensor, index: Tensor, weight: Tensor | None, ignore_index: int
) -> _Counted:
    """Find which of `rows` (M, C) count; `index` (M,) has the class number of each. Raises
    IndexError for a class outside 0..C - 1 that is not ignored."""
    kept = index != ignore_index
    index = ops.where(kept, index, 0)
    check_within(owner, "y", index, 0, rows.shape[1] - 1, IndexError)
    valid = None if state.trace is None else (index >= 0) & (index < rows.shape[1])
    weights = None if weight is None else ops.take(weight, index, 0)
    return _Counted(index, kept, weights, valid)


def nll_loss(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Return -x[y] for log-probabilities x (N, C, ...) or (C,) and class numbers y (N, ...) or (),
    which are integers or floats with whole values.

    `weight` (C,) multiplies the losses of each class. Rows of class `ignore_index` do not count.
    A mean is the sum of the losses divided by the sum of the weights of the rows that count. Raises
    ShapeError for shapes that do not fit, IndexError for a class number outside 0..C - 1 (in
    compiled code the loss is NaN), and ValueError for a class number that is not whole.
    """
    rows, index, shape = _rows("nll_loss", x, y)
    check_weight("nll_loss", weight, rows.shape[1])
    counted = _counted("nll_loss", rows, index, weight, ignore_index)
    losses = counted.weighted(-_picked(rows, counted.index))
    return counted.reduced("nll_loss", losses, reduction, shape)


def cross_entropy(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return -log(softmax(x))[y] for logits x (N, C, ...) or (C,) and class numbers y (N, ...) or
    (), which are integers or floats with whole values. For probabilities y of x's shape, return the
    sum over classes of -y * log(softmax(x)).

    With `label_smoothing` s, the target is 1 - s + s / C for the class y and s / C for all others.
    The other arguments and the errors are as in `nll_loss`.

    >>> round(F.cross_entropy(ndl.Tensor([[2.0, 0.0]]), ndl.Tensor([0])).item(), 4)
    0.1269
    """
    check_tensors("cross_entropy", x=x, y=y)
    s = share("cross_entropy", "label_smoothing", label_smoothing)
    if x.ndim and x.shape == y.shape and is_floating(y.dtype):
        return _soft_cross_entropy(x, y, weight, reduction, s)
    rows, index, shape = _rows("cross_entropy", x, y)
    classes = rows.shape[1]
    check_weight("cross_entropy", weight, classes)
    counted = _counted("cross_entropy", rows, index, weight, ignore_index)
    total = ops.logsumexp(rows, axes=1)
    losses = counted.weighted(total - _picked(rows, counted.index))
    if s:
        if weight is None:
            smooth = total - ops.mean(rows, 1)
        else:
            smooth = (total * weight.sum() - ops.summation(rows * weight, 1)) / classes
        losses = losses * (1 - s) + smooth * s
    return counted.reduced("cross_entropy", losses, reduction, shape)


def linear_cross_entropy(
    x: Tensor,
    linear_weight: Tensor,
    y: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return `cross_entropy` for y and the logits x @ linear_weight + linear_bias. x is (N, in),
    linear_weight (in, C) as in `linear`, and linear_bias (C,). weight, ignore_index (None: -100),
    label_smoothing and errors are as in `cross_entropy`."""
    check_tensors("linear_cross_entropy", x=x, linear_weight=linear_weight, y=y)
    logits = linear(x, linear_weight, linear_bias)
    ignored = -100 if ignore_index is None else ignore_index
    return cross_entropy(logits, y, weight, ignored, reduction, label_smoothing)


def _soft_cross_entropy(
    x: Tensor, y: Tensor, weight: Tensor | None, reduction: str, smoothing: float
) -> Tensor:
    """Return the cross entropy of logits x and probabilities y along the class axis of x."""
    check_reduction("cross_entropy", reduction)
    axis = 0 if x.ndim == 1 else 1
    classes = x.shape[axis]
    check_weight("cross_entropy", weight, classes)
    if smoothing:
        y = y * (1 - smoothing) + smoothing / classes
    if weight is not None:
        y = y * ops.reshape(weight, (classes, *[1] * (x.ndim - 1 - axis)))
    losses = -ops.summation(ops.logsoftmax(x, axis) * y, axis)
    return reduced("cross_entropy", losses, reduction)


def cosine_embedding_loss(
    x1: Tensor, x2: Tensor, y: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return 1 - cos(x1, x2) where y is 1, max(0, cos(x1, x2) - margin) where it is -1, else 0. x1
    and x2 are (N, D) or (D,), y is (N,) or (). Raises ShapeError for shapes that do not fit."""
    check_pair("cosine_embedding_loss", x1, x2)
    check_tensors("cosine_embedding_loss", y=y)
    if x1.ndim not in (1, 2) or y.shape != x1.shape[:-1]:
        raise ShapeError(
            f"cosine_embedding_loss: x1 {x1.shape} and y {y.shape} are not (N, D) and (N,), or "
            "(D,) and ()"
        )
    eps = 1e-12  # added under the root, as in PyTorch
    squares = [ops.summation(x * x, -1) + eps for x in (x1, x2)]
    cosine = ops.summation(x1 * x2, -1) / ops.sqrt(squares[0] * squares[1])
    margin = finite("cosine_embedding_loss", "margin", margin)
    apart = ops.where(y == -1, ops.clip(cosine - margin, 0.0), 0)
    return reduced("cosine_embedding_loss", ops.where(y == 1, 1 - cosine, apart), reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Return max(0, |anchor - positive| - |anchor - negative| + margin), where |d| is (sum of |d +
    eps| ** p) ** (1 / p) over the last axis. With `swap`, |positive - negative| replaces |anchor -
    negative| where it is smaller (Balntas et al. 2016). Raises ShapeError unless all three have the
    same shape, and ValueError unless p is above 0."""
    check_pair("triplet_margin_loss", anchor, positive)
    check_pair("triplet_margin_loss", anchor, negative)
    if not finite("triplet_margin_loss", "p", p) > 0:
        raise ValueError(f"triplet_margin_loss: p {p} is not above 0")

    def distance(a: Tensor, b: Tensor) -> Tensor:
        d = a - b + eps
        if p == 2:
            return ops.sqrt(ops.summation(d * d, -1))
        return ops.summation(ops.abs(d) ** float(p), -1) ** (1 / p)

    far = distance(anchor, negative)
    if swap:
        far = ops.minimum(far, distance(positive, negative))
    losses = ops.clip(distance(anchor, positive) - far + margin, 0.0)
    return reduced("triplet_margin_loss", losses, reduction)
