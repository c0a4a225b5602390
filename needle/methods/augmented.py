"""Augmented assignment of Tensors: `p -= lr * p.grad`. binding.py binds these operators.

A Parameter, like any other leaf that requires a gradient, is a variable: the operator writes to its
memory, so views, modules and compiled code see the result. Every other Tensor is a value: the
operator returns a new Tensor, and Python binds the variable's name to it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ..autograd.tensor import Tensor, overwrite
from ..backend_ndarray.dtypes import is_floating
from ..common.state import state
from ..errors import ShapeError

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+=": operator.add,
    "-=": operator.sub,
    "*=": operator.mul,
    "/=": operator.truediv,
    "//=": operator.floordiv,
    "%=": operator.mod,
    "**=": operator.pow,
    "@=": operator.matmul,
    "&=": operator.and_,
    "|=": operator.or_,
    "^=": operator.xor,
    "<<=": operator.lshift,
    ">>=": operator.rshift,
}


def _method(symbol: str, compute: Callable[[Any, Any], Any]) -> Callable[[Tensor, Any], Any]:
    def method(self: Tensor, other: Any) -> Any:
        if not (self.is_leaf and (self.requires_grad or self._is_variable)):
            return compute(self, other)
        if state.grad and self.requires_grad:
            raise recorded(self, symbol)
        result = compute(self, other)
        write(self, symbol, result)
        return self

    return method


def write(target: Tensor, symbol: str, result: Any) -> None:
    """Write the elements of `result` to `target`, rounded to the dtype of `target`. `symbol` is the
    operator or method that errors name."""
    name = f"{type(target).__name__} {symbol}"
    if not isinstance(result, Tensor):
        raise TypeError(f"{name}: the result is a {type(result).__name__}, not a Tensor")
    if result.requires_grad:
        raise recorded(target, symbol)
    if result.shape != target.shape:
        raise ShapeError(
            f"{name}: the result has shape {result.shape}, which does not fit into a tensor of "
            f"shape {target.shape}"
        )
    loses = is_floating(result.dtype) and not is_floating(target.dtype)
    if loses or (target.dtype == "bool" and result.dtype != "bool"):
        raise TypeError(
            f"{name}: the result is {result.dtype}, which does not fit into a {target.dtype} tensor"
        )
    data = target._data
    if (
        data is not None
        and data.size
        and any(step == 0 and n > 1 for n, step in zip(data.shape, data.strides, strict=True))
    ):
        raise RuntimeError(
            f"{name}: some elements of this {target.spec} share memory (it was broadcast): make "
            "the tensor from a clone() of the broadcast one"
        )
    overwrite(target, result)


def recorded(target: Tensor, symbol: str) -> RuntimeError:
    """Return the error for a write to `target` that gradients would have to record."""
    kind, name = type(target).__name__, symbol[:-1]
    instead = f"x = x.{name}(...)" if name.isidentifier() else f"x = x {name} y"
    value = "this" if target.requires_grad else "the value to write"
    return RuntimeError(
        f"{kind} {symbol}: {value} requires a gradient, and gradients are recorded here: write "
        f"into {target.spec} under `with needle.no_grad():`, or make a new Tensor ({instead})"
    )


METHODS: dict[str, Callable[..., Any]] = {
    f"__i{function.__name__.strip('_')}__": _method(symbol, function)
    for symbol, function in OPERATORS.items()
}
