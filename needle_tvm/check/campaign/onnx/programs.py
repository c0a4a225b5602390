"""Judge needle's own programs that go out as an ONNX file and come back.

The file must pass onnx's checker; ONNX Runtime, where it has the kernels, must agree with the eager
program, and so must the file that is read again, eagerly and compiled at every stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import needle as ndl
from needle.graph import Graph
from needle.onnx.emit import find
from needle_tvm.check.campaign import judge, verdicts
from needle_tvm.check.campaign.draw import draw
from needle_tvm.check.campaign.program import Program


def serve(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict on the program of a `seed`, or on a given `program`; see `judge.serve`."""
    if "program" in request:
        program = Program.from_json(request["program"])
    else:
        program = draw(int(request["seed"]), allows=_has_rules)
    with TemporaryDirectory(prefix="needle-onnx-") as folder:
        path = Path(folder) / "model.onnx"
        variants = request.get("variants", verdicts.VARIANTS)
        where, verdict, what = _judged(program, path, variants)
    return judge.answer(program, where, verdict, what)


def rerun_request(request: Mapping[str, Any]) -> int:
    """End a failing program's script, like `judge.rerun_request`."""
    answer = serve(request)
    return judge.told(answer["where"], answer["verdict"], answer["what"])


def _has_rules(graph: Graph) -> bool:
    """Whether ONNX can say every op of a step, and ONNX Runtime take the dtypes of its values."""
    return all(
        (node.op is None or find(node.op) is not None)
        and all(spec.dtype not in _UNTOLD for spec in node.specs)
        for node in graph.nodes
    )


# NumPy's arrays, in which ONNX Runtime takes and returns values, do not have it.
_UNTOLD = ("bfloat16",)


def _judged(
    program: Program, path: Path, variants: Sequence[tuple[str, int]]
) -> tuple[str, str, str]:
    where = "eager"
    try:
        with judge.own_cache():
            model, arrays = program.load()
            eager = judge.flat(model(*[ndl.Tensor(x) for x in arrays]))
            wanted = judge.Wanted(program.load()[0], arrays, eager)
            where = "export"
            ndl.onnx.export(program.load()[0], tuple(arrays), path)
            where = "onnxruntime"
            found = _by_runtime(path, arrays)
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


def _by_runtime(path: Path, arrays: Sequence[np.ndarray[Any, Any]]) -> list[Any] | None:
    """The results of ONNX Runtime, or None if it has no kernel for some operator and dtype."""
    import onnx
    import onnxruntime as ort

    onnx.checker.check_model(path, full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        return None
    names = [each.name for each in session.get_inputs()]
    return list(session.run(None, dict(zip(names, arrays, strict=True))))
