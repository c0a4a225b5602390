"""Methods of a Module that move and cast all its parameters and buffers, or set whether parameters
require gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from .. import init
from ..autograd.destination import destination
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.dtypes import is_floating
from .parameter import Parameter

T = TypeVar("T")
S = TypeVar("S", bound="Converting")


class Found(list[T]):
    """A list that also works with `next`, as PyTorch's iterators do: `next(m.parameters())`."""

    _left: Iterator[T] | None = None

    def __next__(self) -> T:
        if self._left is None:
            self._left = iter(self)
        return next(self._left)


def once(items: list[tuple[str, Any]], kind: type) -> Found[tuple[str, Any]]:
    """Return the items of class `kind` without repetitions, each under its first name."""
    seen: set[int] = set()
    found: Found[tuple[str, Any]] = Found()
    for name, item in items:
        if isinstance(item, kind) and id(item) not in seen:
            seen.add(id(item))
            found.append((name, item))
    return found


class Converting:
    """Methods of Module; unless a docstring says otherwise, they return the module."""

    if TYPE_CHECKING:  # methods of Module

        def named_tensors(self) -> list[tuple[str, Tensor]]: ...
        def named_buffers(self) -> Found[tuple[str, Tensor]]: ...
        def parameters(self, recurse: bool = True) -> Found[Parameter]: ...

    def to(
        self: S, *to: Any, device: Any = None, dtype: Any = None, non_blocking: bool = False
    ) -> S:
        """Move parameters and buffers to a device, and floating ones to a dtype: `to("cuda")`,
        `to("float16")`, or both. Returns self. Raises TypeError for a value that is neither a
        device nor a dtype, and for an integer or bool dtype. `non_blocking` is accepted but has no
        effect.

        >>> nn.Linear(2, 2).to("float16").weight.dtype
        'float16'
        """
        owner = f"{type(self).__name__}.to"
        place, name = destination(owner, to, device, dtype)
        if name is not None and not is_floating(name):
            raise TypeError(f"{owner}: {name} is not floating point; parameters must be")
        new = []
        for _, tensor in once([*self.named_tensors(), *self.named_buffers()], Tensor):
            data = tensor.realize_cached_data()
            data = data if place is None else data.to(place)
            if name is not None and is_floating(data.dtype):
                data = data.astype(name, copy=False)
            new.append((tensor, data))
        for tensor, data in new:
            tensor._replace(data)
            tensor.grad = None
        return self

    def float(self: S) -> S:
        """Convert with `to("float32")`."""
        return self.to("float32")

    def double(self: S) -> S:
        """Convert with `to("float64")`."""
        return self.to("float64")

    def half(self: S) -> S:
        """Convert with `to("float16")`."""
        return self.to("float16")

    def bfloat16(self: S) -> S:
        """Convert with `to("bfloat16")`."""
        return self.to("bfloat16")

    def cpu(self: S) -> S:
        """Move with `to("cpu")`."""
        return self.to("cpu")

    def cuda(self: S, device: DeviceLike | None = None) -> S:
        """Move the module to the GPU `device` (None: the first)."""
        return self.to("cuda" if device is None else device)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None or, if `set_to_none` is False, to zeros."""
        for parameter in self.parameters():
            # Do not read a gradient just to drop it: a trace records every read.
            grad = None if set_to_none else parameter.grad
            parameter.grad = None if grad is None else init.zeros_like(grad)

    def requires_grad_(self: S, requires_grad: bool = True) -> S:
        """Set `requires_grad` of all parameters."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self
