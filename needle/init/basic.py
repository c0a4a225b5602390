"""Tensors filled with one value or with random numbers.

All functions take `shape` as separate ints (or one tuple), `device` (None: the default device), and
`requires_grad`, by default False. A TypeError or ValueError names an invalid shape or number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import backend_ndarray as nd
from .. import ops, rng
from .._state import state
from ..backend_ndarray import Device
from ..backend_ndarray.arguments import count, finite, not_negative, share
from ..extents import is_symbolic
from ..spec import as_shape
from ..tensor import Tensor, Value


def constant(
    *shape: Any,
    c: float = 1.0,
    device: Device | None = None,
    dtype: str = "float32",
    requires_grad: bool = False,
) -> Tensor:
    """Every element `c`."""
    extents = as_shape("constant", shape)
    if state.trace is not None and is_symbolic(extents):
        return ops.broadcast_to(constant(c=c, device=device, dtype=dtype), extents)
    return Tensor(nd.full(extents, c, dtype, device), requires_grad=requires_grad)


def ones(*shape: Any, **options: Any) -> Tensor:
    """Every element 1; options as for `constant`."""
    return constant(*shape, c=1, **options)


def zeros(*shape: Any, **options: Any) -> Tensor:
    """Every element 0; options as for `constant`."""
    return constant(*shape, c=0, **options)


def ones_like(array: Tensor, **options: Any) -> Tensor:
    """Ones in the shape, dtype and device of `array`. TypeError unless it is a Tensor."""
    _check_tensor("ones_like", array)
    return ones(array.shape, **{"device": array.device, "dtype": array.dtype, **options})


def zeros_like(array: Tensor, **options: Any) -> Tensor:
    """Zeros in the shape, dtype and device of `array`. TypeError unless it is a Tensor."""
    _check_tensor("zeros_like", array)
    return zeros(array.shape, **{"device": array.device, "dtype": array.dtype, **options})


def rand(
    *shape: Any,
    low: float = 0.0,
    high: float = 1.0,
    device: Device | None = None,
    dtype: str = "float32",
    requires_grad: bool = False,
) -> Tensor:
    """Uniform on [low, high). TraceError while tracing."""
    low, high = finite("rand", "low", low), finite("rand", "high", high)
    values = rng.uniform(as_shape("rand", shape), low, high)
    return _tensor(values, device, dtype, requires_grad)


def randn(
    *shape: Any,
    mean: float = 0.0,
    std: float = 1.0,
    device: Device | None = None,
    dtype: str = "float32",
    requires_grad: bool = False,
) -> Tensor:
    """Normally distributed. TraceError while tracing."""
    mean, std = finite("randn", "mean", mean), not_negative("randn", "std", std)
    values = rng.normal(as_shape("randn", shape), mean, std)
    return _tensor(values, device, dtype, requires_grad)


def randb(
    *shape: Any,
    p: float = 0.5,
    device: Device | None = None,
    dtype: str = "bool",
    requires_grad: bool = False,
) -> Tensor:
    """True (1) with probability `p`. TraceError while tracing."""
    p = share("randb", "p", p)
    values = rng.uniform(as_shape("randb", shape), 0.0, 1.0) < p
    return _tensor(values, device, dtype, requires_grad)


def one_hot(
    n: int,
    i: Any,
    device: Device | None = None,
    dtype: str = "float32",
    requires_grad: bool = False,
) -> Tensor:
    """Rows of the n x n identity selected by the class numbers `i`: shape i.shape + (n,).

    IndexError for a number outside 0..n - 1.
    """
    n = count("one_hot", "n", n, 0)
    if not isinstance(i, Tensor):
        i = Tensor(i, device=device, requires_grad=False)
    out = ops.one_hot(i.detach(), n, dtype)
    if device is not None and device is not out.device:
        out = out.to(device)
    return Tensor(out, requires_grad=True) if requires_grad else out


def _check_tensor(name: str, array: Any) -> None:
    if not isinstance(array, Value):
        raise TypeError(f"{name}: array is a {type(array).__name__}, not a Tensor")


def _tensor(
    values: np.ndarray[Any, Any], device: Device | None, dtype: str, requires_grad: bool
) -> Tensor:
    return Tensor(values, device=device, dtype=dtype, requires_grad=requires_grad)
