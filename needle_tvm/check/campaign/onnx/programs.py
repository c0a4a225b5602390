"""Judge programs by exporting them as ONNX files and loading the files again.

The programs are needle's own (`draw`), but only with ops that ONNX has; those with odd seeds have
gradients. The file must pass onnx's checker. ONNX Runtime, if it has the kernels, must agree with
the eager program, and so must the program loaded from the file, which is then compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import needle as ndl
from needle.onnx.emit import find
from needle.trace.graph import Graph
from needle_tvm.check.campaign import judge, verdicts
from needle_tvm.check.campaign.draw import draw
from needle_tvm.check.campaign.program import Program

Array = np.ndarray[Any, Any]

# ONNX does not define how these treat NaN: ONNX Runtime treats it as a small number or returns it.
NOT_OF_NAN = {
    "ArgMax", "ArgMin", "Clip", "GRU", "InstanceNormalization", "LSTM", "LogSoftmax", "Max",
    "MaxPool", "Min", "RNN", "ReduceMax", "ReduceMin", "ScatterElements", "ScatterND", "Sign",
    "TopK",
}  # fmt: skip

# ONNX Runtime takes and returns NumPy arrays, which do not have this dtype.
_UNTOLD = ("bfloat16",)


def serve(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict on the program of a `seed`, or on a given `program`; see `judge.serve`."""
    if "program" in request:
        program = Program.from_json(request["program"])
    else:
        seed = int(request["seed"])
        program = draw(seed, gradient=seed % 2 == 1, allows=_has_rules)
    variants = request.get("variants", verdicts.VARIANTS)
    with verdicts.code(request):
        return judge.answer(program, *_judged(program, variants))


def rerun_request(request: Mapping[str, Any]) -> int:
    """Judge a failing program at the end of its script, like `judge.rerun_request`."""
    answer = serve(request)
    return judge.told(answer["where"], answer["verdict"], answer["what"])


def _has_rules(graph: Graph) -> bool:
    """Return whether ONNX has all ops of a step and ONNX Runtime accepts the dtypes of its
    values."""
    return all(
        (node.op is None or find(node.op) is not None)
        and all(spec.dtype not in _UNTOLD for spec in node.specs)
        for node in graph.nodes
    )


def _judged(program: Program, variants: Sequence[tuple[str, int]]) -> tuple[str, str, str]:
    where = "eager"
    with TemporaryDirectory(prefix="needle-onnx-") as folder:
        path = Path(folder) / "model.onnx"
        try:
            with judge.own_cache():
                model, drawn = program.load()
                arrays = [np.asarray(x) for x in drawn]  # a NumPy scalar would be a constant
                eager = judge.flat(model(*[ndl.Tensor(x) for x in arrays]))
                wanted = judge.Wanted(program.load()[0], arrays, eager)
                where = "export"
                ndl.onnx.export(program.load()[0], tuple(map(ndl.Tensor, arrays)), path)
                where = "onnxruntime"
                found = _by_runtime(path, arrays, any(leaf.special for leaf in program.leaves))
                wrong = found and wanted.difference(found)
                if wrong:
                    return where, verdicts.WRONG, wrong
                where = "import"
                read = ndl.onnx.load(path)
                wrong = wanted.difference(judge.flat(read(*[ndl.Tensor(x) for x in arrays])))
                if wrong:
                    return where, verdicts.WRONG, wrong
        except Exception as error:  # any exception is reported
            return verdicts.raised(where, error)
        return judge.judged(lambda: (ndl.onnx.load(path), arrays), variants)


def _by_runtime(path: Path, arrays: Sequence[Array], has_nan: bool) -> list[Array] | None:
    """Return ONNX Runtime's results for a file, which onnx's checker must accept. Returns None if
    ONNX Runtime has no kernel for some operator and dtype, does not accept the dtype of an input or
    output, or may lose a NaN (see NOT_OF_NAN)."""
    import onnx
    import onnxruntime as ort

    onnx.checker.check_model(path, full_check=True)
    model = onnx.load(path)
    if has_nan and any(node.op_type in NOT_OF_NAN for node in _nodes_of(model.graph)):
        return None
    untold = {onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for dtype in _UNTOLD}
    shown = [*model.graph.input, *model.graph.output]
    if any(each.type.tensor_type.elem_type in untold for each in shown):
        return None
    given = {each.name for each in model.graph.initializer}
    names = [each.name for each in model.graph.input if each.name not in given]
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return [np.asarray(x) for x in session.run(None, dict(zip(names, arrays, strict=True)))]
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        return None


def _nodes_of(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a GraphProto and of the graphs within it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes_of(attribute.g)
