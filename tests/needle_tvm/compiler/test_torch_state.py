"""State by contract: compiled code and its PyTorch model share what the model writes."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import needle.torch  # noqa: E402
import needle_runtime  # noqa: E402
import needle_tvm  # noqa: E402
from needle_runtime.errors import InputError, ParameterError  # noqa: E402
from needle_tvm.errors import TranslationError  # noqa: E402
from tests import torch_stateful as models  # noqa: E402

pytestmark = pytest.mark.peer


def _array(value):
    return value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def close(found, expected):
    np.testing.assert_allclose(_array(found), expected.detach().numpy(), rtol=1e-5, atol=1e-6)


def same_state(model, other):
    for (name, found), expected in zip(
        model.state_dict().items(), other.state_dict().values(), strict=True
    ):
        assert found.dtype == expected.dtype, name
        close(found, expected)


@pytest.mark.parametrize("name", models.WRITING)
def test_code_and_model_share_their_state(name):
    make, inputs = models.WRITING[name]
    model = make()
    other = copy.deepcopy(model)
    held = {key: value.data_ptr() for key, value in model.state_dict().items()}
    compiled = needle_tvm.compile_torch(model, *inputs, stage="fused")
    with torch.no_grad():
        for turn in range(5):  # of the code, and once of the model itself
            found = model(*inputs) if turn == 2 else compiled(*inputs).numpy()
            close(found, other(*inputs))
            same_state(model, other)
    if name != "assigned":  # which PyTorch itself replaces
        assert held == {key: value.data_ptr() for key, value in model.state_dict().items()}


@pytest.mark.parametrize("name", ["parameter", "cache", "batch_norm"])
def test_code_of_a_loaded_module_shares_its_state(name):
    make, inputs = models.WRITING[name]
    model = make()
    module = needle.torch.load(model, *inputs)
    arrays = [each.numpy() for each in inputs]
    compiled = needle_tvm.compile(module, *arrays, stage="fused")
    with torch.no_grad():
        for turn in range(4):
            found = module(*arrays) if turn == 2 else compiled(*arrays)
            close(found.numpy(), model(*inputs))
    state = module.state_dict()
    for key in module.written:
        close(state[key].numpy(), model.state_dict()[key])


@pytest.mark.parametrize("name", ["parameter", "batch_norm"])
def test_an_exported_artifact_goes_on(name, tmp_path):
    make, inputs = models.WRITING[name]
    model = make()
    compiled = needle_tvm.compile_torch(model, *inputs, stage="fused")
    compiled(*inputs)
    compiled.export(tmp_path / "one")
    arrays = [each.numpy() for each in inputs]
    loaded, program = needle_tvm.load(tmp_path / "one"), needle_runtime.load(tmp_path / "one")
    assert needle_runtime.self_test(program).passed
    with torch.no_grad():
        for _ in range(2):
            expected = model(*inputs)
            close(loaded(*arrays).numpy(), expected)
            close(program(*arrays), expected)
        loaded.export(tmp_path / "two")
        close(needle_runtime.load(tmp_path / "two")(*arrays), model(*inputs))


def test_another_state_is_the_codes_own():
    make, inputs = models.WRITING["parameter"]
    model = make()
    compiled = needle_tvm.compile_torch(model, *inputs, stage="fused")
    compiled.set_params({"n": np.full(1, 10, "float32")})
    assert compiled(*inputs).numpy()[0] == 12 and compiled(*inputs).numpy()[0] == 13
    assert model.n.item() == 0
    with pytest.raises(ParameterError, match="missing 'n'"):
        compiled.set_params({})


def test_results_may_be_written_to_arrays():
    make, inputs = models.WRITING["parameter"]
    compiled = needle_tvm.compile_torch(make(), *inputs, stage="fused")
    out = np.zeros(3, "float32")
    assert compiled(*inputs, out=out) is out and out[0] == 2
    with pytest.raises(InputError):
        compiled(*inputs, out=np.zeros(4, "float32"))
    with pytest.raises(InputError):
        compiled(torch.ones(7))
    assert compiled(*inputs).numpy()[0] == 3, "a refused call is none"


def test_a_model_in_inference_mode_is_written_too():
    with torch.inference_mode():
        model = models.counting(models.assign_buffer, b=models.ZEROS)
        compiled = needle_tvm.compile_torch(model, models.X, stage="fused")
    for turn in range(1, 4):
        close(compiled(models.X).numpy(), models.X * turn)
    close(model.b, models.X * 3)


def test_threads_share_one_state():
    import threading

    make, inputs = models.WRITING["parameter"]
    model = make()
    compiled = needle_tvm.compile_torch(model, *inputs, stage="fused")
    threads = [
        threading.Thread(target=lambda: [compiled(*inputs) for _ in range(20)]) for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert model.n.item() == 80


@pytest.mark.parametrize("name", models.REFUSED)
def test_what_cannot_be_kept_is_refused_by_name(name):
    make, said = models.REFUSED[name]
    with pytest.raises(TranslationError, match=said):
        needle_tvm.compile_torch(make().eval(), models.X, stage="noopt")
