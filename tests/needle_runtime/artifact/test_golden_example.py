"""The example and the weights that an artifact carries."""

import numpy as np
import pytest
from safetensors.numpy import load_file

import needle as ndl
import needle_runtime
import needle_tvm
from needle import nn
from needle_runtime.artifact import layout
from needle_runtime.errors import ParameterError
from tests.needle_tvm.conftest import make_mlp, tensor


def test_the_golden_outputs_are_the_eager_models(exported, model, array):
    golden = load_file(exported / layout.GOLDEN)
    np.testing.assert_array_equal(golden["input.0"], array)
    np.testing.assert_array_equal(golden["output.0"], model(tensor(array)).numpy())
    test = needle_runtime.self_test(needle_runtime.load(exported))
    assert test.passed and test.source == "eager"
    assert 0 < test.tolerances[0] < 1e-3


def test_the_golden_outputs_follow_the_weights(array, tmp_path):
    model = make_mlp(16, 5)
    executable = needle_tvm.compile(model, tensor(array), stage="fused")
    before = model(tensor(array)).numpy()
    executable.export(tmp_path / "old")
    np.testing.assert_array_equal(load_file(tmp_path / "old" / layout.GOLDEN)["output.0"], before)
    model.modules[0].weight.data = model.modules[0].weight.data * 2  # which the executable follows
    executable.export(tmp_path / "new")
    after = load_file(tmp_path / "new" / layout.GOLDEN)["output.0"]
    np.testing.assert_array_equal(after, model(tensor(array)).numpy())
    assert not np.array_equal(before, after)

    loaded = needle_tvm.load(tmp_path / "old")
    assert loaded.export(tmp_path / "again")  # unchanged: the same bytes
    for file in (tmp_path / "old").iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()
    loaded.set_params(model.state_dict())  # a loaded artifact does not follow the model
    loaded.export(tmp_path / "other")
    for name, source in (("old", "eager"), ("new", "eager"), ("other", "compiled")):
        test = needle_runtime.self_test(needle_runtime.load(tmp_path / name))
        assert (test.passed, test.source) == (True, source)


def test_constants_integers_and_shared_results_are_in_the_golden_example(array, tmp_path):
    class Mixed(nn.Module):
        def forward(self, x, index):
            y = x * ndl.Tensor(np.arange(16, dtype=np.float32), requires_grad=False)
            return y, y, index, ndl.ops.exp(y * 0.1)

    inputs = tensor(array), tensor(np.array([3, 1], np.int64))
    executable = needle_tvm.compile(Mixed().eval(), *inputs, stage="fused")
    program = needle_runtime.load(executable.export(tmp_path / "out"))
    stored = load_file(tmp_path / "out" / layout.GOLDEN)
    assert stored["output.2"].dtype == np.int64 and stored["output.2"].tolist() == [3, 1]
    np.testing.assert_array_equal(stored["output.1"], array * np.arange(16, dtype=np.float32))
    test = needle_runtime.self_test(program)
    assert test.passed and len(test.differences) == 4


# Weights


def test_weights_that_do_not_fit_are_all_listed(exported, model, array):
    program = needle_runtime.load(exported)
    want = program(array)
    params = {name: value.numpy() for name, value in model.state_dict().items()}
    params["modules.0.weight"] = params["modules.0.weight"][:, :-1]
    params["modules.0.bias"] = params["modules.0.bias"].astype(np.float64)
    params["extra"] = params.pop("modules.2.bias")
    with pytest.raises(ParameterError) as caught:
        program.set_params(params)
    for part in (
        "unexpected 'extra'",
        "missing 'modules.2.bias'",
        r"float32(16, 19), not float32(16, 20)",
        "float64(1, 20)",
    ):
        assert part in str(caught.value)
    np.testing.assert_array_equal(program(array), want)
