"""Functions on the values of converters: Tensors, and NumPy arrays that are known while tracing.

Sizes that depend on dims are known too: they are expressions of dims in an array of dtype object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import ops
from ..autograd.tensor import Tensor
from ..common.state import state
from ..errors import ModelError, UnsupportedError
from ..sizes.dims import Expression
from .node import NamedNode

Value = Tensor | np.ndarray

# Integer types that files pack several to a byte: needle's dtype for each, and its range.
PACKED = {
    **{"int4": ("int8", -8, 7), "uint4": ("uint8", 0, 15)},
    **{"int2": ("int8", -2, 1), "uint2": ("uint8", 0, 3)},
}


class Rows(Sequence[Value]):
    """The elements of a tensor along axis 0. An element is selected only when it is read."""

    def __init__(self, whole: Tensor) -> None:
        self.whole = whole

    def __len__(self) -> int:
        count = self.whole.shape[0]
        if isinstance(count, Expression):
            raise UnsupportedError(f"a sequence of {count} values, a number that a Dim leaves open")
        return int(count)

    def __getitem__(self, index: Any) -> Any:
        places = range(len(self))[index]
        if isinstance(places, range):
            return [self.whole[i] for i in places]
        return self.whole[places]


class Items(NamedTuple):
    """A sequence of values."""

    values: Sequence[Value]


class Missing(NamedTuple):
    """An ONNX optional without a value."""


Carried = Value | Items | Missing  # all that a graph's names refer to; most operators take a Value


def elements(value: Carried) -> int:
    """Return the number of elements of a value; for a sequence, the total over its values."""
    parts = value.values if isinstance(value, Items) else (value,)
    return sum(part.size for part in parts if not isinstance(part, Missing))


def is_known(value: Any) -> bool:
    """Return whether the value is known while tracing."""
    return isinstance(value, np.ndarray)


def holds_dims(value: Any) -> bool:
    """Return whether a known value depends on dims."""
    return (
        isinstance(value, np.ndarray)
        and value.dtype == object
        and any(isinstance(item, Expression) for item in value.flat)
    )


def sizes(items: Any) -> np.ndarray:
    """Return a known array of sizes from `items`: an int, an expression of dims, or a nested
    sequence of these. The dtype is int64 if there are no expressions."""
    found = np.array(items, dtype=object)
    return found if holds_dims(found) else found.astype(np.int64)


def tensor(value: Value) -> Tensor:
    """Return a value as a Tensor. Raises UnsupportedError for a dtype that needle does not have."""
    if isinstance(value, Tensor):
        return value
    if value.dtype == object:
        if holds_dims(value):
            parts = [size_tensor(n) for n in value.flat]
            return ops.reshape(ops.stack(parts, 0), value.shape)
        value = value.astype(np.int64)
    if value.dtype.name in PACKED:
        value = value.astype(PACKED[value.dtype.name][0])
    try:
        return Tensor(value, requires_grad=False)
    except TypeError as error:
        raise UnsupportedError(str(error)) from None


def size_tensor(n: Any) -> Tensor:
    """Return an int or an expression of dims as a 0-d int64 Tensor. The value of an expression is
    computed from the last element of a range of that length."""
    if not isinstance(n, Expression):
        return Tensor(np.array(n, np.int64), requires_grad=False)
    behind = 1 - min(n.bounds[0], 1)  # 1 if n may be 0, so that the range is not empty
    last = ops.arange(n + behind, dtype="int64")[-1:]
    return ops.reshape(ops.add_scalar(last, 1 - behind), ())


def known(node: NamedNode, value: Value | None, what: str) -> np.ndarray:
    """Return a value that must be known while tracing; `what` names it in errors ("the shape").

    In an eager call, all values are known. While tracing, raises UnsupportedError for a value that
    is computed from the model's inputs.
    """
    if value is None:
        raise node.invalid(f"{what} is missing")
    if isinstance(value, Tensor) and state.trace is None:
        return value.numpy()
    if not isinstance(value, np.ndarray):
        raise UnsupportedError(
            f"{node}: {what} depends on values that only a call knows; if they come from an input "
            "of the model, give that input a value with fixed={...}"
        )
    return value


def known_integers(node: NamedNode, value: Value | None, what: str) -> tuple[Any, ...]:
    """Return a known value with at most one axis as a tuple of ints and expressions of dims."""
    found = known(node, value, what)
    if found.ndim > 1:
        raise node.invalid(f"{what} has the shape {found.shape}, not one axis")
    if found.dtype != object and found.dtype.kind not in "iu":
        raise node.invalid(f"{what} has the dtype {found.dtype}, not integers")
    return tuple(n if isinstance(n, Expression) else int(n) for n in found.reshape(-1))


def known_number(node: NamedNode, value: Value | None, what: str) -> Any:
    """Return a known value of one element as a Python number."""
    found = known(node, value, what)
    if found.size != 1:
        raise node.invalid(f"{what} has the shape {found.shape}, not one element")
    return found.reshape(-1)[0].item() if found.dtype != object else found.reshape(-1)[0]


def known_integer(node: NamedNode, value: Value | None, what: str) -> Any:
    """Return a known value of one element as an int, or an expression of dims."""
    found = known_number(node, value, what)
    if isinstance(found, float):
        raise node.invalid(f"{what} is {found!r}, not an integer")
    return found


def shape_of(value: Value) -> tuple[Any, ...]:
    """Return the extents of a value: ints, and expressions of dims."""
    return tuple(value.shape)


def dtype_of(value: Value) -> str:
    """Return the name of a value's dtype."""
    if isinstance(value, Tensor):
        return value.dtype
    return "int64" if value.dtype == object else value.dtype.name


def along(axis: int, part: Any) -> tuple[Any, ...]:
    """Return the key that selects `part` along an axis."""
    return (*[slice(None)] * axis, part)


def normal_axis(node: NamedNode, axis: Any, ndim: int) -> int:
    """Return `axis` counted from the front. Raises ModelError if it is out of range."""
    if not -ndim <= axis < ndim:
        raise ModelError(f"{node}: axis {axis} is out of range for {ndim} dimensions")
    return axis % ndim if ndim else 0


def normal_axes(node: NamedNode, axes: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes counted from the front. Raises ModelError if an axis is out of range or named
    twice."""
    found = tuple(normal_axis(node, axis, ndim) for axis in axes)
    if len(set(found)) != len(found):
        raise ModelError(f"{node}: axes {tuple(axes)} name an axis twice")
    return found
