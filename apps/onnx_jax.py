"""An ONNX graph as a JAX function: the operators that PyTorch's exporter writes for our models.

Values that depend only on weights and shapes are computed with NumPy while the function is traced,
so that shapes are numbers, as JAX requires. Semantics: the ONNX operator reference, opset 17.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax import lax

Operator = Callable[..., Any]
OPERATORS: dict[str, Operator] = {}


class Graph:
    """A callable that takes the graph's inputs in order and returns a list of its outputs.

    Raises ValueError for a graph with an operator that this file does not define.
    """

    def __init__(self, path: str) -> None:
        graph = onnx.load(path).graph
        self._constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
        self._inputs = [x.name for x in graph.input if x.name not in self._constants]
        self._outputs = [x.name for x in graph.output]
        self._nodes = [(node, _attributes(node)) for node in graph.node]
        unknown = sorted({node.op_type for node in graph.node} - set(OPERATORS))
        if unknown:
            raise ValueError(f"{path}: no JAX for {', '.join(unknown)}")

    def __call__(self, *arrays: Any) -> list[Any]:
        values: dict[str, Any] = {"": None, **self._constants}
        values |= zip(self._inputs, arrays, strict=True)
        for node, attributes in self._nodes:
            found = OPERATORS[node.op_type](*(values[name] for name in node.input), **attributes)
            results = found if isinstance(found, tuple) else (found,)
            values |= zip(node.output, results, strict=False)
        return [jnp.asarray(values[name]) for name in self._outputs]


def _attributes(node: Any) -> dict[str, Any]:
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "Split":
        found["parts"] = len(node.output)
    return {
        name: onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
        for name, value in found.items()
    }


def operator(function: Operator) -> Operator:
    OPERATORS[function.__name__] = function
    return function


def _numpy_or_jax(*values: Any) -> Any:
    """NumPy if all values are known while the function is traced, else jax.numpy."""
    known = all(value is None or isinstance(value, (np.ndarray, np.generic)) for value in values)
    return np if known else jnp


def _elementwise(name: str, function: Callable[..., Any]) -> None:
    OPERATORS[name] = lambda *values: function(_numpy_or_jax(*values), *values)


_elementwise("Add", lambda xp, a, b: a + b)
_elementwise("Sub", lambda xp, a, b: a - b)
_elementwise("Mul", lambda xp, a, b: a * b)
_elementwise("Div", lambda xp, a, b: a // b if np.issubdtype(a.dtype, np.integer) else a / b)
_elementwise("Pow", lambda xp, a, b: xp.square(a) if np.all(b == 2) else xp.power(a, b))
_elementwise("Sqrt", lambda xp, x: xp.sqrt(x))
_elementwise("Erf", lambda xp, x: lax.erf(x))
_elementwise("Relu", lambda xp, x: xp.maximum(x, 0))
_elementwise("Tanh", lambda xp, x: xp.tanh(x))
_elementwise("Equal", lambda xp, a, b: a == b)
_elementwise("Where", lambda xp, c, a, b: xp.where(c, a, b))
_elementwise("Sigmoid", lambda xp, x: jax.nn.sigmoid(x))
_elementwise("Identity", lambda xp, x: x)
_elementwise("MatMul", lambda xp, a, b: a @ b)


@operator
def Gemm(
    a: Any,
    b: Any,
    c: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    product = (a.T if transA else a) @ (b.T if transB else b)
    product = product if alpha == 1 else alpha * product
    return product if c is None else product + (c if beta == 1 else beta * c)


@operator
def Conv(
    x: Any,
    w: Any,
    b: Any = None,
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
) -> Any:
    found = lax.conv_general_dilated(
        x,
        w,
        strides,
        [(pads[0], pads[2]), (pads[1], pads[3])],
        rhs_dilation=dilations,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
        feature_group_count=group,
    )
    return found if b is None else found + b.reshape(1, -1, 1, 1)


@operator
def MaxPool(
    x: Any,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
    ceil_mode: int = 0,
) -> Any:
    padding = [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])]
    return lax.reduce_window(
        x,
        -np.inf,
        lax.max,
        (1, 1, *kernel_shape),
        (1, 1, *strides),
        padding,
        window_dilation=(1, 1, *dilations),
    )


@operator
def GlobalAveragePool(x: Any) -> Any:
    return x.mean((2, 3), keepdims=True)


@operator
def ReduceMean(x: Any, axes: Sequence[int], keepdims: int = 1) -> Any:
    return x.mean(tuple(axes), keepdims=bool(keepdims))


@operator
def Softmax(x: Any, axis: int = -1) -> Any:
    return jax.nn.softmax(x, axis)


@operator
def LayerNormalization(
    x: Any, scale: Any, bias: Any = None, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    axes = tuple(range(axis % x.ndim, x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    found = centred * lax.rsqrt((centred**2).mean(axes, keepdims=True) + epsilon) * scale
    return found if bias is None else found + bias


@operator
def LSTM(
    x: Any,
    w: Any,
    r: Any,
    b: Any = None,
    lengths: Any = None,
    h: Any = None,
    c: Any = None,
    hidden_size: int = 0,
) -> Any:
    """One direction. x (T, B, features); w (1, 4 h, features), r (1, 4 h, h): gates i, o, f, c."""
    bias = 0.0 if b is None else b[0, : 4 * hidden_size] + b[0, 4 * hidden_size :]
    zeros = jnp.zeros((x.shape[1], hidden_size), x.dtype)
    start = tuple(zeros if state is None else state[0] for state in (h, c))

    def step(state: Any, projected: Any) -> Any:
        h, c = state
        i, o, f, g = jnp.split(projected + h @ r[0].T, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    (h, c), found = lax.scan(step, start, x @ w[0].T + bias)
    return found[:, None], h[None], c[None]


@operator
def Constant(value: Any) -> Any:
    return value


@operator
def ConstantOfShape(shape: Any, value: Any = None) -> Any:
    value = np.zeros(1, np.float32) if value is None else value
    return np.full(tuple(shape), value[0], value.dtype)


@operator
def Shape(x: Any) -> Any:
    return np.array(x.shape, np.int64)


@operator
def Reshape(x: Any, shape: Any, allowzero: int = 0) -> Any:
    return x.reshape([x.shape[i] if n == 0 else int(n) for i, n in enumerate(shape)])


@operator
def Flatten(x: Any, axis: int = 1) -> Any:
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


@operator
def Transpose(x: Any, perm: Sequence[int]) -> Any:
    return x.transpose(perm)


@operator
def Expand(x: Any, shape: Any) -> Any:
    xp = _numpy_or_jax(x)
    return xp.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(n) for n in shape)))


@operator
def Squeeze(x: Any, axes: Any) -> Any:
    return x.squeeze(tuple(int(axis) for axis in axes))


@operator
def Unsqueeze(x: Any, axes: Any) -> Any:
    return _numpy_or_jax(x).expand_dims(x, tuple(int(axis) for axis in axes))


@operator
def Concat(*parts: Any, axis: int) -> Any:
    return _numpy_or_jax(*parts).concatenate(parts, axis)


@operator
def Split(x: Any, sizes: Any = None, axis: int = 0, parts: int = 1) -> Any:
    cuts = parts if sizes is None else np.cumsum(sizes)[:-1]
    return tuple(_numpy_or_jax(x).split(x, cuts, axis))


@operator
def Gather(x: Any, indices: Any, axis: int = 0) -> Any:
    return _numpy_or_jax(x, indices).take(x, indices, axis)


@operator
def Slice(x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    cut = [slice(None)] * x.ndim
    axes = range(len(starts)) if axes is None else axes
    steps = np.ones(len(starts), int) if steps is None else steps
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        cut[int(axis)] = slice(int(start), int(end), int(step))
    return x[tuple(cut)]


@operator
def Cast(x: Any, to: int) -> Any:
    return x.astype(onnx.helper.tensor_dtype_to_np_dtype(to))
