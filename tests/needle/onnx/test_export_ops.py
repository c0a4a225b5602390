"""Every op of the registry as ONNX: its samples, exported, are valid and mean the same to ONNX
Runtime as to needle."""

import pytest

from needle.backend_ndarray.dtypes import DTYPES, SMALL_INTEGER
from needle.ops import REGISTRY
from tests.needle.onnx.exporting import OWN, cases, check

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

# What ONNX cannot say, with the reason.
UNSAID = {
    "bitcast": "BitCast is of opset 26, which ONNX Runtime does not run",
    "random_uniform": "a model that is exported draws nothing: it is in eval mode",
}
COMMON = ("float32", "float64", "int64", "bool", "float16")


def checked(name, dtypes, path, **choices):
    chosen = list(cases(name, dtypes))
    run = [case for case in chosen if not case.in_reference]
    if run:
        check(path, run, **choices)
    return [case for case in chosen if case.in_reference]


def test_every_op_has_a_rule_or_a_reason():
    from needle.onnx import emit

    without = {name for name in OWN if emit.RULES.get(REGISTRY[name]) is None}
    assert without == UNSAID.keys()


@pytest.mark.parametrize("name", [name for name in OWN if name not in UNSAID])
def test_op(name, tmp_path):
    """In the usual dtypes, and in one small integer, which is another for the next op."""
    small = SMALL_INTEGER[OWN.index(name) % len(SMALL_INTEGER)]
    checked(name, (*COMMON, small), tmp_path / "op.onnx")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning:onnx.reference")
@pytest.mark.parametrize("name", [name for name in OWN if name not in UNSAID])
def test_op_in_all_dtypes(name, tmp_path):
    left = checked(name, DTYPES, tmp_path / "op.onnx", opset=24)
    checked(name, ("float32", "int32"), tmp_path / "op.onnx", opset=18)
    for case in left:
        check(tmp_path / "op.onnx", [case], reference=True)


def test_kernels_are_those_of_onnx_runtime():
    """The table of dtypes holds what ONNX Runtime registers and ONNX 18 allows, for the operators
    that rules write."""
    import onnx
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    from needle.onnx.emit._dtypes import KERNELS

    found: dict[str, set[str]] = {}
    for kernel in state.get_all_opkernel_def():
        first, last = kernel.version_range
        if kernel.provider != "CPUExecutionProvider" or kernel.domain not in ("", "ai.onnx"):
            continue
        if kernel.op_name in KERNELS and first <= 20 <= last:
            types = kernel.type_constraints
            found.setdefault(kernel.op_name, set()).update(types.get("T") or types["T1"])
    assert found.keys() == KERNELS.keys()
    names = {"float": "float32", "double": "float64"}
    for op_type, registered in found.items():
        schema = onnx.defs.get_schema(op_type, 20)
        allowed = set(schema.inputs[1 if op_type == "Where" else 0].types)
        said = {t.removeprefix("tensor(").removesuffix(")") for t in registered & allowed}
        said = {names.get(t, t) for t in said}
        assert KERNELS[op_type] <= said, op_type
