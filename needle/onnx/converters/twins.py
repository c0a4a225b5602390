"""NumPy twins of the operators that compute sizes. They run on known values, including arrays of
ints and expressions of dims (dtype object), which `Shape` returns for symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...backend_ndarray.dtypes import astype
from ...conversion.values import Value, known_integers, normal_axes, normal_axis, sizes, tensor
from ...sizes.extents import is_symbolic
from ..graph import Node
from ..registry import twin
from .shape import reshaped, slices, split_extents

Array = np.ndarray[Any, Any]


def _like(made: Any, *inputs: Array) -> Array:
    """Return a result in the dtype of the inputs, or as sizes if an input holds sizes."""
    if any(x.dtype == object for x in inputs):
        return sizes(made)
    return np.asarray(made, inputs[0].dtype)


@twin("Identity")
def identity(node: Node, x: Array) -> Array:
    return x


@twin("Cast")
def cast(node: Node, x: Array) -> Value:
    if x.dtype != object:
        return astype(x, node.dtype("to"))
    if node.dtype("to") not in ("int64", "int32"):
        return ops.cast(tensor(x), node.dtype("to"))
    return x


@twin("Neg")
def negate(node: Node, x: Array) -> Array:
    return _like(-x, x)


_BINARY: dict[str, Callable[..., Any]] = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}


@twin(*_BINARY)
def binary(node: Node, a: Array, b: Array) -> Array:
    return _like(_BINARY[node.op_type](a, b), a, b)


@twin("Div")
def divide(node: Node, a: Array, b: Array) -> Array:
    if a.dtype.kind == "f" or b.dtype.kind == "f" or a.dtype.name == "bfloat16":
        with np.errstate(all="ignore"):
            return _like(a / b, a, b)
    if np.any(b == 0):
        raise node.invalid("an integer is divided by 0")
    if object in (a.dtype, b.dtype):  # sizes are not negative
        return sizes(a // b)
    return _like((a - np.fmod(a, b)) // b, a, b)


@twin("Mod")
def modulo(node: Node, a: Array, b: Array) -> Array:
    if b.dtype.kind in "iu" and np.any(b == 0):
        raise node.invalid("an integer is divided by 0")
    fmod = node.flag("fmod", False) and object not in (a.dtype, b.dtype)
    return _like(np.fmod(a, b) if fmod else a % b, a, b)


_COMPARED: dict[str, Callable[..., Any]] = {
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
}


@twin(*_COMPARED)
def compare(node: Node, a: Array, b: Array) -> Array:
    return np.asarray(_COMPARED[node.op_type](a, b)).astype(bool)


@twin("Min")
def minimum(node: Node, *inputs: Array) -> Array:
    return _folded(np.minimum, inputs)


@twin("Max")
def maximum(node: Node, *inputs: Array) -> Array:
    return _folded(np.maximum, inputs)


def _folded(function: Callable[..., Any], inputs: tuple[Array, ...]) -> Array:
    made = inputs[0]
    for x in inputs[1:]:
        made = function(made, x)
    return _like(made, *inputs)


@twin("Where")
def where(node: Node, condition: Array, a: Array, b: Array) -> Array:
    return _like(np.where(condition, a, b), a, b)


@twin("Gather")
def gather(node: Node, data: Array, indices: Array) -> Array:
    axis = normal_axis(node, node.integer("axis", 0), data.ndim)
    if indices.dtype.kind not in "iuO":
        raise node.invalid(f"indices have dtype {indices.dtype}, not integers")
    return _like(np.take(data, indices.astype(np.int64), axis), data)


@twin("Slice")
def slice_(node: Node, data: Array, *rest: Array | None) -> Value:
    key = slices(node, data, *rest)
    ends = [n for each in key for n in (each.start, each.stop)]
    return ops.getitem(tensor(data), key) if is_symbolic(ends) else data[key]


@twin("Concat")
def concat(node: Node, *inputs: Array) -> Array:
    return _like(np.concatenate(inputs, node.integer("axis")), *inputs)


def _axes(node: Node, axes: Array | None) -> tuple[int, ...] | None:
    if axes is not None:
        return known_integers(node, axes, "the axes")
    return node.integers("axes") if node.has("axes") else None


@twin("Unsqueeze")
def unsqueeze(node: Node, data: Array, axes: Array | None = None) -> Array:
    given = _axes(node, axes) or ()
    return np.expand_dims(data, normal_axes(node, given, data.ndim + len(given)))


@twin("Squeeze")
def squeeze(node: Node, data: Array, axes: Array | None = None) -> Array:
    given = _axes(node, axes)
    return np.squeeze(data, None if given is None else normal_axes(node, given, data.ndim))


@twin("Reshape")
def reshape(node: Node, data: Array, shape: Array | None = None) -> Array:
    return data.reshape(reshaped(node, data, shape))


@twin("Transpose")
def transpose(node: Node, x: Array) -> Array:
    return np.transpose(x, node.integers("perm") if node.has("perm") else None)


@twin("Split")
def split(node: Node, data: Array, sizes_: Array | None = None) -> tuple[Array, ...]:
    axis = normal_axis(node, node.integer("axis", 0), data.ndim)
    ends = np.cumsum(split_extents(node, data.shape[axis], sizes_))
    return tuple(np.split(data, ends[:-1].tolist(), axis))


_REDUCED: dict[str, Callable[..., Any]] = {
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
}


@twin(*_REDUCED)
def reduce(node: Node, data: Array, axes: Array | None = None) -> Array:
    given = _axes(node, axes)
    if not given:
        if node.flag("noop_with_empty_axes", False):
            return data
        given = tuple(range(data.ndim))
    over = normal_axes(node, given, data.ndim)
    return _like(_REDUCED[node.op_type](data, axis=over, keepdims=node.flag("keepdims")), data)
