"""PyTorch's functions for gradients and parameters, from `torch.nn.utils`.

`parameters` is a Tensor or an iterable of Tensors, such as `model.parameters()`. A parameter whose
gradient is None is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.arguments import not_negative
from ...backend_ndarray.dtypes import compute_dtype
from ...common.keywords import name_functions
from ...common.state import no_grad, state
from ...errors import ShapeError, TraceError
from . import rnn

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "get_total_norm",
    "parameters_to_vector",
    "rnn",
    "vector_to_parameters",
]

Tensors = Tensor | Iterable[Tensor]


def get_total_norm(
    tensors: Tensors, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Return the joint norm of all elements of `tensors`: (sum of |x| ** norm_type) ** (1 /
    norm_type), or the largest |x| for inf, in float64. Without elements, the norm is 0.

    Raises ValueError unless norm_type is above 0. With `error_if_nonfinite`, raises RuntimeError if
    the norm is infinite or NaN, or TraceError while tracing, because the norm is not known then.
    """
    return _total_norm("get_total_norm", _listed(tensors), norm_type, error_if_nonfinite)


def clip_grad_norm_(
    parameters: Tensors,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale the gradients of `parameters` so that their joint norm, which `get_total_norm` computes
    with norm_type and error_if_nonfinite, is at most `max_norm`. Return the norm before scaling.

    >>> p = ndl.Tensor([3.0, 4.0])
    >>> (p * p / 2).sum().backward()
    >>> f"{nn.utils.clip_grad_norm_(p, 1.0):.2f}", [f"{g:.2f}" for g in p.grad]
    ('5.00', ['0.60', '0.80'])
    """
    return clip_norm("clip_grad_norm_", parameters, max_norm, norm_type, error_if_nonfinite)


def clip_grad_value_(parameters: Tensors, clip_value: float) -> None:
    """Limit each element of the gradients of `parameters` to [-clip_value, clip_value]. Raises
    ValueError for a clip_value that is negative or not finite."""
    clip_value_of("clip_grad_value_", parameters, clip_value)


def clip_norm(
    owner: str, parameters: Tensors, max_norm: float, norm_type: float, error_if_nonfinite: bool
) -> Tensor:
    """Run `clip_grad_norm_`, with errors that name `owner`."""
    not_negative(owner, "max_norm", max_norm)
    learned = [(p, p.grad) for p in _listed(parameters) if p.grad is not None]
    with no_grad():
        total = _total_norm(owner, [grad for _, grad in learned], norm_type, error_if_nonfinite)
        # The small number, as in PyTorch, avoids a division by a norm of zero.
        scale = ops.clip(max_norm / (total + 1e-6), None, 1.0)
        if state.trace is not None or not scale.item() >= 1:
            for parameter, grad in learned:
                # A new tensor, because several parameters may share one gradient.
                factor = scale.to(grad.device, compute_dtype(grad.dtype))
                parameter.grad = ops.cast(grad * factor, grad.dtype)
    return total


def clip_value_of(owner: str, parameters: Tensors, clip_value: float) -> None:
    """Run `clip_grad_value_`, with errors that name `owner`."""
    limit = not_negative(owner, "clip_value", clip_value)
    with no_grad():
        for parameter in _listed(parameters):
            if parameter.grad is not None:
                parameter.grad = ops.clip(parameter.grad, -limit, limit)


def parameters_to_vector(parameters: Tensors) -> Tensor:
    """Return the elements of all `parameters`, one parameter after the other, as one vector.
    Gradients flow through it."""
    return ops.concat([ops.reshape(p, (-1,)) for p in _listed(parameters)], 0)


def vector_to_parameters(vec: Tensor, parameters: Tensors) -> None:
    """Replace the values of `parameters` with the elements of the vector `vec`, in the order of
    `parameters_to_vector`. Raises ShapeError if the vector has a different length; then no
    parameter changes."""
    if not isinstance(vec, Tensor):
        raise TypeError(f"vector_to_parameters: vec is a {type(vec).__name__}, not a Tensor")
    listed = _listed(parameters)
    count = sum(p.numel() for p in listed)
    if vec.shape != (count,):
        raise ShapeError(f"vector_to_parameters: vec has shape {vec.shape}, not ({count},)")
    begin, vec = 0, vec.detach()
    for parameter in listed:
        end = begin + parameter.numel()
        part = ops.reshape(vec[begin:end], parameter.shape).to(parameter.device, parameter.dtype)
        parameter.data = part.clone()
        begin = end


def _total_norm(
    owner: str, tensors: list[Tensor], norm_type: float, error_if_nonfinite: bool
) -> Tensor:
    norm_type = float(norm_type)
    if not norm_type > 0:
        raise ValueError(f"{owner}: norm_type {norm_type} is not above 0")
    if error_if_nonfinite and state.trace is not None:
        raise TraceError(
            f"{owner}: tracing: error_if_nonfinite reads the norm, which is not known while "
            "tracing: return the norm, and check it outside"
        )
    tensors = [x for x in tensors if x.size]
    if not tensors:
        return Tensor(0.0, dtype="float64", requires_grad=False)
    place, wide = tensors[0].device, [ops.cast(x, compute_dtype(x.dtype)) for x in tensors]
    if math.isinf(norm_type):
        parts = [ops.max(ops.abs(x)).to(place, "float64") for x in wide]
        total = ops.max(ops.stack(parts))
    else:
        sizes = [x * x if norm_type == 2 else ops.abs(x) ** norm_type for x in wide]
        parts = [ops.summation(size).to(place, "float64") for size in sizes]
        total = ops.summation(ops.stack(parts))
        total = ops.sqrt(total) if norm_type == 2 else total ** (1 / norm_type)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(f"{owner}: the norm of the gradients is {total.item()}")
    return total


def _listed(tensors: Tensors) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


globals().update(name_functions((n, globals()[n]) for n in __all__ if n != "rnn"))
