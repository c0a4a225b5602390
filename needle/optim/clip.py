"""Limits for gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..backend_ndarray.arguments import not_negative
from ..backend_ndarray.dtypes import compute_dtype
from ..common.state import state
from ..errors import TraceError
from ..ops import stack


def clip_grad_norm(
    params: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> float:
    """Scale the gradients of `params` so that their joint norm, (sum of |g| ** norm_type) ** (1 /
    norm_type) or the largest |g| for inf, is at most `max_norm`.

    Returns the norm before scaling. ValueError for a negative max_norm or a norm_type that is not
    above 0; with `error_if_nonfinite`, RuntimeError for a norm that is infinite or NaN, before any
    gradient changes.

    >>> p = ndl.Tensor([3.0, 4.0])
    >>> (p * p / 2).sum().backward()
    >>> round(ndl.optim.clip_grad_norm([p], 1.0), 4)
    5.0
    >>> [round(g, 4) for g in p.grad.tolist()]
    [0.6, 0.8]
    """
    not_negative("clip_grad_norm", "max_norm", max_norm)
    if not norm_type > 0:
        raise ValueError(f"clip_grad_norm: norm_type {norm_type} is not above 0")
    if state.trace is not None:
        return _traced_norm(_listed(params), max_norm, norm_type, error_if_nonfinite)
    grads = [(p, p.grad.realize_cached_data()) for p in _listed(params) if p.grad is not None]
    wide = [g.astype(compute_dtype(g.dtype), copy=False) for _, g in grads]
    if norm_type == 2:
        total = math.sqrt(sum(float((g * g).sum()) for g in wide))
    elif math.isinf(norm_type):
        # NumPy's maximum is NaN if one of them is; Python's depends on their order.
        total = float(np.max([0.0, *(float(g.abs().max()) for g in wide if g.size)]))
    else:
        total = sum(float((g.abs() ** norm_type).sum()) for g in wide) ** (1 / norm_type)
    if error_if_nonfinite and not math.isfinite(total):
        raise RuntimeError(f"clip_grad_norm: the norm of the gradients is {total}")
    # As in torch.nn.utils.clip_grad_norm_, so that a norm of zero is not a divisor.
    scale = max_norm / (total + 1e-6)
    if not scale >= 1:
        for param, grad in grads:
            # A new array, because gradients of several parameters may share one.
            param.grad = Tensor(grad * scale, requires_grad=False)
    return total


def _traced_norm(
    params: list[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool
) -> Any:
    """`clip_grad_norm` in a trace, where the norm is a Tensor."""
    if error_if_nonfinite:
        raise TraceError(
            "clip_grad_norm: tracing: error_if_nonfinite reads the norm, which is not known while "
            "tracing: return it, and check it outside"
        )
    grads: list[tuple[Tensor, Any]] = [(p, p.grad) for p in params if p.grad is not None]
    if not grads:
        return 0.0
    wide = [g.astype(compute_dtype(g.dtype)) for _, g in grads]
    if math.isinf(norm_type):
        total = stack([g.abs().max().astype(wide[0].dtype) for g in wide]).max()
    else:
        squares = norm_type == 2
        parts = [(g * g if squares else g.abs() ** norm_type).sum() for g in wide]
        total = stack([part.astype("float64") for part in parts]).sum()
        total = total.sqrt() if squares else total ** (1 / norm_type)
    scale = (max_norm / (total + 1e-6)).clip(max=1.0)
    for param, grad in grads:
        param.grad = (grad * scale.astype(compute_dtype(grad.dtype))).astype(grad.dtype)
    return total


def clip_grad_value(params: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Limit each element of the gradients of `params` to [-clip_value, clip_value]. ValueError for
    a clip_value that is negative or not finite."""
    limit = not_negative("clip_grad_value", "clip_value", clip_value)
    for param in _listed(params):
        if param.grad is not None and state.trace is not None:
            param.grad = param.grad.clip(-limit, limit)
        elif param.grad is not None:
            grad = param.grad.realize_cached_data()
            clipped = grad.maximum(-limit).minimum(limit)
            param.grad = Tensor(clipped, requires_grad=False)


def _listed(params: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [params] if isinstance(params, Tensor) else list(params)
