"""Methods of Tensor, named as in PyTorch (`half`, `cuda`), that copy it or convert it to a dtype or
device. binding.py binds them."""

# mypy: disable-error-code="misc"
# Each `self` is an instance of the class that the function is bound to.

from __future__ import annotations

from ..autograd.dispatch import apply
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..common.state import state
from . import unchecked_ops as ops


class CopyingMethods:
    """Methods of Tensor with PyTorch's names."""

    def clone(self: Tensor) -> Tensor:
        """Return a copy with its own memory, through which gradients flow."""
        return apply(ops.Cast(self.dtype), (self,))

    def contiguous(self: Tensor) -> Tensor:
        """Return this tensor if its elements are stored in order without gaps, else a compact copy.
        Every op accepts tensors of any layout."""
        if state.trace is not None or self.cached_data.is_compact:
            return self
        return self.clone()

    def cpu(self: Tensor) -> Tensor:
        """Return the tensor on the CPU, as `to("cpu")` does."""
        return self.to("cpu")

    def cuda(self: Tensor, device: DeviceLike | None = None) -> Tensor:
        """Return the tensor on the GPU `device` (None: the first), as `to` does."""
        return self.to("cuda" if device is None else device)

    def bool(self: Tensor) -> Tensor:
        """Return the elements as bool: whether they are nonzero."""
        return ops.cast(self, "bool")

    def int(self: Tensor) -> Tensor:
        """Return the elements as int32, as `astype` does."""
        return ops.cast(self, "int32")

    def short(self: Tensor) -> Tensor:
        """Return the elements as int16, as `astype` does."""
        return ops.cast(self, "int16")

    def char(self: Tensor) -> Tensor:
        """Return the elements as int8, as `astype` does."""
        return ops.cast(self, "int8")

    def byte(self: Tensor) -> Tensor:
        """Return the elements as uint8, as `astype` does."""
        return ops.cast(self, "uint8")

    def long(self: Tensor) -> Tensor:
        """Return the elements as int64, as `astype` does."""
        return ops.cast(self, "int64")

    def half(self: Tensor) -> Tensor:
        """Return the elements as float16, as `astype` does."""
        return ops.cast(self, "float16")

    def bfloat16(self: Tensor) -> Tensor:
        """Return the elements as bfloat16, as `astype` does."""
        return ops.cast(self, "bfloat16")

    def float(self: Tensor) -> Tensor:
        """Return the elements as float32, as `astype` does."""
        return ops.cast(self, "float32")

    def double(self: Tensor) -> Tensor:
        """Return the elements as float64, as `astype` does."""
        return ops.cast(self, "float64")
