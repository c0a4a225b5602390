"""Judge programs that are ONNX files: needle's own that go out as one, and graphs of operators.

Of an even seed it is one of needle's own programs. Its file must pass onnx's checker; ONNX Runtime,
where it has the kernels, must agree with the eager program, and so must the file that is read
again. Of an odd seed it is a graph of ONNX's operators (`layers`), with which ONNX Runtime must
agree. Both are compiled.
"""

from __future__ import annotations

import json
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
from needle_tvm.check.campaign.onnx import layers
from needle_tvm.check.campaign.onnx.draw import NOT_OF_NAN, run
from needle_tvm.check.campaign.onnx.graphs import GraphProgram, element_type
from needle_tvm.check.campaign.program import Program

Array = np.ndarray[Any, Any]


def serve(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict on the program of a `seed`, or on a given `program`; see `judge.serve`."""
    program = _program(request)
    variants = request.get("variants", verdicts.VARIANTS)
    with verdicts.code(request):
        if isinstance(program, Program):
            return judge.answer(program, *_of_own(program, variants))
        where, verdict, what = _of_graph(program, variants)
    return {
        "verdict": verdict,
        "where": where,
        "what": what,
        "program": program.to_json(),
        "ops": sorted({node.op for node in program.nodes}),
        "steps": len(program.nodes),
    }


def _program(request: Mapping[str, Any]) -> Program | GraphProgram:
    if "program" in request:
        return program_of(request["program"])
    seed = int(request["seed"])
    return layers.draw(seed) if seed % 2 else draw(seed, allows=_has_rules)


def program_of(text: str) -> Program | GraphProgram:
    """Return the program of its JSON."""
    kind = GraphProgram if "nodes" in json.loads(text) else Program
    return kind.from_json(text)


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


def _of_own(program: Program, variants: Sequence[tuple[str, int]]) -> tuple[str, str, str]:
    where = "eager"
    with TemporaryDirectory(prefix="needle-onnx-") as folder:
        path = Path(folder) / "model.onnx"
        try:
            with judge.own_cache():
                model, drawn = program.load()
                arrays = [np.asarray(x) for x in drawn]  # a number of NumPy's would be fixed
                eager = judge.flat(model(*[ndl.Tensor(x) for x in arrays]))
                wanted = judge.Wanted(program.load()[0], arrays, eager)
                where = "export"
                ndl.onnx.export(program.load()[0], tuple(arrays), path)
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


def _of_graph(program: GraphProgram, variants: Sequence[tuple[str, int]]) -> tuple[str, str, str]:
    where = "onnxruntime"
    try:
        proto, arrays = program.model(), program.arrays()
        found = _by_runtime(proto, arrays)
        where = "import"
        with judge.own_cache():
            model = ndl.onnx.load(proto)
            eager = judge.flat(model(*[ndl.Tensor(x) for x in arrays]))
            where = "trace"
            wanted = judge.Wanted(model, arrays, eager)
            for of, results in (("onnxruntime", found), ("eager", eager)):
                wrong = results and wanted.difference(results)
                if wrong:
                    return of, verdicts.WRONG, wrong
            return judge.compared(model, [wanted], variants)
    except Exception as error:  # any exception is reported
        return verdicts.raised(where, error)


def _by_runtime(model: Any, arrays: Sequence[Array], has_nan: bool = False) -> list[Any] | None:
    """The results of ONNX Runtime for a path or a ModelProto, or None if it has no kernel for some
    operator and dtype, takes no input of a dtype, or may lose a NaN (see NOT_OF_NAN)."""
    import onnx
    import onnxruntime as ort

    if isinstance(model, Path):
        onnx.checker.check_model(model, full_check=True)
        model = onnx.load(model)
    if has_nan and any(node.op_type in NOT_OF_NAN for node in _nodes_of(model.graph)):
        return None
    untold = {element_type(dtype) for dtype in _UNTOLD}
    shown = [*model.graph.input, *model.graph.output]
    if any(each.type.tensor_type.elem_type in untold for each in shown):
        return None
    given = {each.name for each in model.graph.initializer}
    names = [each.name for each in model.graph.input if each.name not in given]
    try:
        return run(model, dict(zip(names, arrays, strict=True)))
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        return None


def _nodes_of(graph: Any) -> Iterator[Any]:
    """The nodes of a GraphProto and of the graphs within them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes_of(attribute.g)
