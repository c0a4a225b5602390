"""PyTorch's functions that create a tensor from other values or describe a tensor.

For developers of this package: none of these functions is an op.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import ops
from .autograd.tensor import Tensor, from_dlpack
from .backend_ndarray import DeviceLike, dtype_name
from .backend_ndarray import dtypes as _dtypes
from .backend_ndarray.ndarray import Device, as_device
from .errors import ShapeError


def tensor(
    data: Any,
    *,
    dtype: Any = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a Tensor with a copy of `data`: numbers, nested sequences of numbers or of Tensors, an
    array, or a Tensor. The history of a Tensor is not copied.

    Without a `dtype`, Python floats become float32, ints int64 and bools bool; arrays and Tensors
    keep their dtype. Without a `device`, the Tensor is on the data's device, or on the CPU. It gets
    a gradient only with `requires_grad`, which raises TypeError for integers and bools.

    >>> ndl.tensor([1, 2]).dtype, ndl.tensor([[0.5]]).requires_grad
    ('int64', False)
    """
    copied = Tensor(data, device=device, dtype=dtype, requires_grad=False)
    if hasattr(data, "__dlpack__") and not isinstance(data, np.ndarray):
        copied = copied.clone()  # Tensor(data) shares the memory of data
    if not requires_grad:
        return copied
    if not _dtypes.is_floating(copied.dtype):
        raise TypeError(
            f"tensor: a {copied.dtype} tensor cannot require a gradient; only floating dtypes can"
        )
    return Tensor(copied, requires_grad=True)


def as_tensor(data: Any, dtype: Any = None, device: DeviceLike | None = None) -> Tensor:
    """Return `data` as a Tensor of `dtype` on `device`. A Tensor that already has both is returned
    as it is. A NumPy array is not copied if its memory can be shared. Everything else is converted
    as by `tensor`."""
    if isinstance(data, Tensor):
        return data.to(device=device, dtype=dtype)
    shares = isinstance(data, np.ndarray) and data.dtype.isnative and data.flags.writeable
    if not shares or data.dtype.name not in _dtypes.ITEMSIZE:
        return tensor(data, dtype=dtype, device=device)
    return from_numpy(data).to(device=device, dtype=dtype)


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """Return a Tensor that shares the memory of a NumPy `array`. Raises TypeError for anything
    else, BufferError for a read-only array."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: array is a {type(array).__name__}, not a NumPy array")
    return from_dlpack(array)


def is_tensor(value: Any) -> bool:
    """Return whether `value` is a Tensor."""
    return isinstance(value, Tensor)


def is_floating_point(x: Tensor) -> bool:
    """Return whether the dtype of `x` is floating."""
    return _dtypes.is_floating(x.dtype)


def numel(x: Tensor) -> int:
    """Return the number of elements of `x`."""
    return x.numel()


def isclose(
    a: Tensor, b: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Return whether |a - b| <= atol + rtol * |b|, elementwise with broadcasting; equal infinities
    are close, and with `equal_nan` NaN is close to NaN. Raises ValueError for a negative rtol or
    atol."""
    return _close("isclose", a, b, rtol, atol, equal_nan)


def allclose(
    a: Tensor, b: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Return whether `isclose` is true for all elements of `a` and `b`. For `rtol`, `atol` and
    `equal_nan` see `isclose`.

    >>> ndl.allclose(ndl.tensor([1.0, 2.0]), ndl.tensor([1.0, 2.00001]))
    True
    """
    return bool(ops.all(_close("allclose", a, b, rtol, atol, equal_nan)))


def _close(owner: str, a: Any, b: Any, rtol: float, atol: float, equal_nan: bool) -> Tensor:
    for what, x in (("a", a), ("b", b)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{owner}: {what} is a {type(x).__name__}, not a Tensor")
    if rtol < 0 or atol < 0:
        raise ValueError(f"{owner}: rtol {rtol} or atol {atol} is negative")
    a, b = a.detach(), b.detach()
    try:
        close = a == b
    except ShapeError:
        raise ShapeError(f"{owner}: shapes {a.shape} and {b.shape} do not broadcast") from None
    a, b = (x if _dtypes.is_floating(x.dtype) else x.astype("float64") for x in (a, b))
    # Only a == b counts if both are 0: after a conversion to float64, different large integers
    # would be equal.
    if rtol or atol:
        close = close | ((ops.abs(a - b) <= atol + rtol * ops.abs(b)) & ops.isfinite(b))
    return close | (ops.isnan(a) & ops.isnan(b)) if equal_nan else close


def finfo(dtype: Any) -> Any:
    """Return the limits of a floating `dtype`, like np.finfo: `min`, `max`, `eps`, `tiny` and
    `bits`."""
    name = dtype_name(dtype)
    if not _dtypes.is_floating(name):
        raise TypeError(f"finfo: {name} is not floating point; iinfo has the limits of integers")
    return _dtypes.finfo(name)


def iinfo(dtype: Any) -> Any:
    """Return the limits of an integer `dtype`, like np.iinfo: `min`, `max`, `bits`."""
    name = dtype_name(dtype)
    if name not in _dtypes.INTEGER:
        raise TypeError(f"iinfo: {name} is not an integer dtype; finfo has the limits of floats")
    return np.iinfo(name)


def device(name: Any, index: int | None = None) -> Device:
    """Return the device with a `name` like "cpu", "cuda" or "cuda:1", or with the name "cuda" and
    an `index`. Raises TypeError for any other name."""
    return as_device(name if index is None else f"{name}:{index}")
