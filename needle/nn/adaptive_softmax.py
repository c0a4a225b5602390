"""The adaptive softmax: log-probabilities of many classes, with more features for frequent
classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .. import ops
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import count, counts, finite
from ..errors import ShapeError
from ..ops._arguments import check_tensors
from ..ops._values import check_within
from . import functional as F
from .basic import Linear
from .containers import ModuleList, Sequential
from .module import Module


class ASMoutput(NamedTuple):
    """The log-probabilities of the targets, and the mean loss."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Log-probabilities of the classes y (N,) or (), out of n_classes, given features x (N,
    in_features) or (in_features,). The most frequent classes should have the lowest numbers.
    Returns `output`, shaped like y, and `loss`, the mean of -output (Grave et al. 2017).

    The head is a Linear (with a bias if `head_bias`). It has one output for each class below
    cutoffs[0] and one for each cluster of other classes. Cluster i has the classes from cutoffs[i]
    up to the next cutoff or, for the last cluster, n_classes. It consists of two Linears without
    biases and has in_features / div_value ** (i + 1) features between them. Raises ValueError
    unless the cutoffs are ascending numbers in 1..n_classes - 1 and div_value is above 0. A call
    raises IndexError for a class number outside 0..n_classes - 1.

    >>> layer = nn.AdaptiveLogSoftmaxWithLoss(16, 100, [10, 40])
    >>> layer(ndl.zeros(3, 16), ndl.tensor([0, 50, 99])).output.shape
    (3,)
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        counts(name, in_features=in_features, n_classes=n_classes)
        ends = [count(name, f"cutoffs[{i}]", n) for i, n in enumerate(cutoffs)]
        if not ends or ends != sorted(set(ends)) or ends[-1] >= n_classes:
            raise ValueError(f"{name}: cutoffs {cutoffs} do not ascend from 1 to below {n_classes}")
        self.in_features, self.n_classes = in_features, n_classes
        self.cutoffs = [*ends, n_classes]
        self.div_value = finite(name, "div_value", div_value)
        if not self.div_value > 0:
            raise ValueError(f"{name}: div_value {div_value} is not above 0")
        clusters = len(ends)
        self.head = Linear(in_features, ends[0] + clusters, head_bias, device, dtype)
        self.tail = ModuleList()
        for i in range(clusters):
            hidden = int(in_features // self.div_value ** (i + 1))
            size = self.cutoffs[i + 1] - self.cutoffs[i]
            first = Linear(in_features, hidden, False, device, dtype)
            self.tail.append(Sequential(first, Linear(hidden, size, False, device, dtype)))

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-probabilities of all classes: x (N, in_features) -> (N, n_classes)."""
        check_tensors(type(self).__name__, x=x)
        if not x.ndim or x.shape[-1] != self.in_features:
            raise ShapeError(f"{type(self).__name__}: x {x.shape} is not (N, {self.in_features})")
        head, frequent = F.log_softmax(self.head(x)), self.cutoffs[0]
        parts = [head[..., :frequent]]
        for i, cluster in enumerate(self.tail):
            own = head[..., frequent + i : frequent + i + 1]
            parts.append(F.log_softmax(cluster(x)) + own)
        return ops.concat(parts, -1)

    def predict(self, x: Tensor) -> Tensor:
        """Return the most likely class of each row of x."""
        return ops.argmax(self.log_prob(x), -1)

    def forward(self, x: Tensor, y: Tensor) -> ASMoutput:
        check_tensors(type(self).__name__, x=x, y=y)
        if x.ndim not in (1, 2) or y.shape != x.shape[:-1]:
            raise ShapeError(
                f"{type(self).__name__}: x {x.shape} and y {y.shape} are not (N, "
                f"{self.in_features}) and (N,), or ({self.in_features},) and ()"
            )
        check_within(type(self).__name__, "y", y, 0, self.n_classes - 1, IndexError)
        index = ops.unsqueeze(y, -1)
        output = ops.squeeze(ops.take_along_axis(self.log_prob(x), index, -1), -1)
        return ASMoutput(output, -ops.mean(output))
