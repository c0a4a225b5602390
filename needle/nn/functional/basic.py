"""Linear maps, dropout, softmax, embeddings, reshaping and distances."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ... import init, ops
from ...autograd.tensor import Tensor, make_const
from ...backend_ndarray.arguments import count, finite, fraction, not_negative
from ...backend_ndarray.dtypes import is_half
from ...common.state import no_grad, state
from ...errors import ShapeError
from ...ops._values import check_integers, check_within, whole_numbers
from ..parameter import Parameter


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight + bias: x (..., in), weight (in, out), bias (out,) or (1, out) -> (...,
    out). PyTorch's weight is (out, in). The weight of an Embedding, which is also (out, in), works
    too.

    >>> F.linear(ndl.ones(2, 3), ndl.ones(3, 4)).shape
    (2, 4)
    """
    is_table = isinstance(weight, Parameter) and weight._axes == (0, 1)
    return with_bias(ops.matmul(x, ops.transpose(weight) if is_table else weight), bias)


def with_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    """Return y + bias, in y's dtype under `autocast`."""
    if bias is None:
        return y
    if state.autocast is not None and is_half(y.dtype):
        bias = ops.cast(bias, y.dtype)
    return ops.add(y, bias if y.ndim > 1 else ops.reshape(bias, (-1,)))


def bilinear(x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the sum over i and j of x1[..., i] * weight[i, j, :] * x2[..., j], plus bias: x1 (...,
    in1), x2 (..., in2), weight (in1, in2, out) -> (..., out). Raises ShapeError for shapes that do
    not fit."""
    if weight.ndim != 3 or x1.shape[:-1] != x2.shape[:-1]:
        raise ShapeError(
            f"bilinear: x1 {x1.shape}, x2 {x2.shape} and weight {weight.shape}; they must be "
            "(..., in1), (..., in2) and (in1, in2, out)"
        )
    first, second, out = weight.shape
    if x1.shape[-1] != first or x2.shape[-1] != second:
        raise ShapeError(f"bilinear: weight {weight.shape} does not fit {x1.shape} and {x2.shape}")
    partial = ops.matmul(x1, ops.reshape(weight, (first, second * out)))
    partial = ops.reshape(partial, (*x1.shape[:-1], second, out))
    y = ops.matmul(ops.reshape(x2, (*x2.shape[:-1], 1, second)), partial)
    y = ops.reshape(y, (*x1.shape[:-1], out))
    return with_bias(y, bias)


def softmax(x: Tensor, dim: int = -1, dtype: str | None = None) -> Tensor:
    """Return exp(x) / sum(exp(x)) along the axis `dim`, without overflow. With a `dtype`, x is
    converted first."""
    return ops.softmax(x if dtype is None else ops.cast(x, dtype), dim)


def log_softmax(x: Tensor, dim: int = -1, dtype: str | None = None) -> Tensor:
    """Return log(softmax(x)) along the axis `dim`, without overflow. With a `dtype`, x is converted
    first."""
    return ops.logsoftmax(x if dtype is None else ops.cast(x, dtype), dim)


logsoftmax = log_softmax


def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Return x. If `training`, first set each element to 0 with probability `p` and divide the
    others by 1 - p (Srivastava et al. 2014). Raises ValueError for a p outside [0, 1)."""
    return _dropped("dropout", x, x.shape, p, training)


def dropout2d(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Apply `dropout`, with its p and training, to whole channels of x (N, channels, ...) (Tompson
    et al. 2014). Raises ShapeError if x has fewer than two axes."""
    if x.ndim < 2:
        raise ShapeError(f"dropout2d: x has shape {x.shape}, not (N, channels, ...)")
    return _dropped("dropout2d", x, (*x.shape[:2], *[1] * (x.ndim - 2)), p, training)


def dropout1d(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Apply `dropout`, with its p and training, to whole channels of x (N, channels, L) or
    (channels, L). Raises ShapeError for any other number of axes."""
    return _dropped("dropout1d", x, channel_mask("dropout1d", x, 1), p, training)


def dropout3d(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Apply `dropout`, with its p and training, to whole channels of x (N, channels, D, H, W) or
    (channels, D, H, W). Raises ShapeError for any other number of axes."""
    return _dropped("dropout3d", x, channel_mask("dropout3d", x, 3), p, training)


def channel_mask(owner: str, x: Tensor, axes: int) -> tuple[int, ...]:
    """Return x's shape with 1 for the extents of the `axes` axes after the channels. Raises
    ShapeError unless x has these axes, the channels, and at most one axis before the channels."""
    if x.ndim not in (axes + 1, axes + 2):
        raise ShapeError(f"{owner}: x has shape {x.shape}, not {axes + 1} or {axes + 2} axes")
    return (*x.shape[: x.ndim - axes], *[1] * axes)


def alpha_dropout(x: Tensor, p: float = 0.5, training: bool = False) -> Tensor:
    """Return x. If `training`, first set each element to SELU's least value with probability `p`,
    then scale and shift all elements so that a mean of 0 and a variance of 1 are preserved
    (Klambauer et al. 2017). Raises ValueError for a p outside [0, 1)."""
    return _alpha_dropped("alpha_dropout", x, x.shape, p, training)


def feature_alpha_dropout(x: Tensor, p: float = 0.5, training: bool = False) -> Tensor:
    """Apply `alpha_dropout`, with its p and training, to whole channels of x (N, channels, ...).
    Raises ShapeError if x has fewer than two axes."""
    if x.ndim < 2:
        raise ShapeError(f"feature_alpha_dropout: x has shape {x.shape}, not (N, channels, ...)")
    shape = (*x.shape[:2], *[1] * (x.ndim - 2))
    return _alpha_dropped("feature_alpha_dropout", x, shape, p, training)


def _alpha_dropped(
    owner: str, x: Tensor, shape: tuple[int, ...], p: float, training: bool
) -> Tensor:
    p = fraction(owner, "p", p)
    if not training or p == 0:
        return x
    least = -1.7580993408473766  # SELU's least value: minus its scale times its alpha
    scale = ((least * least * p + 1) * (1 - p)) ** -0.5
    keep = init.randb(*shape, p=1 - p, device=x.device, dtype=x.dtype)
    return x * (keep * scale) + (1 - keep - p) * (least * scale)


def _dropped(owner: str, x: Tensor, shape: tuple[int, ...], p: float, training: bool) -> Tensor:
    p = fraction(owner, "p", p)
    if not training or p == 0:
        return x
    keep = init.randb(*shape, p=1 - p, device=x.device, dtype=x.dtype)
    return x * (keep / (1 - p))


takes_floats = False  # whether row numbers may be floats; `needle.course` sets it


def embedding(
    x: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    sparse: bool = False,
) -> Tensor:
    """Return the row of `weight` (count, dim) for each index in x (...): (..., dim). The row
    `padding_idx` gets no gradient.

    The norm of a row is (sum of |w| ** norm_type) ** (1 / norm_type). With max_norm, each row that
    is looked up and has a larger norm is scaled down to max_norm, in the weight itself (in compiled
    code, only in the result). The gradient is that of the scaled weight.

    Raises TypeError unless x holds integers, IndexError for an index without a row, and ValueError
    for a padding_idx without a row, for a max_norm or norm_type that is not above 0, and for
    `sparse`, because gradients are never sparse.
    """
    if not takes_floats:
        check_integers("embedding", "x", x)
    check_dense("embedding", sparse)
    index = whole_numbers("embedding", "x", x)
    if max_norm is not None:
        check_norm("embedding", max_norm, norm_type)
        if state.trace is None:
            _renormalize(index, weight, max_norm, norm_type)
    rows = ops.embedding(index, weight)
    if max_norm is not None and state.trace is not None:
        kept = rows.detach()
        rows = (rows - kept) + kept * _shrinkage(kept, max_norm, norm_type)
    if padding_idx is None:
        return rows
    padding_idx = row_number("embedding", padding_idx, weight.shape[0])
    is_padding = ops.reshape(index == padding_idx, (*index.shape, 1))
    return ops.where(is_padding, rows.detach(), rows)


def check_norm(owner: str, max_norm: float, norm_type: float) -> None:
    """Raise ValueError or TypeError unless max_norm and norm_type are above 0."""
    for what, value in (("max_norm", max_norm), ("norm_type", norm_type)):
        if not_negative(owner, what, value) == 0:
            raise ValueError(f"{owner}: {what} {value} is not above 0")


def check_dense(owner: str, sparse: bool) -> None:
    """Raise ValueError for `sparse`."""
    if sparse:
        raise ValueError(
            f"{owner}: sparse=True asks for sparse gradients, but needle's tensors are dense; "
            "leave it out: the same rows get the same gradients"
        )


def _renormalize(index: Tensor, weight: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale down the rows of `weight` that `index` selects and whose norm is above max_norm. The
    weight gets new memory, because earlier lookups may still need the old values for their
    gradients."""
    named = np.unique(index.numpy())
    with no_grad():
        rows = ops.embedding(make_const(named, weight.device), weight)
        factor = _shrinkage(rows, max_norm, norm_type)
        is_long = factor.numpy()[:, 0] < 1
        if is_long.any():
            data = weight.realize_cached_data().copy()
            data[named[is_long]] = (rows * factor).realize_cached_data()[is_long]
            weight.data = make_const(data)


def _shrinkage(rows: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Return the factors (..., 1) that scale rows (..., dim) down to max_norm; 1 for smaller
    norms."""
    size = ops.abs(rows)
    norm = ops.summation(size**norm_type, -1, keepdims=True) ** (1 / norm_type)
    return ops.where(norm > max_norm, max_norm / (norm + 1e-7), 1.0)


def row_number(owner: str, padding_idx: int, rows: int) -> int:
    """Return `padding_idx` counted from the first row. Raises ValueError if there is no such
    row."""
    count(owner, "padding_idx", padding_idx, -rows)
    if padding_idx >= rows:
        raise ValueError(f"{owner}: padding_idx {padding_idx} is not in {-rows}..{rows - 1}")
    return padding_idx % rows


def embedding_bag(
    x: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    mode: str = "mean",
    per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    sparse: bool = False,
) -> Tensor:
    """Look up the rows of `weight` (count, dim) for each bag of indices, and return their
    elementwise sum, mean or maximum (`mode` "sum", "mean", "max"): (bags, dim). x is (bags, indices
    per bag), or (n,) with `offsets` (bags,), the first position of each bag, ascending from 0. The
    result for an empty bag is zeros.

    per_sample_weights, of x's shape, multiply the rows of a sum. The row padding_idx does not
    count. max_norm, norm_type and `sparse` are as in `embedding`. Raises ShapeError and ValueError
    for arguments that do not fit.
    """
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"embedding_bag: mode {mode!r} is not 'sum', 'mean' or 'max'")
    if per_sample_weights is not None and mode != "sum":
        raise ValueError(f"embedding_bag: per_sample_weights need mode 'sum', not {mode!r}")
    if per_sample_weights is not None and per_sample_weights.shape != x.shape:
        raise ShapeError(
            f"embedding_bag: per_sample_weights have shape {per_sample_weights.shape}, but x has "
            f"{x.shape}"
        )
    if x.ndim != (2 if offsets is None else 1):
        form = "(bags, numbers) without offsets" if offsets is None else "(n,) with offsets"
        raise ShapeError(f"embedding_bag: x has shape {x.shape}, not {form}")
    rows = embedding(x, weight, padding_idx, max_norm, norm_type, sparse)
    if per_sample_weights is not None:
        rows = rows * ops.reshape(per_sample_weights, (*x.shape, 1))
    masks = []  # which indices count, (n, 1) or (bags, n, 1)
    if padding_idx is not None:
        kept = x != row_number("embedding_bag", padding_idx, weight.shape[0])
        masks.append(ops.reshape(kept, (*kept.shape, 1)))
    if offsets is not None:
        _check_offsets(offsets, x.shape[0])
        # An index belongs to the last bag that begins at or before its position.
        bags = offsets.shape[0]
        place = ops.reshape(ops.arange(x.shape[0], device=x.device), (1, x.shape[0]))
        begun = ops.summation(ops.reshape(offsets, (bags, 1)) <= place, 0, keepdims=True)
        bag = ops.reshape(ops.arange(1, bags + 1, device=x.device), (bags, 1))
        masks.append(ops.reshape(begun == bag, (bags, x.shape[0], 1)))
        rows = ops.reshape(rows, (1, *rows.shape))
    member = None if not masks else masks[0]
    for mask in masks[1:]:
        member = ops.where(masks[0], mask, 0)
    if mode == "max":
        if member is None:
            return ops.max(rows, 1)
        top = ops.max(ops.where(member, rows, float("-inf")), 1)
        return ops.where(top == float("-inf"), 0, top)
    if member is not None:
        rows = ops.where(member, rows, 0)
    total = ops.summation(rows, 1)
    if mode == "sum":
        return total
    if member is None:
        return total / x.shape[1]
    size = ops.cast(ops.summation(member, 1), rows.dtype)
    return total / ops.maximum(size, 1)


def _check_offsets(offsets: Tensor, count: int) -> None:
    """Raise TypeError or ValueError unless the offsets are integers that ascend from 0."""
    check_integers("embedding_bag", "offsets", offsets)
    if state.trace is None and offsets.size:
        check_within("embedding_bag", "offsets[0]", offsets[0], 0, 0)
        places = offsets.numpy()
        if (places[1:] < places[:-1]).any() or places[-1] > count:
            raise ValueError(
                f"embedding_bag: offsets {places.tolist()} do not ascend within {count} numbers"
            )


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Return x with the axes from `start_dim` to `end_dim`, inclusive, merged into one. Raises
    ShapeError for axes that are out of range or in the wrong order."""
    first, last = (_axis("flatten", x, axis) for axis in (start_dim, end_dim))
    if first > last:
        raise ShapeError(f"flatten: start_dim {start_dim} is after end_dim {end_dim} of {x.shape}")
    if not x.ndim:
        return ops.reshape(x, (1,))
    return ops.reshape(x, (*x.shape[:first], prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


def unflatten(x: Tensor, dim: int, sizes: Any) -> Tensor:
    """Return x with the axis `dim` split into axes with the extents `sizes`, one of which may be
    -1. Raises ShapeError if the extents do not fit."""
    axis = _axis("unflatten", x, dim)
    return ops.reshape(x, (*x.shape[:axis], *sizes, *x.shape[axis + 1 :]))


def _axis(owner: str, x: Tensor, axis: int) -> int:
    ndim = max(x.ndim, 1)
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{owner}: axis {axis} is out of range for shape {x.shape}")
    return axis % ndim


def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """Return int64 rows of the identity matrix for class numbers x (...): (..., num_classes).
    num_classes -1 means the largest number plus 1. `needle.one_hot` returns floats. Raises
    TypeError unless x holds integers, and IndexError for a number outside 0..num_classes - 1."""
    check_integers("one_hot", "x", x)
    if num_classes == -1:
        num_classes = int(ops.max(x).item()) + 1
    return ops.one_hot(x, num_classes, "int64")


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """Return the channels of x (N, channels, ...) in the order 0, c, 2c ..., 1, c + 1 ..., where
    each of the `groups` has c channels (Zhang et al. 2018). Raises ValueError unless groups divides
    the number of channels."""
    count("channel_shuffle", "groups", groups)
    if x.ndim < 2 or x.shape[1] % groups:
        raise ValueError(
            f"channel_shuffle: groups {groups} does not divide the channels of {x.shape}"
        )
    parts = ops.reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    return ops.reshape(ops.swapaxes(parts, 1, 2), x.shape)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """Return the p-norm of x1 - x2 + eps along the last axis. x1 and x2 broadcast. `keepdim` keeps
    that axis with extent 1."""
    p = p if p == float("inf") else finite("pairwise_distance", "p", p)
    difference = x1 - x2 + finite("pairwise_distance", "eps", eps)
    return ops.norm(difference, p, -1, keepdim)


def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """Return the distances between all pairs of rows of x (n, d), each pair once, in the order of
    the rows: (n * (n - 1) / 2,). A distance is a p-norm, as in `needle.cdist`. Raises ShapeError
    unless x has two axes, and ValueError for a negative p."""
    if x.ndim != 2:
        raise ShapeError(f"pdist: x has shape {x.shape}, not (n, d)")
    p = p if p == float("inf") else not_negative("pdist", "p", p)
    first, second = np.triu_indices(x.shape[0], 1)
    rows = (ops.take(x, make_const(index, x.device), 0) for index in (first, second))
    return ops.norm(next(rows) - next(rows), p, -1)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return sum(x1 * x2) / (max(|x1|, eps) * max(|x2|, eps)) along the axis `dim`. x1 and x2
    broadcast."""
    least = eps * eps

    def length(x: Tensor) -> Tensor:
        return ops.sqrt(ops.maximum(ops.summation(x * x, dim), least))

    return ops.summation(x1 * x2, dim) / (length(x1) * length(x2))
