"""Models of few nodes, and what ONNX Runtime makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import needle as ndl
import needle.onnx


def model_of(
    nodes: Sequence[Any],
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 21,
    free: bool = False,
    dtypes: Mapping[str, str] | None = None,
) -> Any:
    """A ModelProto with these inputs (as `free` of any size) and outputs, which are float32 unless
    `dtypes` says otherwise, or of the first input's dtype if that is a half."""
    helper = pytest.importorskip("onnx.helper")
    from onnx import numpy_helper

    def info(name: str, array: np.ndarray) -> Any:
        code = helper.np_dtype_to_tensor_dtype(array.dtype)
        shape = [f"{name}_{i}" for i in range(array.ndim)] if free else array.shape
        return helper.make_tensor_value_info(name, code, shape)

    first = next(iter(inputs.values())).dtype.name
    usual = first if first == "float16" else "float32"

    def declared(name: str) -> Any:
        dtype = np.dtype((dtypes or {}).get(name, usual))
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), None)

    graph = helper.make_graph(
        list(nodes),
        "graph",
        [info(name, array) for name, array in inputs.items()],
        [declared(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def by_runtime(model: Any, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of ONNX Runtime, without its optimizations."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(inputs))


def by_needle(
    model: Any, inputs: Mapping[str, np.ndarray], fixed: Mapping[str, Any] | None = None
) -> list[np.ndarray]:
    """The outputs of needle's eager module."""
    module = needle.onnx.load(model, fixed=fixed)
    with ndl.no_grad():
        found = module(**{n: v for n, v in inputs.items() if n not in (fixed or {})})
    return [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]


def assert_same(
    found: Sequence[np.ndarray], expected: Sequence[np.ndarray], tolerance: float = 1e-5
) -> None:
    """Equal shapes and dtypes, and values within the tolerance of the largest."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        scale = max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0))) if b.size else 1.0
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)
