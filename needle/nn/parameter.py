"""Parameter: a tensor that a module learns."""

from __future__ import annotations

from typing import Any

from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike, NDArray
from ..backend_ndarray.dtypes import is_floating


class Parameter(Tensor):
    """A Tensor that a Module learns. The arguments are as in Tensor. Integers and bools have no
    gradient, so for such a dtype `requires_grad` must be False (raises TypeError otherwise).

    Under `needle.no_grad()`, in-place operators such as `p -= lr * p.grad` write to the Parameter;
    while gradients are recorded, they raise RuntimeError. The result must have the Parameter's
    shape (raises ShapeError otherwise) and is rounded to the Parameter's dtype (raises TypeError if
    floats would be written to integers).

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

    # For a layer's parameter, its axes in PyTorch's order, without axes that PyTorch does not have.
    # None means that the order is unknown; it is then assumed to be the same.
    __slots__ = ("_axes",)
    _axes: tuple[int, ...] | None
    _is_variable = True

    def __init__(
        self,
        array: Any,
        requires_grad: bool = True,
        *,
        device: DeviceLike | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(array, device=device, dtype=dtype, requires_grad=requires_grad)
        self._axes = None
        if requires_grad and not is_floating(self.dtype):
            raise TypeError(f"Parameter: {self.spec} is not floating point, so it cannot learn")

    def __reduce__(self) -> Any:
        data = self.realize_cached_data()
        return _rebuild, (type(self), data, self.requires_grad, self._axes)


def _rebuild(kind: Any, data: NDArray, requires_grad: bool, axes: tuple[int, ...] | None) -> Any:
    out = object.__new__(kind)
    Parameter.__init__(out, data, requires_grad=requires_grad)
    out._axes = axes
    return out
