"""ONNX's own node cases (onnx.backend.test) through needle, eager or compiled.

A case is right by ONNX's own rule (rtol 1e-3, equal shapes and dtypes, and an atol of 1e-7 or of
the rounding of what is expected), refused if needle says by name that it does not take the model,
and wrong otherwise. Cases of training, random operators and `_expanded` twins are left out, and
those whose values are no tensors of needle's dtypes. An input that a refusal asks to know while
tracing is then given as `fixed`.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import needle as ndl
import needle.onnx
from needle.backend_ndarray.dtypes import DTYPES
from needle.errors import UnsupportedError

RIGHT, REFUSED, WRONG = "right", "refused", "wrong"
_RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomUniform"}
_RANDOM |= {f"{name}Like" for name in _RANDOM}


class Verdict(NamedTuple):
    """What became of a case: its operator, right, refused or wrong, and why if it is not right."""

    name: str
    operator: str
    verdict: str
    why: str = ""


def cases(kinds: Sequence[str] = ("node",)) -> Iterator[Any]:
    """The cases that count, as `onnx.backend.test` describes them."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, while onnx computes what it expects
        found = [case for kind in kinds for case in load_model_tests(kind=kind)]
    for case in found:
        if case.model is None:
            case = _stored(case)
        if case is not None and _counts(case):
            yield case


def _stored(case: Any) -> Any:
    """A case with the model and the data of its folder, or of the light models that onnx ships;
    None if some value is no tensor."""
    import onnx

    if case.model_dir is not None:
        folder = Path(case.model_dir)
        model = onnx.load(folder / "model.onnx")
        sets = [
            [_read(sorted(each.glob(f"{kind}_*.pb"), key=_number)) for kind in ("input", "output")]
            for each in sorted(folder.glob("test_data_set*"))
        ]
    else:
        path = Path(onnx.__file__).parent.parent / case.url
        model = onnx.load(path)
        held = {each.name for each in model.graph.initializer}
        from onnx.backend.test.runner import Runner

        inputs = [Runner.generate_dummy_data(i) for i in model.graph.input if i.name not in held]
        sets = [[inputs, _read([path.with_name(f"{path.stem}_output_0.pb")])]]
    if any(value is None for each in sets for values in each for value in values):
        return None
    return dataclasses.replace(case, model=model, data_sets=sets)


def _number(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def _read(paths: Sequence[Path]) -> list[Any]:
    import onnx
    from google.protobuf.message import DecodeError

    found: list[Any] = []
    for path in paths:
        tensor = onnx.TensorProto()
        try:
            tensor.ParseFromString(path.read_bytes())
            found.append(onnx.numpy_helper.to_array(tensor))
        except (DecodeError, ValueError, TypeError):  # a sequence
            found.append(None)
    return found


def _counts(case: Any) -> bool:
    nodes = case.model.graph.node
    if "_expanded" in case.name or any(node.op_type in _RANDOM for node in nodes):
        return False
    if any("training" in node.domain for node in nodes) or _trains(case):
        return False
    values = [value for inputs, outputs in case.data_sets for value in (*inputs, *outputs)]
    kinds = [*case.model.graph.input, *case.model.graph.output]
    return all(
        isinstance(v, (np.ndarray, np.generic)) and v.dtype.name in DTYPES for v in values
    ) and all(info.type.WhichOneof("value") == "tensor_type" for info in kinds)


def _trains(case: Any) -> bool:
    """Whether the case's BatchNormalization or Dropout is in training mode."""
    if "training" in case.name:
        return True
    return any(
        attribute.name == "training_mode" and attribute.i
        for node in case.model.graph.node
        for attribute in node.attribute
    )


def operator(case: Any) -> str:
    """The operator that a case is about: the first node's."""
    node = case.model.graph.node[0]
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def judged(case: Any, compiled: bool) -> Verdict:
    """Run all data sets of a case."""
    try:
        for inputs, outputs in case.data_sets:
            wrong = _difference(case, _run(case, list(inputs), compiled), outputs)
            if wrong:
                return Verdict(case.name, operator(case), WRONG, wrong)
    except UnsupportedError as error:
        return Verdict(case.name, operator(case), REFUSED, str(error))
    except Exception as error:  # whatever it is, it is a fault and is counted
        why = f"{type(error).__name__}: {error}"
        return Verdict(case.name, operator(case), WRONG, why)
    return Verdict(case.name, operator(case), RIGHT)


def _run(case: Any, inputs: list[Any], compiled: bool) -> list[np.ndarray]:
    """The outputs; inputs whose values must be known are given as `fixed`, one by one."""
    held = {each.name for each in case.model.graph.initializer}
    names = [info.name for info in case.model.graph.input if info.name not in held]
    given = dict(zip(names, inputs, strict=False))
    fixed: dict[str, Any] = {}
    while True:
        try:
            return _outputs(
                case.model, {n: v for n, v in given.items() if n not in fixed}, fixed, compiled
            )
        except UnsupportedError as error:
            name = next(
                (n for n in _asked(case, str(error)) if n in given and n not in fixed), None
            )
            if name is None:
                raise
            fixed[name] = given[name]


def _asked(case: Any, message: str) -> list[str]:
    """The inputs of the node that a refusal names, if it asks for known values: those that decide
    shapes first, which are the later and the smaller ones."""
    if "fixed=" not in message:
        return []
    found = re.match(r"node '(.*?)' \(", message)
    return (
        [name for node in reversed(case.model.graph.node) for name in reversed(node.input)]
        if found
        else []
    )


def _outputs(
    model: Any, inputs: dict[str, Any], fixed: dict[str, Any], compiled: bool
) -> list[np.ndarray]:
    module = needle.onnx.load(model, fixed=fixed)
    tensors = [ndl.Tensor(np.asarray(value), requires_grad=False) for value in inputs.values()]
    if compiled:
        import needle_tvm

        found = needle_tvm.compile(module, *tensors, progress=False)(*tensors)
    else:
        from needle.trace import trace

        trace(module, *tensors)  # what eager mode knows, a trace may not
        with ndl.no_grad():
            found = module(*tensors)
    return [value.numpy() for value in (found if isinstance(found, tuple) else (found,))]


def _rounding(expected: Any) -> float:
    """By how much the expected results are wrong themselves: elements of a Fourier transform that
    ought to be 0 are as large as the rounding of the largest, and those of attention in float16 are
    further from the exact ones than needle's."""
    values = np.asarray(expected)
    if values.dtype not in (np.float32, np.float16):
        return 0.0
    finite = np.abs(values[np.isfinite(values)]).astype(np.float64)
    return float(np.finfo(values.dtype).eps * finite.max(initial=0))


def _difference(case: Any, found: Sequence[Any], expected: Sequence[Any]) -> str | None:
    from onnx.backend.test.runner import Runner

    atol = max(case.atol, *map(_rounding, expected)) if expected else case.atol
    try:
        Runner.assert_similar_outputs(list(expected), list(found), case.rtol, atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return None
