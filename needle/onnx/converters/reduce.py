"""Converters of reductions along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import is_floating
from ...conversion.values import Value, along, known_integers, normal_axes, normal_axis, tensor
from ...sizes.dims import Expression
from ..graph import Node
from ..registry import converter

Reduction = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _whole(reduce: Reduction) -> Reduction:
    """Return a reduction whose results have the input's dtype, including integers."""
    return lambda x, axes, keep: ops.cast(reduce(x, axes, keep), x.dtype)


def _mean(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return ops.mean(x, axes, keep)


def _sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return ops.sum(x, axes, keep)


def _prod(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = ops.prod(x, axis, keep)
    return x


def _max(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return ops.any(x, axes, keep) if x.dtype == "bool" else ops.max(x, axes, keep)


def _min(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return ops.all(x, axes, keep) if x.dtype == "bool" else ops.min(x, axes, keep)


def _l1(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return ops.sum(ops.abs(x), axes, keep)


def _l2(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return ops.sqrt(_sum_square(x, axes, keep))


def _sum_square(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return ops.sum(ops.square(x), axes, keep)


def _log_sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return ops.log(ops.sum(x, axes, keep))


def _log_sum_exp(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    x = x if is_floating(x.dtype) else ops.cast(x, "float64")
    return ops.logsumexp(x, axes, keep)


_REDUCTIONS: dict[str, Reduction] = {
    "ReduceL1": _whole(_l1),
    "ReduceL2": _whole(_l2),
    "ReduceLogSum": _whole(_log_sum),
    "ReduceLogSumExp": _whole(_log_sum_exp),
    "ReduceMax": _max,
    "ReduceMean": _whole(_mean),
    "ReduceMin": _min,
    "ReduceProd": _whole(_prod),
    "ReduceSum": _whole(_sum),
    "ReduceSumSquare": _whole(_sum_square),
}

# The results over no elements, for reductions whose needle ops do not define them.
_OF_NOTHING: dict[str, float] = {
    "ReduceMax": -np.inf,
    "ReduceMin": np.inf,
    "ReduceLogSum": -np.inf,
    "ReduceLogSumExp": -np.inf,
}


REDUCTIONS = tuple(_REDUCTIONS)


@converter(*REDUCTIONS, since=1, known=(1,))
def reduce(node: Node, data: Value, axes: Value | None = None) -> Any:
    x = tensor(data)
    if axes is not None:
        given = known_integers(node, axes, "the axes")
    else:
        given = node.integers("axes") if node.has("axes") else ()
    if not given and node.flag("noop_with_empty_axes", False):
        return _for_each(node, x)
    over = normal_axes(node, given, x.ndim) if given else tuple(range(x.ndim))
    keep = node.flag("keepdims")
    if node.op_type in _OF_NOTHING and _is_empty(x, over):
        return _nothing(x, over, keep, _OF_NOTHING[node.op_type])
    return _REDUCTIONS[node.op_type](x, over, keep)


def _for_each(node: Node, x: Tensor) -> Tensor:
    """Reduce each element separately, along no axis."""
    lone = ops.unsqueeze(x, x.ndim)
    return _REDUCTIONS[node.op_type](lone, (x.ndim,), False)


def _is_empty(x: Tensor, axes: tuple[int, ...]) -> bool:
    return any(not isinstance(x.shape[axis], Expression) and x.shape[axis] == 0 for axis in axes)


def _nothing(x: Tensor, axes: tuple[int, ...], keep: bool, value: float) -> np.ndarray:
    if x.dtype == "bool":
        value = value > 0
    elif not is_floating(x.dtype):
        bounds = np.iinfo(x.dtype)
        value = bounds.max if value > 0 else bounds.min
    kept = [1 if i in axes else n for i, n in enumerate(x.shape)]
    shape = kept if keep else [n for i, n in enumerate(x.shape) if i not in axes]
    return np.full(shape, value, np.dtype(x.dtype))


@converter("ArgMax", "ArgMin", since=1)
def arg_extreme(node: Node, data: Value) -> Tensor:
    x = tensor(data)
    axis, keep = normal_axis(node, node.integer("axis"), x.ndim), node.flag("keepdims")
    find = ops.argmax if node.op_type == "ArgMax" else ops.argmin
    if not node.flag("select_last_index", False):
        return find(x, axis, keep)
    return ops.subtract(x.shape[axis] - 1, find(ops.flip(x, axis), axis, keep))


@converter("CumSum", "CumProd", since=11, known=(1,))
def cumulative(node: Node, data: Value, axis: Value) -> Tensor:
    x = tensor(data)
    at = normal_axis(node, known_integers(node, axis, "the axis")[0], x.ndim)
    function = ops.cumsum if node.op_type == "CumSum" else ops.cumprod
    reverse = node.flag("reverse")
    made = ops.cast(function(x, at, reverse), x.dtype)
    if not node.flag("exclusive"):
        return made
    one = [(0, 0)] * x.ndim
    one[at] = (0, 1) if reverse else (1, 0)
    kept = slice(1, None) if reverse else slice(None, x.shape[at])
    return ops.pad(made, one, 0 if node.op_type == "CumSum" else 1)[along(at, kept)]
