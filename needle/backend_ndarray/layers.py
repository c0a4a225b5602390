"""Compute whole layers on NDArrays with the device's own kernels, in one or two passes over memory.

The kernels take inputs that are all float32 or all float64; half precision is computed in float32
and integers in float64, and results are rounded once. All functions raise ValueError if shapes do
not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .dtypes import FLOAT_OF_INTEGER, is_floating
from .ndarray import NDArray, wrap

DTYPES = ("float32", "float64")


def _run(name: str, arrays: Sequence[NDArray | None], *options: Any) -> tuple[NDArray, ...]:
    """Run a kernel on arrays. The results have the dtype of the first array."""
    first = arrays[0]
    assert first is not None
    dtype, device = first.dtype, first.device
    if dtype not in DTYPES:
        wide = "float32" if is_floating(dtype) else FLOAT_OF_INTEGER
        arrays = [a if a is None else a.astype(wide) for a in arrays]
    kernel = getattr(device.kernels, name)
    found = kernel(*[None if a is None else a.view for a in arrays], *options)
    out = tuple([wrap(device, view) for view in found])
    return out if dtype in DTYPES else tuple(a.astype(dtype) for a in out)


def batch_norm(
    x: NDArray, weight: NDArray, bias: NDArray, eps: float
) -> tuple[NDArray, NDArray, NDArray]:
    """Normalize `x` (..., C) over all axes but the last, then multiply by `weight` (C,) and add
    `bias` (C,). `eps` is added to the variance.

    Return y with the shape of `x`, the mean (C,) and the biased variance (C,)."""
    y, mean, variance = _run("batch_norm", (x, weight, bias), float(eps))
    return y, mean, variance


def batch_norm_grad(
    grad: NDArray, x: NDArray, weight: NDArray, mean: NDArray, variance: NDArray, eps: float
) -> tuple[NDArray, NDArray, NDArray]:
    """Return the gradients of `x`, weight and bias from `grad`, the gradient of y."""
    to_x, to_weight, to_bias = _run(
        "batch_norm_grad", (grad, x, weight, mean, variance), float(eps)
    )
    return to_x, to_weight, to_bias


def _fused(name: str, arrays: Sequence[NDArray], *options: Any) -> Any:
    """Run a kernel and return its views, or None if the device has no such kernel or the dtypes do
    not fit."""
    dtypes = {a.view.dtype for a in arrays}
    if len(dtypes) > 1 or not dtypes.issubset(DTYPES):
        return None
    device = arrays[0].device
    kernel = getattr(device.kernels, name, None)
    return None if kernel is None else kernel(*[a.view for a in arrays], *options)


def group_norm(
    x: NDArray, weight: NDArray, bias: NDArray, axis: int, groups: int, eps: float
) -> NDArray | None:
    """Split the channels of `x`, along `axis`, into `groups` of adjacent channels. Normalize each
    group of each sample (the axes before `axis`), then multiply by `weight` and add `bias`
    (channels,). `eps` is added to the variance.

    Return None, like `group_norm_grad`, if the device has no kernel for these arrays."""
    view = _fused("group_norm", (x, weight, bias), axis, groups, eps)
    return None if view is None else wrap(x.device, view)


def group_norm_grad(
    grad: NDArray, x: NDArray, weight: NDArray, axis: int, groups: int, eps: float
) -> tuple[NDArray, NDArray, NDArray] | None:
    """Return the gradients of `x`, weight and bias from `grad`, the gradient of y."""
    views = _fused("group_norm_grad", (grad, x, weight), axis, groups, eps)
    if views is None:
        return None
    to_x, to_weight, to_bias = [wrap(x.device, view) for view in views]
    return to_x, to_weight, to_bias


def lstm_gates(sums: NDArray, cell: NDArray) -> tuple[NDArray, NDArray]:
    """Return h' and c' of an LSTM step, each (B, H), from `sums` (B, 4 H: i, f, g, o) and `cell`
    (B, H)."""
    hidden, following = _run("lstm_gates", (sums, cell))
    return hidden, following


def lstm_gates_grad(
    sums: NDArray,
    cell: NDArray,
    following: NDArray,
    of_hidden: NDArray | None,
    of_following: NDArray | None,
) -> tuple[NDArray, NDArray]:
    """Return the gradients of `sums` and `cell` from the gradients of h' and c' (`of_hidden`,
    `of_following`, or None). `following` is c'."""
    to_sums, to_cell = _run("lstm_gates_grad", (sums, cell, following, of_hidden, of_following))
    return to_sums, to_cell


def lstm_sequence(
    projected: NDArray, h: NDArray, c: NDArray, w: NDArray
) -> tuple[NDArray, NDArray, NDArray]:
    """Run all steps of an LSTM from `projected` (T, B, 4 H: the input's part of the gates' sums),
    the states `h` and `c` (B, H), and the weight `w` (H, 4 H).

    Return h' and c' of each step (T, B, H), and the sums (T, B, 4 H)."""
    hidden, cells, sums = _run("lstm_sequence", (projected, h, c, w))
    return hidden, cells, sums


def lstm_sequence_grad(
    h: NDArray,
    c: NDArray,
    w: NDArray,
    made: tuple[NDArray, NDArray, NDArray],
    of_hidden: NDArray | None,
    of_cells: NDArray | None,
) -> tuple[NDArray, ...]:
    """Return the gradients of projected, `h`, `c` and `w` from the gradients of h' and c' of each
    step (`of_hidden`, `of_cells`, or None). `made` is the result of lstm_sequence."""
    return _run("lstm_sequence_grad", (h, c, w, *made, of_hidden, of_cells))
