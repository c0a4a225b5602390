"""Methods that change a Tensor in place, with PyTorch's names, which end in "_". binding.py binds
them.

The methods write to the tensor's memory, so views, modules and compiled code see the change. If
gradients are recorded and the tensor is the result of an op, the Tensor object gets new memory and
a new graph node instead, and existing views keep the old value.
"""

# mypy: disable-error-code="misc"
# Each `self` is an instance of the class that the function is bound to.

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import init
from ..autograd.tensor import Operand, Tensor
from ..common.state import state
from ..op import Movement
from ..ops._arguments import as_source
from . import unchecked_ops as ops
from .augmented import recorded, write


def _becomes(x: Tensor, name: str, result: Any) -> Tensor:
    """Give `x` the value of `result` and return it. Raises RuntimeError if a gradient would be
    lost."""
    is_recorded = state.grad and (x.requires_grad or result.requires_grad)
    if x._data is not None and not is_recorded:
        write(x, name, result)
        return x
    if state.trace is not None and not is_recorded and x.op is not None:
        owner = state.trace.owner(x)
        if owner is not None:
            if owner._data is None and result.shape == x.shape:  # `owner` is a gradient
                result = ops.cast(result, x.dtype).clone()
                state.trace.overwritten(owner.node, "a gradient")
                owner._node = result._node
            else:
                write(owner, name, result)
            if owner is not x:
                x._node = owner.detach()._node
            return x
    if state.trace is not None and not is_recorded and (x.op is None or x.op.may_share):
        state.trace.refuse_write(x)
    if x.op is None or isinstance(x.op, (Movement, ops.TupleGetItem)):
        raise recorded(x, name)
    if result.shape != x.shape:
        write(x, name, result)  # raises the error
    if not is_recorded and state.trace is not None:
        result = result.clone()
        state.trace.overwritten(x.node, f"the result of {x.op.name}")
    result = result if result.dtype == x.dtype else ops.cast(result, x.dtype)
    x._data, x._node = result._data, result._node
    return x


def _in_place(compute: Callable[..., Tensor], name: str | None = None) -> Callable[..., Tensor]:
    """Return a method that replaces a tensor's value with the result of `compute`."""
    called = f"{name or compute.__name__}_"

    @functools.wraps(compute)
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return _becomes(self, called, compute(self, *args, **kwargs))

    method.__name__ = called
    base = compute.__name__
    method.__doc__ = f"Change the tensor to its `{base}`, with arguments as in `{base}`."
    return method


class InPlaceMethods:
    """Methods of Tensor with PyTorch's names; each returns the tensor."""

    abs_ = _in_place(ops.abs)
    addcdiv_ = _in_place(ops.addcdiv)
    addcmul_ = _in_place(ops.addcmul)
    ceil_ = _in_place(ops.ceil)
    clamp_ = _in_place(ops.clip, "clamp")
    clip_ = _in_place(ops.clip)
    cos_ = _in_place(ops.cos)
    div_ = _in_place(ops.divide, "div")
    exp_ = _in_place(ops.exp)
    floor_ = _in_place(ops.floor)
    index_add_ = _in_place(ops.index_add)
    index_fill_ = _in_place(ops.index_fill)
    lerp_ = _in_place(ops.lerp)
    log_ = _in_place(ops.log)
    masked_fill_ = _in_place(ops.masked_fill)
    mul_ = _in_place(ops.multiply, "mul")
    neg_ = _in_place(ops.negate, "neg")
    pow_ = _in_place(ops.power, "pow")
    reciprocal_ = _in_place(ops.reciprocal)
    relu_ = _in_place(ops.relu)
    round_ = _in_place(ops.round)
    rsqrt_ = _in_place(ops.rsqrt)
    scatter_ = _in_place(ops.scatter)
    scatter_add_ = _in_place(ops.scatter_add)
    sigmoid_ = _in_place(ops.sigmoid)
    sin_ = _in_place(ops.sin)
    sqrt_ = _in_place(ops.sqrt)
    square_ = _in_place(ops.square)
    tanh_ = _in_place(ops.tanh)
    tril_ = _in_place(ops.tril)
    triu_ = _in_place(ops.triu)

    def add_(self: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
        """Add alpha * other to the tensor."""
        return _becomes(self, "add_", ops.add(self, other if alpha == 1 else other * alpha))

    def sub_(self: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
        """Subtract alpha * other from the tensor."""
        return _becomes(self, "sub_", ops.subtract(self, other if alpha == 1 else other * alpha))

    def copy_(self: Tensor, source: Operand, non_blocking: bool = False) -> Tensor:
        """Set the elements to those of `source`, a Tensor, an array or a number that broadcasts.
        The tensor keeps its dtype and device. `non_blocking` is accepted but has no effect."""
        values = source.to(self.device) if isinstance(source, Tensor) else source
        return _becomes(self, "copy_", as_source("copy_", self, values, self.shape))

    def fill_(self: Tensor, value: float) -> Tensor:
        """Set all elements to `value`."""
        return _becomes(self, "fill_", as_source("fill_", self, value, self.shape))

    def zero_(self: Tensor) -> Tensor:
        """Set all elements to 0."""
        return self.fill_(0)

    def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
        """Draw all elements from the normal distribution with this `mean` and `std`."""
        return _becomes(self, "normal_", init.randn_like(self, mean=mean, std=std))

    def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Draw all elements uniformly from [low, high)."""
        return _becomes(self, "uniform_", init.rand_like(self, low=low, high=high))

    def bernoulli_(self: Tensor, p: float = 0.5) -> Tensor:
        """Set each element to 1 with the probability `p`, else to 0."""
        where: dict[str, Any] = {"device": self.device, "dtype": self.dtype}
        return _becomes(self, "bernoulli_", init.randb(*self.shape, p=p, **where))

    def detach_(self: Tensor) -> Tensor:
        """Detach the tensor from the graph, so that it becomes a leaf that requires no gradient."""
        if state.trace is not None and self._data is not None:
            state.trace.refuse_write(self)
        self._node = self.detach()._node
        return self

    def requires_grad_(self: Tensor, requires_grad: bool = True) -> Tensor:
        """Set `requires_grad`: whether the tensor, which must be a leaf, gets a gradient."""
        self.requires_grad = requires_grad
        return self
