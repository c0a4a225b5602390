"""What `needle.torch.load` gives: a Module that computes as PyTorch's, trains, and keeps state."""

import numpy as np
import pytest

import needle as ndl
import needle.torch
import needle_tvm
from needle.errors import DimError, ModelError, UnsupportedError
from needle.torch import execute, registry

torch = pytest.importorskip("torch")


def mlp():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)).eval()


def test_names_shapes_and_values_are_those_of_pytorchs_state_dict():
    model = mlp()
    loaded = needle.torch.load(model, torch.randn(2, 6))
    mine, theirs = loaded.state_dict(), model.state_dict()
    assert list(mine) == list(theirs)
    for name, value in theirs.items():
        np.testing.assert_array_equal(mine[name].numpy(), value.numpy())
    assert loaded.get_submodule("2").weight.shape == (3, 5)


def test_weights_are_copies_and_can_be_loaded_again():
    model, x = mlp(), torch.randn(2, 6)
    loaded = needle.torch.load(model, x)
    before = loaded(x.numpy()).numpy()
    with torch.no_grad():
        model[0].weight.zero_()
    np.testing.assert_array_equal(loaded(x.numpy()).numpy(), before)
    loaded.load_state_dict({name: value.numpy() for name, value in model.state_dict().items()})
    np.testing.assert_allclose(loaded(x.numpy()).numpy(), model(x).detach().numpy(), rtol=1e-5)


def test_it_trains_as_pytorch_does():
    model, x = mlp(), torch.randn(8, 6)
    loaded = needle.torch.load(model, x)
    theirs = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    mine = ndl.optim.SGD(loaded.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        theirs.zero_grad()
        model(x).square().mean().backward()
        theirs.step()
        mine.zero_grad()
        y = loaded(x.numpy())
        (y * y).mean().backward()
        mine.step()
    for name, value in model.state_dict().items():
        # Five steps of sums of at most 8 float32 products.
        np.testing.assert_allclose(loaded.state_dict()[name].numpy(), value.numpy(), atol=1e-5)


@pytest.mark.parametrize("stage", ["noopt", "fused", "tuned"])
def test_it_compiles_and_follows_its_weights(stage):
    model, x = mlp(), torch.randn(2, 6)
    loaded = needle.torch.load(model, x)
    compiled = needle_tvm.compile(loaded, x.numpy(), stage=stage)
    for _ in range(2):
        np.testing.assert_allclose(compiled(x).numpy(), loaded(x.numpy()).numpy(), atol=1e-6)
        loaded.weight_named("0.bias").data = ndl.ones(5)


def test_a_whole_state_dict_of_pytorchs_can_be_loaded():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.unused = torch.nn.BatchNorm1d(3), torch.nn.Linear(2, 2)
            self.register_buffer("places", torch.tensor([2, 0, 1]))

        def forward(self, x):
            return self.norm(x)[:, self.places]

    model = Model().eval()
    loaded = needle.torch.load(model, torch.randn(4, 3))
    values = {
        name: value.numpy() + value.numpy().dtype.type(1)
        for name, value in model.state_dict().items()
    }
    with pytest.raises(ValueError, match="'places' is a constant"):
        loaded.load_state_dict(values)
    values["places"] = values["places"] - 1
    loaded.load_state_dict(values)
    model.load_state_dict(
        {name: torch.from_numpy(np.array(value)) for name, value in values.items()}
    )
    x = torch.randn(4, 3)
    np.testing.assert_allclose(loaded(x.numpy()).numpy(), model(x).detach().numpy(), atol=1e-6)
    with pytest.raises(ValueError, match="unexpected 'other'"):
        loaded.load_state_dict({**values, "other": values["places"]})


class Counter(torch.nn.Module):
    """Writes a parameter, a floating buffer and a whole number at each call."""

    def __init__(self):
        super().__init__()
        self.n = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("cache", torch.zeros(4))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x):
        with torch.no_grad():
            self.n.add_(x)
        self.cache.index_copy_(0, self.steps.reshape(1), x[:1])
        self.steps += 1
        self.scratch.copy_(x * 2)
        return self.n * 1, self.cache + 0, self.steps * 2


def test_what_a_program_writes_is_written_at_each_call():
    model = Counter().eval()
    loaded = needle.torch.load(model, torch.ones(2))
    assert sorted(loaded.written) == ["cache", "n", "scratch", "steps"]
    for step in range(3):
        x = np.float32([step + 1, 5])
        for mine, theirs in zip(loaded(x), model(torch.from_numpy(x)), strict=True):
            np.testing.assert_array_equal(mine.numpy(), theirs.detach().numpy())
        for name, value in model.state_dict().items():
            np.testing.assert_array_equal(loaded.state_dict()[name].numpy(), value.numpy())
    np.testing.assert_array_equal(loaded.scratch.numpy(), model.scratch.numpy())
    assert "scratch" not in loaded.state_dict()


def test_loading_leaves_the_models_state_alone():
    model = Counter().eval()
    needle.torch.load(model, torch.ones(2))
    assert model.steps == 0 and not model.n.detach().any() and not model.cache.any()


class Writer(torch.nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * 2


class Drawer(torch.nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class Chooser(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class Picker(torch.nn.Module):
    def forward(self, x):
        return x[x > 0]


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (Writer(), "writes to its input 'x'"),
        (Drawer(), "draws random numbers .*rand"),
        (Chooser(), "depends on a tensor's values"),
        (Picker(), "depends on values"),
    ],
)
def test_what_a_traced_model_cannot_do_is_refused_by_name(model, what):
    with pytest.raises(UnsupportedError, match=what) as raised:
        needle.torch.load(model.eval(), torch.randn(4))
    assert "\n" not in str(raised.value)


def test_a_model_that_pytorch_does_not_run_is_said_to_be_so():
    with pytest.raises(ModelError, match="PyTorch itself does not run it"):
        needle.torch.load(mlp(), torch.randn(2, 7))


def test_a_wrong_converter_is_found_and_its_node_named(monkeypatch):
    right = registry.find("aten.relu.default")

    def wrong(node, x):
        return ndl.ops.add_scalar(right.function(node, x), 0.1)

    planted = right._replace(function=wrong)
    monkeypatch.setattr(
        execute.registry,
        "find",
        lambda name, find=registry.find: planted if name.startswith("aten.relu.") else find(name),
    )
    with pytest.raises(ModelError, match=r"node 'relu' \(aten.relu.default\) in module '1'"):
        needle.torch.load(mlp(), torch.randn(2, 6))
    needle.torch.load(mlp(), torch.randn(2, 6), check=False)


def test_a_converters_result_of_another_shape_is_refused(monkeypatch):
    right = registry.find("aten.relu.default")
    planted = right._replace(function=lambda node, x: ndl.ops.summation(x))
    monkeypatch.setattr(
        execute.registry,
        "find",
        lambda name, find=registry.find: planted if name.startswith("aten.relu.") else find(name),
    )
    with pytest.raises(UnsupportedError, match=r"float32\[\] in needle, but float32\[2, 5\]"):
        needle.torch.load(mlp(), torch.randn(2, 6))


def test_sizes_that_dims_leave_open():
    model, n = mlp(), ndl.Dim("n", max=9)
    loaded = needle.torch.load(model, torch.randn(3, 6), dims={0: {0: n}})
    compiled = needle_tvm.compile(loaded, np.zeros((3, 6), "float32"), dims={0: {0: n}})
    for rows in (1, 4, 9):
        x = torch.randn(rows, 6)
        wanted = model(x).detach().numpy()
        np.testing.assert_allclose(loaded(x.numpy()).numpy(), wanted, atol=1e-6)
        np.testing.assert_allclose(compiled(x).numpy(), wanted, atol=1e-6)


def test_a_dim_that_the_model_needs_as_a_number_is_refused():
    class Fixed(torch.nn.Module):
        def forward(self, x):
            return x * 2 if x.shape[0] == 3 else x

    with pytest.raises(DimError, match="the model is the same only while"):
        needle.torch.load(Fixed().eval(), torch.randn(4, 6), dims={0: {0: ndl.Dim("m", max=9)}})
