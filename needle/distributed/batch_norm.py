"""Batch norm with the statistics of the whole batch."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from ..autograd.dispatch import apply
from ..autograd.tensor import Tensor, overwrite
from ..common.state import state
from ..nn.functional.norm import unbiased_variance
from ..nn.module import Module
from ..nn.norm import BatchNorm1d
from ..ops._numpy_op import Array, NumpyOp


def synchronise(model: Module, group: Any, reduction: str) -> None:
    """Make every batch norm in `model` normalize by the statistics of all ranks' rows."""
    for layer in model.modules():
        if isinstance(layer, BatchNorm1d):
            vars(layer)["forward"] = functools.partial(_forward, layer, group, reduction)


@dataclasses.dataclass(frozen=True, eq=False)
class _SumOverRanks(NumpyOp):
    """y = the sum of all ranks' x. The later sum of the model's gradients over the ranks multiplies
    this rank's gradients by `weight`, so this op's gradient divides by `weight`."""

    group: Any
    weight: float

    name = "sum_over_ranks"
    arity = 1

    def values(self, x: Array) -> Array:
        return sum(self.group._meet(f"normalizes{self.group._at}", x))

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        total = apply(self, (out_grad * self.weight,))
        return total * (1 / self.weight if self.weight else 0.0)


def _forward(layer: BatchNorm1d, group: Any, reduction: str, x: Tensor) -> Tensor:
    if not layer.training and layer.running_mean is not None:
        return type(layer).forward(layer, x)
    layer._check(x)
    weight = group._weights(reduction)
    counts = float(weight > 0)  # 0 on a rank that only repeats another rank's row
    over_ranks = functools.partial(apply, _SumOverRanks(group, weight))
    over, shape = (0, *range(2, x.ndim)), (1, layer.dim, *[1] * (x.ndim - 2))
    sizes = group._meet(f"normalizes{group._at}", counts * len(x) * math.prod(x.shape[2:]))
    size = int(sum(sizes))
    mean = over_ranks((x.sum(over) * counts,)) / size
    centred = x - mean.reshape(shape)
    variance = over_ranks(((centred * centred).sum(over) * counts,)) / size
    y = centred / (variance.reshape(shape) + layer.eps).sqrt()
    if layer.weight is not None and layer.bias is not None:
        y = y * layer.weight.reshape(shape) + layer.bias.reshape(shape)
    share = layer._share()
    if layer.training and not state.recomputing:
        unbiased = unbiased_variance("batch_norm", variance.detach(), size)
        for running, new in ((layer.running_mean, mean.detach()), (layer.running_var, unbiased)):
            if running is not None:
                overwrite(running, running * (1 - share) + new.astype(running.dtype) * share)
    return y
