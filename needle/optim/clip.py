"""Gradient clipping: the functions of nn.utils, with needle's names and results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..autograd.tensor import Tensor
from ..common.state import state
from ..nn.utils import clip_norm, clip_value_of


def clip_grad_norm(
    params: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> float:
    """Scale the gradients of `params` so that their joint norm, (sum of |g| ** norm_type) ** (1 /
    norm_type) or the largest |g| for inf, is at most `max_norm`.

    Returns the norm before scaling; in a trace the norm is a Tensor. Raises ValueError for a
    negative max_norm or a norm_type that is not above 0. With `error_if_nonfinite`, raises
    RuntimeError for a norm that is infinite or NaN, before any gradient changes (a TraceError while
    tracing).

    >>> p = ndl.Tensor([3.0, 4.0])
    >>> (p * p / 2).sum().backward()
    >>> round(ndl.optim.clip_grad_norm([p], 1.0), 4)
    5.0
    >>> [round(g, 4) for g in p.grad.tolist()]
    [0.6, 0.8]
    """
    total: Any = clip_norm("clip_grad_norm", params, max_norm, norm_type, error_if_nonfinite)
    return total if state.trace is not None else total.item()


def clip_grad_value(params: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Limit each element of the gradients of `params` to [-clip_value, clip_value]. Raises
    ValueError for a clip_value that is negative or not finite."""
    clip_value_of("clip_grad_value", params, clip_value)
