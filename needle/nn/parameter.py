"""Parameter: a tensor that a module learns."""

from __future__ import annotations

from typing import Any

from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.dtypes import is_floating


class Parameter(Tensor):
    """A Tensor that is a learned part of a Module: the arguments are those of Tensor. TypeError for
    integers and bools, which have no gradient, unless `requires_grad` is False.

    Under `needle.no_grad()`, `p -= lr * p.grad` and the like write into the Parameter in place.
    Where gradients are recorded they are a RuntimeError. The result must have the Parameter's
    shape (ShapeError) and is rounded to its dtype (TypeError for floats into integers).

    >>> class Scale(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.scale = nn.Parameter(ndl.ones(3))
    ...
    ...     def forward(self, x):
    ...         return x * self.scale
    >>> [name for name, _ in Scale().named_parameters()]
    ['scale']
    """

    __slots__ = ()
    _is_variable = True

    def __init__(
        self,
        array: Any,
        *,
        device: DeviceLike | None = None,
        dtype: Any = None,
        requires_grad: bool = True,
    ) -> None:
        super().__init__(array, device=device, dtype=dtype, requires_grad=requires_grad)
        if requires_grad and not is_floating(self.dtype):
            raise TypeError(f"Parameter: {self.spec} is not floating point, so it cannot learn")
