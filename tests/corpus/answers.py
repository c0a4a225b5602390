"""Right answers by other people's code: ONNX's reference evaluator and PyTorch, in float64."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import op_scan

Array = np.ndarray[Any, Any]

_TYPES = onnx.TensorProto
_FLOATS = (_TYPES.FLOAT, _TYPES.FLOAT16, _TYPES.BFLOAT16)
_MOVES = tuple(f"scan_{of}_{what}" for of in ("input", "output") for what in ("axes", "directions"))
_TYPE_ATTRIBUTES = ("to", "dtype", "stash_type", "output_dtype")


def widened(array: Any) -> Array:
    """A floating-point array in float64; other arrays unchanged."""
    array = np.asarray(array)
    is_float = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return array.astype(np.float64) if is_float else array


def of_onnx(model: onnx.ModelProto, inputs: Sequence[Array]) -> list[Array]:
    """The results of a model whose every floating-point number is float64."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    _widen_graph(wide.graph)
    names = [each.name for each in wide.graph.input]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        evaluator = ReferenceEvaluator(wide, new_ops=[Scan])
        found = evaluator.run(None, dict(zip(names, map(widened, inputs), strict=True)))
    return [np.asarray(each) for each in found]


class Scan(op_scan.Scan):
    """onnx's, which knows axis 0 and the forward direction alone, of moved and turned arrays."""

    op_domain = ""

    def __init__(self, node: onnx.NodeProto, parameters: Any) -> None:
        self._moves = {a.name: list(a.ints) for a in node.attribute if a.name in _MOVES}
        plain = onnx.NodeProto()
        plain.CopyFrom(node)
        del plain.attribute[:]
        plain.attribute.extend(a for a in node.attribute if a.name not in _MOVES)
        super().__init__(plain, parameters)

    def _run(self, *args: Any, **keywords: Any) -> Any:
        states = len(args) - self.num_scan_inputs
        given = [self._moved(x, "input", i, 0) for i, x in enumerate(args[states:])]
        made = super()._run(*args[:states], *given, **keywords)
        out = [self._moved(x, "output", i, 1) for i, x in enumerate(made[states:])]
        return (*made[:states], *out)

    def _moved(self, x: Array, of: str, i: int, back: int) -> Array:
        axis, turned = (self._moves.get(f"scan_{of}_{each}") for each in ("axes", "directions"))
        x = np.flip(x, 0 if back else (axis[i] if axis else 0)) if turned and turned[i] else x
        return np.moveaxis(x, *((0, axis[i]) if back else (axis[i], 0))) if axis else x


def _widen_graph(graph: onnx.GraphProto) -> None:
    del graph.value_info[:]
    for info in (*graph.input, *graph.output):
        kind = info.type.tensor_type
        if kind.elem_type in _FLOATS:
            kind.elem_type = _TYPES.DOUBLE
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i in _FLOATS:
                attribute.i = _TYPES.DOUBLE
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
            if attribute.HasField("g"):
                _widen_graph(attribute.g)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _FLOATS:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def of_torch(program: Any, inputs: Sequence[Any]) -> list[Array]:
    """The results of an ExportedProgram, run operator by operator on float64 tensors."""
    import torch

    floats = (torch.float32, torch.float16, torch.bfloat16)

    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in floats:
            return value.double()
        return torch.float64 if value in floats else value

    class InFloat64(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            args, kwargs = torch.utils._pytree.tree_map(wide, (args, kwargs))
            return torch.utils._pytree.tree_map(wide, target(*args, **kwargs))

    held = {**program.state_dict, **program.constants}
    given = iter(inputs)
    arguments = [
        wide(next(given) if spec.target is None else held[spec.target])
        for spec in program.graph_signature.input_specs
    ]
    with torch.no_grad():
        found = InFloat64(program.graph_module).run(*arguments)
    leaves = torch.utils._pytree.tree_leaves(found)
    return [each.numpy() for each in leaves if isinstance(each, torch.Tensor)]
