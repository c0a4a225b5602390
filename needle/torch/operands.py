"""What converters of PyTorch operators share: operands of one dtype, axes, numbers."""

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
_DEFAULTS = {"bool": "bool", "int": "int64", "float": "float32"}  # of Python's numbers


def is_tensor(value: Any) -> bool:
    """Whether an argument is a tensor, known or not."""
    return isinstance(value, (Tensor, np.ndarray))


def category(dtype: str) -> str:
    """PyTorch's category of a dtype: "bool", "int" or "float"."""
    return "bool" if dtype == "bool" else "float" if dtype in FLOATING else "int"


def promoted_dtype(*operands: Any) -> str:
    """The dtype that operands are brought to, by PyTorch's rules (torch.result_type): a tensor of
    no axis decides only if its category is higher than those of the others, and a number of
    Python's only if its category is higher than those of all tensors."""
    levels: list[str | None] = [None, None, None]  # of tensors with axes, without, of numbers
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
    found: str | None = None
    for each in levels:
        if each is not None and (found is None or _rank(each) > _rank(found)):
            found = each
    assert found is not None, "an operator has operands"
    return found


def _rank(dtype: str) -> int:
    return _RANKS[category(dtype)]


def _joined(a: str, b: str) -> str:
    """The common dtype of two tensors: that of the higher category, else NumPy's, but for a
    floating type, which PyTorch widens by as little."""
    if category(a) != category(b):
        return a if _rank(a) > _rank(b) else b
    return result_type(a, b)


def dtype_name(value: Value) -> str:
    """The name of a tensor's dtype."""
    return value.dtype if isinstance(value, Tensor) else value.dtype.name


def cast(value: Any, dtype: str) -> Tensor:
    """A tensor, a number or a size as a Tensor of a dtype."""
    if not is_tensor(value):
        return number(value, dtype)
    found = tensor(value)
    return found if found.dtype == dtype else ops.cast(found, dtype)


def number(value: Any, dtype: str) -> Tensor:
    """A number of Python's, or a size, as a Tensor of no axis."""
    if isinstance(value, Expression):
        from ..conversion.values import size_tensor

        found = size_tensor(value)
        return found if dtype == "int64" else ops.cast(found, dtype)
    return Tensor(np.array(value).astype(dtype), requires_grad=False)


def promoted(node: Node, *operands: Any) -> list[Tensor]:
    """The operands as Tensors of the dtype that PyTorch computes in."""
    dtype = promoted_dtype(*operands)
    return [cast(each, dtype) for each in operands]


def floating(x: Value) -> Tensor:
    """A tensor as one of a floating dtype: others become float32, as PyTorch's functions do."""
    found = tensor(x)
    return found if found.dtype in FLOATING else ops.cast(found, "float32")


def wide(x: Value) -> Tensor:
    """A tensor in the dtype that PyTorch computes it in: halves in float32, which are rounded once
    at the end."""
    found = tensor(x)
    return ops.cast(found, "float32") if is_half(found.dtype) else found


def axes_of(x: Value, dim: Any) -> tuple[int, ...]:
    """PyTorch's axes (one, several, or None or none of them for all) counted from the front. A
    tensor of no axis has the axes 0 and -1, along which it has one element."""
    ndim = len(x.shape)
    if not ndim or dim is None or dim == ():
        return tuple(range(ndim))
    return tuple(axis % ndim for axis in (dim if isinstance(dim, tuple) else (dim,)))


def with_axis(x: Value) -> Tensor:
    """A tensor of no axis as one of one element; others as they are."""
    found = tensor(x)
    return found if found.ndim else ops.reshape(found, (1,))


def permuted(x: Tensor, order: Any) -> Tensor:
    """A tensor with its axes in this order. Where axes of extent 1 alone move, its elements stay
    where they are in memory, and it is the same in another shape."""
    axes = [axis % x.ndim for axis in order]
    moved = [axis for axis in axes if not same(x.shape[axis], 1)]
    if moved == sorted(moved) and axes != sorted(axes):
        return ops.reshape(x, [x.shape[axis] for axis in axes])
    return ops.permute(x, axes)


def in_float32(function: Callable[..., Any], *operands: Tensor | None) -> Any:
    """What a function makes of these operands; halves are computed in float32 and rounded once."""
    dtype = next(each.dtype for each in operands if each is not None)
    if not is_half(dtype):
        return function(*operands)
    made = function(*(None if each is None else wide(each) for each in operands))
    if isinstance(made, tuple):
        return tuple(cast(each, dtype) if each.dtype == "float32" else each for each in made)
    return cast(made, dtype)


def arithmetic(node: Node, function: Callable[..., Tensor], *operands: Any) -> Tensor:
    """One operation of tensors and numbers in the dtype of a node's result. Halves beside what they
    do not hold, a number or a wider tensor of no axis, are computed in float32 and rounded once."""
    if is_half(node.dtype) and any(_is_finer(each, node.dtype) for each in operands):
        return computed(node, function, *operands)
    return function(*(cast(each, node.dtype) for each in operands))


def computed(node: Node, function: Callable[..., Tensor], *operands: Any) -> Tensor:
    """What a function makes of tensors and numbers in the dtype of a node's result; halves are
    computed in float32 and rounded once."""
    dtype = "float32" if is_half(node.dtype) else node.dtype
    return cast(function(*(cast(each, dtype) for each in operands)), node.dtype)


def _is_finer(value: Any, half: str) -> bool:
    if is_tensor(value):
        return not value.shape and dtype_name(value) in ("float32", "float64")
    return isinstance(value, (int, float)) and float(np.array(value).astype(half)) != value
