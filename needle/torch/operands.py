"""Helpers for the converters of PyTorch operators: common dtypes of operands, axes, numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ops
from ..autograd.tensor import Tensor
from ..backend_ndarray.dtypes import FLOATING, is_half, result_type
from ..conversion.values import Value, tensor
from ..sizes.dims import Expression
from ..sizes.extents import same
from .program import Node

Number = bool | int | float
_RANKS = {"bool": 0, "int": 1, "float": 2}  # PyTorch's categories of dtypes
_DEFAULTS = {"bool": "bool", "int": "int64", "float": "float32"}  # the dtypes of Python numbers


def is_tensor(value: Any) -> bool:
    """Return whether an argument is a tensor, with a known value or not."""
    return isinstance(value, (Tensor, np.ndarray))


def category(dtype: str) -> str:
    """Return PyTorch's category of a `dtype`: "bool", "int" or "float"."""
    return "bool" if dtype == "bool" else "float" if dtype in FLOATING else "int"


def promoted_dtype(*operands: Any) -> str:
    """Return the common dtype of `operands` by PyTorch's rules (torch.result_type). A 0-d tensor
    counts only if its category is higher than the category of all tensors with axes, and a Python
    number only if its category is higher than the category of all tensors."""
    levels: list[str | None] = [None, None, None]  # tensors with axes, tensors without, numbers
    for each in operands:
        if each is None:
            continue
        if is_tensor(each):
            level, dtype = (0 if len(each.shape) else 1), dtype_name(each)
        else:
            kind = "int" if isinstance(each, Expression) else type(each).__name__
            level, dtype = 2, _DEFAULTS.get(kind, "float32")
        before = levels[level]
        levels[level] = dtype if before is None else _joined(before, dtype)
    result: str | None = None
    for each in levels:
        if each is not None and (result is None or _rank(each) > _rank(result)):
            result = each
    assert result is not None, "an operator has operands"
    return result


def _rank(dtype: str) -> int:
    return _RANKS[category(dtype)]


def _joined(a: str, b: str) -> str:
    """Return the common dtype of two tensors: the dtype of the higher category or, if both are in
    the same category, the result of `result_type`."""
    if category(a) != category(b):
        return a if _rank(a) > _rank(b) else b
    return result_type(a, b)


def dtype_name(value: Value) -> str:
    """Return the name of a tensor's dtype."""
    return value.dtype if isinstance(value, Tensor) else value.dtype.name


def cast(value: Any, dtype: str) -> Tensor:
    """Return a tensor, a number or a size as a Tensor of `dtype`."""
    if not is_tensor(value):
        return number(value, dtype)
    found = tensor(value)
    return found if found.dtype == dtype else ops.cast(found, dtype)


def number(value: Any, dtype: str) -> Tensor:
    """Return a Python number or a size as a 0-d Tensor of `dtype`."""
    if isinstance(value, Expression):
        from ..conversion.values import size_tensor

        found = size_tensor(value)
        return found if dtype == "int64" else ops.cast(found, dtype)
    return Tensor(np.array(value).astype(dtype), requires_grad=False)


def promoted(node: Node, *operands: Any) -> list[Tensor]:
    """Return the `operands` as Tensors of the dtype that PyTorch computes in."""
    dtype = promoted_dtype(*operands)
    return [cast(each, dtype) for each in operands]


def floating(x: Value) -> Tensor:
    """Return a tensor with a floating dtype; other dtypes become float32, as in PyTorch's
    functions."""
    found = tensor(x)
    return found if found.dtype in FLOATING else ops.cast(found, "float32")


def wide(x: Value) -> Tensor:
    """Return a tensor in the dtype that PyTorch computes in. Half precision becomes float32, and
    the final result is rounded once."""
    found = tensor(x)
    return ops.cast(found, "float32") if is_half(found.dtype) else found


def axes_of(x: Value, dim: Any) -> tuple[int, ...]:
    """Return PyTorch's axes `dim` (one axis, several, or None or () for all), counted from the
    front. PyTorch also accepts the axes 0 and -1 for a 0-d tensor; the result is then ()."""
    ndim = len(x.shape)
    if not ndim or dim is None or dim == ():
        return tuple(range(ndim))
    return tuple(axis % ndim for axis in (dim if isinstance(dim, tuple) else (dim,)))


def with_axis(x: Value) -> Tensor:
    """Return a 0-d tensor with shape (1,); return other tensors unchanged."""
    found = tensor(x)
    return found if found.ndim else ops.reshape(found, (1,))


def permuted(x: Tensor, order: Any) -> Tensor:
    """Return a tensor with its axes in this `order`. If only axes of extent 1 move, the elements
    stay where they are in memory and the tensor is reshaped."""
    axes = [axis % x.ndim for axis in order]
    moved = [axis for axis in axes if not same(x.shape[axis], 1)]
    if moved == sorted(moved) and axes != sorted(axes):
        return ops.reshape(x, [x.shape[axis] for axis in axes])
    return ops.permute(x, axes)


def in_float32(function: Callable[..., Any], *operands: Tensor | None) -> Any:
    """Apply a `function` to `operands`. Half precision is computed in float32 and rounded once."""
    dtype = next(each.dtype for each in operands if each is not None)
    if not is_half(dtype):
        return function(*operands)
    made = function(*(None if each is None else wide(each) for each in operands))
    if isinstance(made, tuple):
        return tuple(cast(each, dtype) if each.dtype == "float32" else each for each in made)
    return cast(made, dtype)


def arithmetic(node: Node, function: Callable[..., Tensor], *operands: Any) -> Tensor:
    """Apply one operation to tensors and numbers in the dtype of a node's result. If the result is
    in half precision and an operand is a number that half precision cannot represent, or a 0-d
    tensor of a wider dtype, compute in float32 and round once."""
    if is_half(node.dtype) and any(_is_finer(each, node.dtype) for each in operands):
        return computed(node, function, *operands)
    return function(*(cast(each, node.dtype) for each in operands))


def computed(node: Node, function: Callable[..., Tensor], *operands: Any) -> Tensor:
    """Apply a `function` to tensors and numbers in the dtype of a node's result. Half precision is
    computed in float32 and rounded once."""
    dtype = "float32" if is_half(node.dtype) else node.dtype
    return cast(function(*(cast(each, dtype) for each in operands)), node.dtype)


def _is_finer(value: Any, half: str) -> bool:
    if is_tensor(value):
        return not value.shape and dtype_name(value) in ("float32", "float64")
    return isinstance(value, (int, float)) and float(np.array(value).astype(half)) != value
