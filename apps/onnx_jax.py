"""An ONNX graph as a JAX function: the operators that PyTorch's exporter writes for our models.

ONNX Runtime first computes every value that depends on weights and shapes alone, and folds batch
norms into convolutions. Semantics: the ONNX operator reference, opset 17.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import onnx
import onnxruntime as ort
from jax import lax

Operator = Callable[..., Any]


class Graph:
    """A callable that takes the graph's inputs in order and returns a list of its outputs.

    Raises ValueError for a graph with an operator that this file does not define.
    """

    def __init__(self, path: str) -> None:
        graph = _folded(path)
        self._constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
        self._inputs = [x.name for x in graph.input if x.name not in self._constants]
        self._outputs = [x.name for x in graph.output]
        self._nodes = [
            (node, {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute})
            for node in graph.node
        ]
        unknown = sorted({node.op_type for node in graph.node} - set(OPERATORS))
        if unknown:
            raise ValueError(f"{path}: operators without JAX code here: {', '.join(unknown)}")

    def __call__(self, *arrays: Any) -> list[Any]:
        values: dict[str, Any] = {"": None, **self._constants}
        values |= zip(self._inputs, arrays, strict=True)
        for node, attributes in self._nodes:
            found = OPERATORS[node.op_type](*(values[name] for name in node.input), **attributes)
            results = found if isinstance(found, tuple) else (found,)
            values |= zip(node.output, results, strict=False)
        return [jnp.asarray(values[name]) for name in self._outputs]


def _folded(path: str) -> Any:
    """Return a file's graph after ONNX Runtime's basic optimisations, in standard operators."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder, "folded.onnx"))
        ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath).graph


def _gemm(
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


def _conv(
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


def _max_pool(
    x: Any,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
    ceil_mode: int = 0,
    storage_order: int = 0,
) -> Any:
    padding = [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])]
    window, steps = (1, 1, *kernel_shape), (1, 1, *strides)
    spread = (1, 1, *dilations)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, steps, padding, window_dilation=spread)


def _layer_normalization(
    x: Any, scale: Any, bias: Any = None, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    axes = tuple(range(axis % x.ndim, x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    found = centred * lax.rsqrt((centred**2).mean(axes, keepdims=True) + epsilon) * scale
    return found if bias is None else found + bias


def _lstm(
    x: Any,
    w: Any,
    r: Any,
    b: Any = None,
    lengths: Any = None,
    h: Any = None,
    c: Any = None,
    hidden_size: int = 0,
    input_forget: int = 0,
    layout: int = 0,
    direction: bytes = b"forward",
) -> Any:
    """Run an LSTM in one direction. `x` has shape (T, B, features), `w` (1, 4 hidden_size,
    features) and `r` (1, 4 hidden_size, hidden_size), with the gates in the order i, o, f, c."""
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


def _reshape(x: Any, shape: Any, allowzero: int = 0) -> Any:
    return x.reshape([x.shape[i] if n == 0 else int(n) for i, n in enumerate(shape)])


def _reduce_mean(x: Any, axes: Sequence[int], keepdims: int = 1) -> Any:
    return x.mean(tuple(axes), keepdims=bool(keepdims))


OPERATORS: dict[str, Operator] = {
    "Add": lambda a, b: a + b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a / b,
    "MatMul": lambda a, b: a @ b,
    "Erf": lax.erf,
    "Relu": jax.nn.relu,
    "Softmax": lambda x, axis=-1: jax.nn.softmax(x, axis),
    "Flatten": lambda x, axis=1: x.reshape(math.prod(x.shape[:axis]), -1),
    "Transpose": lambda x, perm: x.transpose(perm),
    "Squeeze": lambda x, axes: x.squeeze(tuple(map(int, axes))),
    "Concat": lambda *parts, axis: jnp.concatenate(parts, axis),
    "Gather": lambda x, indices, axis=0: jnp.take(x, indices, axis),
    "Reshape": _reshape,
    "ReduceMean": _reduce_mean,
    "Gemm": _gemm,
    "Conv": _conv,
    "MaxPool": _max_pool,
    "LayerNormalization": _layer_normalization,
    "LSTM": _lstm,
}
