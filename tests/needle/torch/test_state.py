"""What PyTorch programs write is kept by their needle modules, or refused by name."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import needle.torch  # noqa: E402
from needle.errors import UnsupportedError  # noqa: E402
from tests import torch_stateful as models  # noqa: E402


@pytest.mark.parametrize("name", models.WRITING)
def test_a_module_writes_its_own_tensors(name):
    make, inputs = models.WRITING[name]
    model = make()
    before = copy.deepcopy(model.state_dict())
    module = needle.torch.load(model, *inputs)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), "load changes nothing"
    for _ in range(3):
        with torch.no_grad():
            expected = model(*inputs)
        found = module(*[each.numpy() for each in inputs])
        np.testing.assert_allclose(found.numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    state = module.state_dict()
    for key in module.written:
        expected = model.state_dict()[key].numpy()
        np.testing.assert_allclose(state[key].numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", models.REFUSED)
def test_what_cannot_be_kept_is_refused_by_name_and_left_alone(name):
    make, said = models.REFUSED[name]
    model = make().eval()
    with pytest.raises(UnsupportedError, match=said):
        needle.torch.load(model, models.X)
    for each in vars(model).values():
        assert not isinstance(each, torch.Tensor) or (each.numpy() == 0).all()
    assert getattr(model, "number", 0) == 0 and getattr(model, "items", []) == []


def test_a_table_that_is_made_once_is_no_state():
    model = models.table_keeping()
    module = needle.torch.load(model, models.X)
    assert model.table is None
    expected = model(models.X)
    np.testing.assert_array_equal(module(models.X.numpy()).numpy(), expected.numpy())


@pytest.mark.parametrize("layer", ["Dropout", "AlphaDropout"])
def test_random_layers_are_taken_for_inference_alone(layer):
    model = getattr(torch.nn, layer)()
    with pytest.raises(UnsupportedError, match=r"random numbers.*model\.eval\(\)"):
        needle.torch.load(model, models.X)
    assert needle.torch.load(model.eval(), models.X)(models.X.numpy()).shape == (3,)


def test_tied_parameters_are_one():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    model[2].weight = model[0].weight
    module = needle.torch.load(model.eval(), torch.ones(2, 4))
    assert sorted(module.state_dict()) == sorted(model.state_dict())
    found = dict(module.named_tensors())
    assert found["0.weight"] is found["2.weight"] and found["0.bias"] is not found["2.bias"]
    assert [name for name, _ in module.named_parameters()] == ["0.weight", "0.bias", "2.bias"]


def test_names_of_weights_may_be_those_of_methods():
    model = torch.nn.Linear(3, 2).eval()
    assert needle.torch.load(model, torch.ones(1, 3))(np.ones((1, 3), "float32")).shape == (1, 2)
