"""Modules: state, modes, layers."""

import copy

import numpy as np
import pytest

import needle as ndl
from needle import nn
from needle.errors import ShapeError
from needle.testing import assert_close


def tensor(values, device, dtype="float64"):
    return ndl.Tensor(np.asarray(values, dtype), device=device, requires_grad=True)


class Zoo(nn.Module):
    """Has parameters in attributes, lists and dicts, a buffer, a hidden one and a shared layer."""

    def __init__(self, device):
        super().__init__()
        self.weight = nn.Parameter(ndl.init.ones(2, device=device))
        self.layers = [nn.Linear(2, 3, device=device), nn.ReLU()]
        self.table = {"a": nn.Linear(3, 2, bias=False, device=device)}
        self.again = self.layers[0]
        self.steps = ndl.Tensor([0], device=device)
        self._cache = ndl.init.ones(4, device=device)
        self.name = "zoo"

    def forward(self, x):
        return self.table["a"](self.layers[1](self.layers[0](x * self.weight)))


def test_names_are_attribute_paths(device):
    zoo = Zoo(device)
    parameters = ["weight", "layers.0.weight", "layers.0.bias", "table.a.weight"]
    assert [name for name, _ in zoo.named_parameters()] == parameters
    assert [name for name, _ in zoo.named_buffers()] == ["steps"]
    assert [name for name, _ in zoo.named_modules()] == ["", "layers.0", "layers.1", "table.a"]
    assert list(zoo.state_dict()) == [*parameters, "steps"]
    assert len(zoo.parameters()) == 4
    assert "Linear(2, 3, bias=True)" in repr(zoo)


def test_modes_reach_every_module(device):
    zoo = Zoo(device)
    assert zoo.training
    assert zoo.eval() is zoo
    assert not any(module.training for _, module in zoo.named_modules())
    zoo.train()
    assert all(module.training for _, module in zoo.named_modules())


def test_state_is_loaded_by_value(device):
    first, second = Zoo(device), Zoo(device)
    x = tensor(np.ones((1, 2)), device, "float32")
    second.load_state_dict(first.state_dict())
    np.testing.assert_array_equal(first(x).numpy(), second(x).numpy())
    first.weight.data = ndl.init.zeros(2, device=device)
    assert second.weight.numpy().tolist() == [1, 1]
    second.load_state_dict({n: t.numpy() for n, t in first.state_dict().items()})
    assert second.weight.numpy().tolist() == [0, 0]
    keys = second.load_state_dict({"weight": np.full(2, 7, "float32"), "x": 1.0}, strict=False)
    assert keys.missing_keys == [name for name in first.state_dict() if name != "weight"]
    assert keys == (keys.missing_keys, ["x"])
    assert second.weight.numpy().tolist() == [7, 7]


def test_a_state_that_does_not_fit_is_refused_whole(device):
    zoo = Zoo(device)
    state = {name: value.numpy() for name, value in zoo.state_dict().items()}
    del state["layers.0.bias"], state["steps"]
    state["other"] = state["extra"] = np.ones(1, "float32")
    state["weight"] = np.ones(3, "float32")
    state["table.a.weight"] = np.ones((3, 2))
    state["layers.0.weight"] = np.full((2, 3), 9, "float32")
    with pytest.raises(ValueError) as raised:
        zoo.load_state_dict(state)
    for part in (
        "missing 'layers.0.bias'",
        "missing 'steps'",
        "unexpected 'other'",
        "unexpected 'extra'",
        "'weight' has shape (3,), not (2,)",
        "'table.a.weight' has dtype float64, not float32",
    ):
        assert part in str(raised.value)
    assert not (zoo.layers[0].weight.numpy() == 9).any()


class Tied(nn.Module):
    """One parameter and one buffer, each under two names."""

    def __init__(self, device):
        super().__init__()
        self.encode = nn.Linear(3, 3, bias=False, device=device)
        self.decode = nn.Linear(3, 3, bias=False, device=device)
        self.decode.weight = self.encode.weight
        self.scale = self.again = ndl.Tensor([1.0, np.nan], device=device)


@pytest.mark.parametrize(
    ("first", "second"), [("encode.weight", "decode.weight"), ("scale", "again")]
)
def test_two_values_for_one_tensor_are_refused_by_both_names(first, second, device):
    model, other = Tied(device), Tied(device)
    state = {name: value.numpy() for name, value in other.state_dict().items()}
    before = {name: value.numpy() for name, value in model.state_dict().items()}
    state[second] = state[second] + 1
    one_tensor = f"'{first}' and '{second}' are one tensor and have different values"
    for strict in (True, False):
        with pytest.raises(ValueError, match=f"load_state_dict: Tied: {one_tensor}$"):
            model.load_state_dict(state, strict)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])
    del state[second]
    model.load_state_dict(state, strict=False)  # either name alone is enough
    np.testing.assert_array_equal(model.decode.weight.numpy(), other.encode.weight.numpy())
    assert model.decode.weight is model.encode.weight


def test_the_state_of_a_tied_model_comes_back(device, tmp_path):
    model, other = Tied(device), Tied(device)
    ndl.save(tmp_path / "state", other)
    for state in (other.state_dict(), ndl.load(tmp_path / "state")):
        model.load_state_dict(state)
        np.testing.assert_array_equal(model.decode.weight.numpy(), other.encode.weight.numpy())
        assert model.decode.weight is model.encode.weight and model.again is model.scale


def test_modules_are_copied_deeply(device):
    zoo = Zoo(device)
    twin = copy.deepcopy(zoo)
    assert twin.again is twin.layers[0]
    twin.weight.data = ndl.init.zeros(2, device=device)
    assert zoo.weight.numpy().tolist() == [1, 1]
    assert [n for n, _ in twin.named_parameters()] == [n for n, _ in zoo.named_parameters()]


def test_to_moves_and_casts(device):
    zoo = Zoo(device)
    assert zoo.to(dtype="float64") is zoo
    assert {p.dtype for p in zoo.parameters()} == {"float64"} and zoo.steps.dtype == "int64"
    zoo.to(ndl.cpu_numpy())
    assert {p.device for p in zoo.parameters()} == {ndl.cpu_numpy()}
    assert all(p.requires_grad and p.spec.dtype == p.node.spec.dtype for p in zoo.parameters())


def test_a_module_without_forward_says_so(device):
    class Empty(nn.Module):
        pass

    with pytest.raises(NotImplementedError, match="Empty defines no forward"):
        Empty()(1)


def test_linear(device):
    layer = nn.Linear(3, 4, device=device, dtype="float64")
    assert (layer.weight.shape, layer.bias.shape) == ((3, 4), (1, 4))
    rng = np.random.default_rng(0)
    for shape in ((2, 3), (5, 2, 3), (0, 3)):
        x = rng.normal(size=shape)
        expected = x @ layer.weight.numpy() + layer.bias.numpy()
        np.testing.assert_allclose(layer(tensor(x, device)).numpy(), expected)
    assert nn.Linear(3, 4, bias=False, device=device).bias is None
    with pytest.raises(ShapeError, match="matmul"):
        layer(tensor(np.ones((2, 4)), device))


def test_containers_and_activations(device):
    x = tensor([[-1.0, 2.0]], device)
    a = x.numpy()
    for module, expected in [
        (nn.Identity(), a),
        (nn.ReLU(), np.maximum(a, 0)),
        (nn.Tanh(), np.tanh(a)),
        (nn.Sigmoid(), 1 / (1 + np.exp(-a))),
        (nn.Residual(nn.ReLU()), a + np.maximum(a, 0)),
        (nn.Sequential(nn.ReLU(), nn.Tanh()), np.tanh(np.maximum(a, 0))),
        (nn.Sequential(), a),
    ]:
        np.testing.assert_allclose(module(x).numpy(), expected, rtol=1e-12)
    assert nn.Flatten()(tensor(np.ones((2, 3, 4)), device)).shape == (2, 12)
    assert nn.Flatten()(tensor(np.ones((0, 3, 4)), device)).shape == (0, 12)


def test_dropout(device):
    np.random.seed(3)
    layer = nn.Dropout(0.25)
    y = layer(tensor(np.ones(4000), device)).numpy()
    assert set(np.unique(y)) == {0, 1 / 0.75}
    assert abs((y == 0).mean() - 0.25) < 0.03
    x = tensor(np.ones(3), device)
    assert layer.eval()(x) is x
    for p in (-0.1, 1.0):
        with pytest.raises(ValueError, match="p"):
            nn.Dropout(p)


def test_batch_norm_moves_its_statistics_in_train_mode_only(device):
    rng = np.random.default_rng(0)
    norm = nn.BatchNorm1d(3, momentum=0.2, device=device, dtype="float64")
    mean, var = np.zeros(3), np.ones(3)
    for _ in range(3):
        x = rng.normal(2, 3, (8, 3))
        y = norm(tensor(x, device)).numpy()
        np.testing.assert_allclose(y.mean(0), 0, atol=1e-12)
        np.testing.assert_allclose(y.std(0), 1, rtol=1e-4)
        mean, var = 0.8 * mean + 0.2 * x.mean(0), 0.8 * var + 0.2 * x.var(0, ddof=1)
    np.testing.assert_allclose(norm.running_mean.numpy(), mean)
    np.testing.assert_allclose(norm.running_var.numpy(), var)
    norm.eval()
    x = rng.normal(size=(2, 3))
    np.testing.assert_allclose(norm(tensor(x, device)).numpy(), (x - mean) / np.sqrt(var + 1e-5))
    np.testing.assert_allclose(norm.running_mean.numpy(), mean)
    assert not norm.running_mean.requires_grad


def test_softmax_loss_is_stable(device):
    logits = tensor([[1e4, 0.0, -1e4], [0.0, 0.0, 0.0]], device)
    loss = nn.SoftmaxLoss()(logits, ndl.Tensor(np.array([1, 2]), device=device))
    np.testing.assert_allclose(loss.item(), (1e4 + np.log(3)) / 2)
    loss.backward()
    assert np.isfinite(logits.grad.numpy()).all()
    by_floats = nn.SoftmaxLoss()(logits, ndl.Tensor(np.array([1.0, 2.0]), device=device))
    assert by_floats.item() == loss.item()
    with pytest.raises(IndexError, match="SoftmaxLoss: y holds"):
        nn.SoftmaxLoss()(logits, ndl.Tensor(np.array([0, 3]), device=device))


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["linear", "layer_norm", "batch_norm", "batch_norm_eval", "loss"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_layers_are_torchs_forward_and_backward(kind, dtype, device):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    x = rng.normal(size=(6, 5)).astype(dtype)
    where = {"device": device, "dtype": dtype}
    ours, theirs = {
        "linear": lambda: (nn.Linear(5, 4, **where), torch.nn.Linear(5, 4)),
        "layer_norm": lambda: (nn.LayerNorm1d(5, **where), torch.nn.LayerNorm(5)),
        "batch_norm": lambda: (nn.BatchNorm1d(5, **where), torch.nn.BatchNorm1d(5)),
        "batch_norm_eval": lambda: (nn.BatchNorm1d(5, **where), torch.nn.BatchNorm1d(5)),
        "loss": lambda: (nn.SoftmaxLoss(), torch.nn.CrossEntropyLoss()),
    }[kind]()
    theirs = theirs.to(getattr(torch, dtype))
    if kind == "batch_norm_eval":
        ours.eval(), theirs.eval()
    parameters = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        values = rng.normal(size=parameter.shape).astype(dtype)
        parameter.data = ndl.Tensor(values, device=device)
        other = values.T if name == "weight" and kind == "linear" else values
        parameters[name].data = torch.tensor(other.reshape(parameters[name].shape))
    a, b = tensor(x, device, dtype), torch.tensor(x, requires_grad=True)
    labels = np.array([0, 1, 2, 3, 4, 0])
    extra = (
        ([ndl.Tensor(labels, device=device)], [torch.tensor(labels)])
        if kind == "loss"
        else ([], [])
    )
    y, z = ours(a, *extra[0]), theirs(b, *extra[1])
    assert_close(y.numpy(), z.detach().numpy(), 5)
    weights = rng.normal(size=y.shape).astype(dtype)
    y.backward(ndl.Tensor(weights, device=device))
    z.backward(torch.tensor(weights))
    assert_close(a.grad.numpy(), b.grad.numpy(), 36, scale=1.0)
    for name, parameter in ours.named_parameters():
        expected = parameters[name].grad.numpy()
        expected = expected.T if name == "weight" and kind == "linear" else expected
        assert_close(parameter.grad.numpy(), expected.reshape(parameter.shape), 36, scale=1.0)
    if kind == "batch_norm":
        assert_close(ours.running_mean.numpy(), theirs.running_mean.numpy(), 6)
        assert_close(ours.running_var.numpy(), theirs.running_var.numpy(), 6)
