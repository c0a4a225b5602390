"""Models of one node, run by needle and by implementations that are not ours."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import needle as ndl
import needle.onnx


def model_of(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    attributes: Mapping[str, Any] | None = None,
    opset: int = 21,
    outputs: int = 1,
    domain: str = "",
    dtypes: Sequence[str] = (),
) -> Any:
    """A ModelProto of one node: inputs x0, x1, ... (None leaves one out), outputs y0, y1, ... of
    the dtypes given, or else those that onnx infers. `opset` is of the domain."""
    from onnx import ValueInfoProto, helper, shape_inference

    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    made = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, made, "it", domain=domain, **(attributes or {}))
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in zip(names, inputs, strict=True)
            if x is not None
        ],
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(t)), None)
            for name, t in zip(made, dtypes, strict=False)
        ]
        or [ValueInfoProto(name=name) for name in made],
    )
    opsets = [helper.make_opsetid(domain, opset)]
    if domain:
        opsets.append(helper.make_opsetid("", 21))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return shape_inference.infer_shapes(model)


def by_needle(
    model: Any, inputs: Sequence[np.ndarray | None], known: Sequence[int] = (), **dims: Any
) -> list[np.ndarray]:
    """The outputs by needle, eagerly; inputs at the positions `known` are fixed."""
    fixed = {f"x{i}": inputs[i] for i in known if inputs[i] is not None}
    module = needle.onnx.load(model, fixed=fixed)
    with ndl.no_grad():
        made = module(
            *(ndl.Tensor(x) for i, x in enumerate(inputs) if x is not None and i not in known)
        )
    return [x.numpy() for x in (made if isinstance(made, tuple) else (made,))]


def compiled(
    model: Any, inputs: Sequence[np.ndarray | None], known: Sequence[int] = ()
) -> list[np.ndarray]:
    """The outputs by compiled code."""
    import needle_tvm

    fixed = {f"x{i}": inputs[i] for i in known if inputs[i] is not None}
    module = needle.onnx.load(model, fixed=fixed)
    given = [ndl.Tensor(x) for i, x in enumerate(inputs) if x is not None and i not in known]
    made = needle_tvm.compile(module, *given, progress=False)(*given)
    return [x.numpy() for x in (made if isinstance(made, tuple) else (made,))]


def by_onnxruntime(model: Any, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """The outputs by ONNX Runtime, on its CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, ["CPUExecutionProvider"]
    )
    return session.run(None, {f"x{i}": x for i, x in enumerate(inputs) if x is not None})


def by_reference(model: Any, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """The outputs by onnx's reference implementation."""
    from onnx.reference import ReferenceEvaluator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = ReferenceEvaluator(model)
        return evaluator.run(None, {f"x{i}": x for i, x in enumerate(inputs) if x is not None})
