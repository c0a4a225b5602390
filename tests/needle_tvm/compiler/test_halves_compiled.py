"""float16 and bfloat16 models at every stage, and their way in and out of artifacts."""

import numpy as np
import pytest

import needle as ndl
import needle_runtime
import needle_tvm
from needle import nn, ops
from needle.backend_ndarray.dtypes import HALVES
from needle_runtime.errors import InputError
from needle_runtime.random_inputs import random_inputs
from needle_tvm.check import parity
from needle_tvm.stages import STAGES
from tests.needle_tvm.conftest import make_mlp, tensor

pytestmark = pytest.mark.parametrize("dtype", HALVES)


class Classifier(nn.Module):
    """Layer norm, a matmul and softmax."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm1d(24)
        self.linear = nn.Linear(24, 10)

    def forward(self, x):
        return ops.softmax(self.linear(self.norm(x)))


MODELS = {
    "mlp": (lambda: make_mlp(64, 96, 32), (5, 64)),
    "norm and softmax": (Classifier, (5, 24)),
    "conv": (
        lambda: nn.Sequential(nn.Conv(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        (2, 3, 8, 8),
    ),
    "transformer": (lambda: nn.TransformerLayer(16, 2, 8, 32), (2, 5, 16)),
}


def make(name, dtype, rng):
    build, shape = MODELS[name]
    model = build().eval().to(dtype=dtype)
    return model, tensor(rng.standard_normal(shape).astype(dtype))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("conv", "transformer")))
        for name in MODELS
    ],
)
def test_stages_agree(name, dtype, rng):
    """Each stage and the eager model give the half's dtype and are near the model in float64."""
    model, x = make(name, dtype, rng)
    stages = {stage: needle_tvm.compile(model, x, stage=stage) for stage in STAGES}
    for exe in stages.values():
        assert exe(x).dtype == dtype
    for result in parity.ladder(model, [x], {"eager": None, **stages}):
        assert result.ok, result
        assert result.max_relative > 0


def test_sums_are_accumulated_in_float32(dtype):
    """Up to 5000 ones are summed; in half precision the sum would stop at 256 (2048)."""

    class Sums(nn.Module):
        def forward(self, x):
            return ops.summation(x, 1), ops.mean(x * 30.0, 1), ops.matmul(x, ops.transpose(x))

    x = tensor(np.ones((2, 5000), dtype))
    expected = np.array(5000.0).astype(dtype).item()
    for stage in STAGES:
        total, mean, product = needle_tvm.compile(Sums().eval(), x, stage=stage)(x)
        assert total.numpy().tolist() == [expected] * 2
        assert mean.numpy().tolist() == [30.0] * 2  # the sum is beyond float16
        assert product.numpy().tolist() == [[expected] * 2] * 2


def test_artifact(dtype, rng, tmp_path):
    """Weights, the golden example and the arrays of a call keep their dtype without needle."""
    model, x = make("mlp", dtype, rng)
    exe = needle_tvm.compile(model, x, stage="tuned")
    exe.export(tmp_path / "model")
    program = needle_runtime.load(tmp_path / "model")
    assert {spec["dtype"] for spec in (*program.inputs, *program.params)} == {dtype}
    out = program(x.numpy())
    assert out.dtype.name == dtype
    np.testing.assert_array_equal(out.view("uint16"), exe(x).numpy().view("uint16"))
    test = needle_runtime.self_test(program)
    assert test.passed and test.source == "eager"
    assert random_inputs(program.artifact)[0].dtype.name == dtype
    with pytest.raises(InputError, match=dtype):
        program(x.numpy().astype("float32"))
    # A strided array is taken by DLPack, and its memory stays unchanged.
    wide = ndl.backend_ndarray.array(np.repeat(x.numpy(), 2, 1))[:, ::2]
    np.testing.assert_array_equal(program(wide).view("uint16"), out.view("uint16"))
    assert wide.dtype == dtype
    torch = pytest.importorskip("torch")
    t = torch.from_dlpack(x.realize_cached_data())
    np.testing.assert_array_equal(program(t).view("uint16"), out.view("uint16"))
    assert str(t.dtype) == f"torch.{dtype}"
