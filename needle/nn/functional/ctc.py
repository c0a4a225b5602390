"""Connectionist temporal classification."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor, make_const
from ...backend_ndarray import array, full
from ...backend_ndarray.arguments import count
from ...backend_ndarray.dtypes import compute_dtype
from ...common.state import state
from ...errors import ShapeError
from ...ops._values import check_within, whole_numbers
from .loss import check_reduction

# Stands for log(0), and is finite because infinite values would give NaN gradients.
_NOTHING = -1e30


def ctc_loss(
    log_probs: Tensor,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Return -log of the total probability of all paths of `input_lengths` steps that spell the
    targets after repetitions are merged and the class `blank` is removed (Graves et al. 2006; the
    forward recursion works with logarithms).

    log_probs is (steps, N, classes). targets (N, S) are class numbers; in each row, the first
    target_lengths (N,) count. targets may also be the concatenation of all targets (sum of
    target_lengths,); the values of target_lengths must then be known (raises TraceError otherwise).
    Without a batch, log_probs is (steps, classes) and targets is (S,). The `reduction` "mean" first
    divides each loss by the length of its target. Targets that no path spells give inf, or 0 with
    `zero_infinity`. The gradient is exact for any log_probs; PyTorch's is exact only if log_probs
    come from a log_softmax. Raises ShapeError for shapes that do not fit.
    """
    check_reduction("ctc_loss", reduction)
    is_single = log_probs.ndim == 2
    if is_single:
        log_probs = ops.reshape(log_probs, (log_probs.shape[0], 1, log_probs.shape[1]))
    if log_probs.ndim != 3 or log_probs.shape[0] < 1:
        raise ShapeError(
            f"ctc_loss: log_probs has shape {log_probs.shape}, not (steps, N, classes) with a step"
        )
    steps, batch, classes = log_probs.shape
    if count("ctc_loss", "blank", blank, 0) >= classes:
        raise ValueError(f"ctc_loss: blank {blank} is not in 0..{classes - 1}")
    device, dtype = log_probs.device, log_probs.dtype
    log_probs = ops.cast(log_probs, compute_dtype(dtype))
    lasts = _lengths("input_lengths", input_lengths, batch, device)
    lengths = _lengths("target_lengths", target_lengths, batch, device)
    labels = _rows(targets, lengths, is_single, device)
    if labels.shape[0] != batch:
        raise ShapeError(f"ctc_loss: targets have shape {labels.shape} for a batch of {batch}")

    check_within("ctc_loss", "input_lengths", lasts, 0, steps)
    check_within("ctc_loss", "target_lengths", lengths, 0, labels.shape[1])
    if state.trace is None:
        counts = np.arange(labels.shape[1]) < lengths.numpy()[:, None]
        labels = ops.where(Tensor(counts, device=device), labels, blank)
        check_within("ctc_loss", "targets", labels, 0, classes - 1, IndexError)

    # Put blanks around and between the labels of each target.
    size = labels.shape[1]
    end = make_const(full((batch, 1), blank, labels.dtype, device))
    blanks = ops.broadcast_to(end, (batch, size))
    around = ops.reshape(ops.stack([blanks, labels], 2), (batch, 2 * size))
    around = ops.concat([around, end], 1)
    width = 2 * size + 1
    position = ops.arange(width, device=device)
    nothing = _NOTHING

    # (steps, N, width): the log-probability of each of these labels at each step.
    first = ops.reshape(ops.arange(batch, device=device), (batch, 1)) * classes
    flat = ops.reshape(log_probs, (steps, batch * classes))
    emitted = ops.maximum(ops.take(flat, first + around, 1), nothing)

    # A path may skip the blank between two labels that differ.
    if width > 2:
        skips = around[:, 2:] != around[:, :-2]
        skips = ops.where(around[:, 2:] == blank, 0, skips)
        skips = ops.pad(skips, ((0, 0), (2, 0)), False)
    alpha = ops.where(position < 2, emitted[0], nothing)
    for step in range(1, steps):
        ways = [alpha, ops.pad(alpha[:, :-1], ((0, 0), (1, 0)), _NOTHING)] if size else [alpha]
        if width > 2:
            skipped = ops.pad(alpha[:, :-2], ((0, 0), (2, 0)), _NOTHING)
            ways.append(ops.where(skips, skipped, nothing))
        following = ops.logsumexp(ops.stack(ways, 0), 0) + emitted[step]
        goes_on = ops.reshape(lasts > step, (batch, 1))
        alpha = ops.where(goes_on, ops.maximum(following, nothing), alpha)

    # A path ends at the last label or at the blank after it.
    end = ops.reshape(lengths * 2, (batch, 1))
    is_end = ops.where(position == end, position == end, position == end - 1)
    losses = -ops.logsumexp(ops.where(is_end, alpha, nothing), 1)
    impossible = losses > -_NOTHING / 2
    losses = ops.where(impossible, 0 if zero_infinity else np.inf, losses)
    losses = ops.cast(losses, dtype)
    if reduction == "none":
        return ops.reshape(losses, ()) if is_single else losses
    if reduction == "sum":
        return losses.sum()
    long = ops.cast(ops.maximum(lengths, 1), losses.dtype)
    return (losses / long).mean()


def _lengths(what: str, lengths: Any, batch: int, device: Any) -> Tensor:
    """Return lengths (a Tensor, array, sequence or int) as int64 (batch,)."""
    found = _whole(what, lengths, device)
    found = ops.reshape(found, (1,)) if found.ndim == 0 else found
    if found.shape != (batch,):
        raise ShapeError(f"ctc_loss: {what} has shape {found.shape}, not ({batch},)")
    return found


def _whole(what: str, given: Any, device: Any) -> Tensor:
    if not isinstance(given, Tensor):
        given = make_const(array(np.asarray(given), device=device))
    return ops.cast(whole_numbers("ctc_loss", what, given), "int64")


def _rows(targets: Any, lengths: Tensor, is_single: bool, device: Any) -> Tensor:
    """Return targets as int64 (N, S)."""
    targets = _whole("targets", targets, device)
    if targets.ndim == 1 and is_single:
        return ops.reshape(targets, (1, targets.shape[0]))
    if targets.ndim == 2:
        return targets
    if targets.ndim != 1:
        raise ShapeError(f"ctc_loss: targets have shape {targets.shape}, not (N, S) or (labels,)")
    sizes = lengths.numpy()
    if sizes.sum() != targets.shape[0]:
        raise ShapeError(
            f"ctc_loss: {targets.shape[0]} labels, but target_lengths add up to {sizes.sum()}"
        )
    rows = np.zeros((len(sizes), int(sizes.max(initial=0))), "int64")
    rows[np.arange(rows.shape[1]) < sizes[:, None]] = targets.numpy()
    return make_const(array(rows, device=device))
