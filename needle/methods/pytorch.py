"""Methods with PyTorch's names that create tensors like a given tensor, or that describe a tensor.
binding.py binds them."""

# mypy: disable-error-code="misc"
# Each `self` is an instance of the class that the function is bound to.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import init, tensors
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.dtypes import ITEMSIZE, is_floating
from ..common.state import state
from . import unchecked_ops as ops


def _new(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a method that calls `make` with a shape, by default with the dtype and device of the
    method's tensor."""

    def method(
        self: Tensor,
        *shape: Any,
        device: DeviceLike | None = None,
        dtype: Any = None,
        requires_grad: bool = False,
    ) -> Tensor:
        where: dict[str, Any] = {"device": device or self.device, "dtype": dtype or self.dtype}
        return make(*shape, requires_grad=requires_grad, **where)

    name = make.__name__
    method.__name__ = f"new_{name}"
    method.__doc__ = (
        f"Return `{name}` of `shape`; `device`, `dtype` and `requires_grad` are as in `new_tensor`."
    )
    return method


class PyTorchMethods:
    """Methods of Tensor with PyTorch's names."""

    def type(self: Tensor, dtype: Any) -> Tensor:
        """Return the elements as `dtype`, as `astype` does."""
        return ops.cast(self, dtype)

    def type_as(self: Tensor, other: Tensor) -> Tensor:
        """Return the elements in the dtype and on the device of `other`."""
        return self.to(other)

    def new_tensor(
        self: Tensor,
        data: Any,
        *,
        device: DeviceLike | None = None,
        dtype: Any = None,
        requires_grad: bool = False,
    ) -> Tensor:
        """Return `needle.tensor` of `data` with the given `requires_grad`. By default, `dtype` and
        `device` are this tensor's dtype and device."""
        where: dict[str, Any] = {"device": device or self.device, "dtype": dtype or self.dtype}
        return tensors.tensor(data, requires_grad=requires_grad, **where)

    new_zeros = _new(init.zeros)
    new_ones = _new(init.ones)
    new_empty = _new(init.empty)

    def new_full(
        self: Tensor,
        shape: Any,
        fill_value: float,
        *,
        device: DeviceLike | None = None,
        dtype: Any = None,
        requires_grad: bool = False,
    ) -> Tensor:
        """Return a tensor of `shape` filled with `fill_value`; `device`, `dtype` and
        `requires_grad` are as in `new_tensor`."""
        where: dict[str, Any] = {"device": device or self.device, "dtype": dtype or self.dtype}
        return init.full(shape, fill_value, requires_grad=requires_grad, **where)

    def is_floating_point(self: Tensor) -> bool:
        """Return whether the dtype is a floating dtype."""
        return is_floating(self.dtype)

    def is_contiguous(self: Tensor) -> bool:
        """Return whether the elements are stored in order without gaps; in a trace, return True."""
        return state.trace is not None or self.cached_data.is_compact

    def element_size(self: Tensor) -> int:
        """Return the number of bytes of one element."""
        return ITEMSIZE[self.dtype]

    @property
    def nbytes(self: Tensor) -> int:
        """The number of bytes of all elements."""
        return self.numel() * self.element_size()

    def pin_memory(self: Tensor) -> Tensor:
        """Return the tensor itself, because needle does not pin memory."""
        return self

    @property
    def is_cuda(self: Tensor) -> bool:
        """Whether the tensor is on a GPU."""
        return self.device.name == "cuda"

    def isclose(
        self: Tensor,
        other: Tensor,
        rtol: float = 1e-5,
        atol: float = 1e-8,
        equal_nan: bool = False,
    ) -> Tensor:
        """Return `needle.isclose` of this tensor and `other`; `rtol`, `atol` and `equal_nan` are
        passed on."""
        return tensors.isclose(self, other, rtol, atol, equal_nan)

    def allclose(
        self: Tensor,
        other: Tensor,
        rtol: float = 1e-5,
        atol: float = 1e-8,
        equal_nan: bool = False,
    ) -> bool:
        """Return `needle.allclose` of this tensor and `other`; `rtol`, `atol` and `equal_nan` are
        passed on."""
        return tensors.allclose(self, other, rtol, atol, equal_nan)
