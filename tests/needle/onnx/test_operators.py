"""Operators against ONNX Runtime and onnx's node cases."""

import collections

import numpy as np
import pytest

import needle as ndl
import needle.onnx

pytest.importorskip("onnx")

from tests.needle.onnx import node_cases
from tests.needle.onnx.one_node import by_needle, by_reference, model_of
from tests.needle.onnx.operators import OPSETS, joined


@pytest.mark.parametrize(
    ("opset", "dtype"),
    [(n, "float32") for n in OPSETS] + [(n, "float16") for n in OPSETS if n >= 13],
)
def test_operators_of_an_opset(opset, dtype):
    runtime = pytest.importorskip("onnxruntime")
    proto, given = joined(opset, dtype)
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    session = runtime.InferenceSession(proto.SerializeToString())
    expected = session.run(None, given)
    found = needle.onnx.load(proto)(**{n: ndl.Tensor(x) for n, x in given.items()})
    found = found if isinstance(found, tuple) else (found,)
    names = [info.name for info in proto.graph.output]
    for name, have, want in zip(names, found, expected, strict=True):
        assert have.dtype == want.dtype.name, name
        np.testing.assert_allclose(have.numpy(), want, 10 * tolerance, tolerance, err_msg=name)


@pytest.mark.parametrize(("shape", "dtype"), [((2, 3, 4, 5), "float32"), ((6, 3), "float16")])
def test_batch_norm_by_the_statistics_of_the_batch(shape, dtype):
    """Exporters write the standardised weights of a network as such a node."""
    draw = np.random.default_rng(0)
    x = (draw.standard_normal(shape) * 3 + 5).astype(dtype)
    given = [x, *draw.uniform(0.5, 2, (4, 3)).astype(dtype)]
    attributes = {"training_mode": 1, "momentum": 0.7, "epsilon": 1e-3}
    model = model_of("BatchNormalization", given, attributes, outputs=3, dtypes=[dtype] * 3)
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    for have, want in zip(by_needle(model, given), by_reference(model, given), strict=True):
        assert have.dtype == want.dtype
        np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_no_node_case_of_onnx_is_wrong():
    verdicts = [node_cases.judged(case, compiled=False) for case in node_cases.cases()]
    wrong = [each for each in verdicts if each.verdict == node_cases.WRONG]
    counts = collections.Counter(each.verdict for each in verdicts)
    assert not wrong
    assert counts[node_cases.RIGHT] >= 0.97 * len(verdicts) > 1000


@pytest.mark.slow
def test_the_models_that_onnx_ships():
    kinds = ("simple", "real", "pytorch-operator", "pytorch-converted")
    verdicts = [node_cases.judged(case, compiled=False) for case in node_cases.cases(kinds)]
    assert all(each.verdict == node_cases.RIGHT or "Sequence" in each.why for each in verdicts), (
        verdicts
    )
    assert len(verdicts) > 130
