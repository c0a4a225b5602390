"""Convert operands that are not Tensors: Python numbers, arrays, and sizes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.dtypes import checked_scalar, scalar_dtype
from ..autograd.tensor import Tensor, make_const
from ..backend_ndarray import Device, NDArray, full
from ..op import Op
from ..sizes.dims import Expression
from ..sizes.size_numbers import SizeNumber
from .arange import arange

SCALARS = (bool, int, float)


def operand(x: Any, like: Tensor) -> Tensor | None:
    """Return `x` as a Tensor on like's device, or None if it cannot be one.

    A number gets like's dtype unless it is of a higher kind: an int with bools, a float with
    integers. Raises OverflowError, as NumPy does, for an integer that the dtype cannot hold.
    """
    if isinstance(x, Tensor):
        return x
    if isinstance(x, np.generic):
        x = x.item()
    if isinstance(x, SCALARS):
        dtype = scalar_dtype(like.dtype, x)
        checked_scalar("tensor", x, dtype)
        return make_const(_scalar(str(x), x, dtype, like.device))
    if isinstance(x, (np.ndarray, NDArray)):
        return make_const(x, like.device)
    if isinstance(x, Expression):
        dtype = scalar_dtype(like.dtype, 1)
        return _size(x, dtype, like.device)
    if isinstance(x, SizeNumber):
        value = x.evaluate(lambda size: _size(size, "float64", like.device))
        return value.astype(scalar_dtype(like.dtype, 1.0))
    return None


def _size(size: Expression, dtype: str, device: Device) -> Tensor:
    return arange(size, size + 1, dtype=dtype, device=device).reshape(())


def binary(op: Op, x: Any, other: Any, swap: bool = False) -> Any:
    """Return `x op other`, where `other` may be a Python number (weak), a NumPy array or an
    NDArray. Return NotImplemented for anything else."""
    other = operand(other, x)
    if other is None:
        return NotImplemented
    return apply(op, (other, x) if swap else (x, other))


def applied(op: Op, *inputs: Any, after: int = 0) -> Any:
    """Apply `op` to the inputs. At least one input is a Tensor; the others may be numbers and
    arrays. The first `after` inputs are Tensors whose dtype does not affect the others. Raises
    TypeError for other inputs."""
    for x in inputs:
        if not isinstance(x, Tensor):
            return apply(op, (*inputs[:after], *_tensors(inputs[after:], inputs[:after])))
    return apply(op, inputs)


def _tensors(inputs: tuple[Any, ...], before: tuple[Any, ...]) -> tuple[Any, ...]:
    like = next((x for x in inputs if isinstance(x, Tensor)), None)
    if like is None:
        # Without a Tensor, numbers get the dtype of a Tensor that is created from them.
        device = next((x.device for x in before if isinstance(x, Tensor)), None)
        numbers = all(isinstance(x, (*SCALARS, np.generic)) for x in inputs)
        if device is None or not numbers:
            return inputs  # `apply` raises an error that names them
        dtype = np.result_type(*(np.asarray(x) for x in inputs)).name
        like = make_const(full((), 0, "float32" if dtype == "float64" else dtype, device))
    found = (operand(x, like) for x in inputs)
    return tuple(x if y is None else y for x, y in zip(inputs, found, strict=True))


@functools.lru_cache(maxsize=256)
def _scalar(text: str, value: bool | int | float, dtype: str, device: Device) -> NDArray:
    """Return a cached 0-d array (`text` distinguishes 0.0 from -0.0)."""
    return full((), value, dtype, device)
