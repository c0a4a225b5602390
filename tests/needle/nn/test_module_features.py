"""Hooks, buffers, containers, PyTorch's layout, and summaries of Modules."""

import copy

import numpy as np
import pytest

import needle as ndl
from needle import nn
from needle.errors import TraceError
from needle.nn import Form
from needle.trace import trace


def tensor(*shape):
    return ndl.Tensor(np.ones(shape, "float32"))


# Hooks


def test_hooks_see_and_change_arguments_and_results():
    layer, seen = nn.Identity(), []
    first = layer.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    second = layer.register_forward_pre_hook(lambda m, args: args[0] * 2)
    last = layer.register_forward_hook(lambda m, args, y: seen.append((m, args, y)))
    changing = layer.register_forward_hook(lambda m, args, y: y - 0.5)
    assert layer(tensor(1)).numpy() == 3.5
    module, (x,), y = seen[0]
    assert module is layer and x.numpy() == y.numpy() == 4
    first.remove(), second.remove(), second.remove()
    with changing:
        assert layer(tensor(1)).numpy() == 0.5
    assert layer(tensor(1)).numpy() == 1 and len(seen) == 3
    last.remove()
    assert layer._hooks == ()


def test_hooks_with_keywords_and_bad_hooks():
    class Scaled(nn.Module):
        def forward(self, x, by=1.0):
            return x * by

    layer = Scaled()
    with layer.register_forward_pre_hook(lambda m, a, k: (a, {"by": 3.0}), with_kwargs=True):
        with layer.register_forward_hook(lambda m, a, k, y: y + k["by"], with_kwargs=True):
            assert layer(tensor(1)).numpy() == 6
    with pytest.raises(TypeError, match="Scaled: a hook must be a function, not a int"):
        layer.register_forward_hook(3)
    layer.register_forward_pre_hook(lambda m, a, k: a, with_kwargs=True)
    with pytest.raises(TypeError, match=r"Scaled: .* returned a tuple"):
        layer(tensor(1))


def test_a_hook_is_traced_and_is_no_part_of_the_state():
    layer = nn.Linear(2, 2).eval()
    layer.register_forward_hook(lambda m, a, y: y * 2)
    layer.register_forward_hook(_Ignoring())
    graph = trace(layer, tensor(1, 2))
    assert any(type(node.op).__name__ == "MulScalar" for node in graph.nodes if node.op)
    assert list(layer.state_dict()) == ["weight", "bias"]
    other = copy.deepcopy(layer)
    assert len(other._hooks) == 2


# Buffers and other contents


def test_buffers_move_and_are_saved_unless_they_are_not_persistent():
    layer = nn.Linear(2, 2)
    layer.register_buffer("kept", tensor(2))
    layer.register_buffer("table", tensor(3), persistent=False)
    layer.register_buffer("later", None)
    assert [name for name, _ in layer.named_buffers()] == ["kept", "table"]
    assert list(layer.state_dict()) == ["weight", "bias", "kept"]
    layer.load_state_dict(layer.state_dict())
    layer.to(dtype="float64")
    assert layer.table.dtype == layer.kept.dtype == "float64"
    layer.later = tensor(1)
    assert "later" in layer.state_dict()
    for make, what in (
        (lambda: layer.register_buffer("kept", tensor(1)), "already has 'kept'"),
        (lambda: layer.register_buffer("a.b", tensor(1)), "'a.b'"),
        (lambda: layer.register_buffer("_x", tensor(1)), "begins with '_'"),
        (lambda: layer.add_module("forward", nn.ReLU()), "already has 'forward'"),
    ):
        with pytest.raises(ValueError, match=what):
            make()
    for make in (
        lambda: layer.register_buffer("x", nn.Parameter(tensor(1))),
        lambda: layer.register_parameter("x", tensor(1)),
        lambda: layer.add_module("x", 3),
        lambda: layer.register_buffer(3, tensor(1)),
    ):
        with pytest.raises(TypeError):
            make()


def test_a_table_that_is_not_saved_is_a_constant_of_a_trace():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", tensor(3), persistent=False)

        def forward(self, x):
            return x + self.table

    graph = trace(Shifted().eval(), tensor(2, 3))
    assert [leaf.name for leaf in graph.params] == [] and len(graph.constants) == 1


def test_apply_children_and_submodules():
    inner = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    model = nn.Sequential(inner, nn.Tanh())
    seen = []
    assert model.apply(lambda m: seen.append(type(m).__name__)) is model
    assert seen == ["Linear", "ReLU", "Sequential", "Tanh", "Sequential"]
    assert model.children() == [inner, model[1]]
    assert model.get_submodule("modules.0.modules.1") is inner[1]
    with pytest.raises(AttributeError, match="no module 'x'"):
        model.get_submodule("x")
    model.requires_grad_(False)
    assert not any(p.requires_grad for p in model.parameters())


# Containers


def test_sequential_is_a_list_of_modules():
    a, b, c, d = nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4), nn.Tanh()
    model = nn.Sequential(a, b)
    assert model.append(c).extend([d]) is model and len(model) == 4
    assert list(model) == [a, b, c, d] and model[-1] is d
    part = model[1:3]
    assert isinstance(part, nn.Sequential) and list(part) == [b, c]
    model[1], model[-1] = d, b
    del model[2:]
    assert list(model) == [a, d]
    model.insert(1, b)
    del model[-1]
    assert list(model) == [a, b]
    with pytest.raises(IndexError):
        model[5] = a
    with pytest.raises(TypeError, match="Sequential: modules"):
        model.append(3)


def test_a_sequential_of_named_modules_has_torchs_names():
    model = nn.Sequential({"first": nn.Linear(2, 3), "act": nn.ReLU(), "last": nn.Linear(3, 1)})
    assert list(model.state_dict(layout="torch"))[::2] == ["first.weight", "last.weight"]
    assert list(model[1:].state_dict(layout="torch")) == ["last.weight", "last.bias"]
    del model[0]
    model.append(nn.Linear(1, 1))
    assert list(model.state_dict(layout="torch"))[::2] == ["last.weight", "2.weight"]


def test_module_lists_and_dicts_have_torchs_names():
    items = nn.ModuleList([nn.Linear(1, 2), nn.ReLU()])
    items.append(nn.Linear(2, 3)).insert(0, nn.Tanh())
    assert [n for n, _ in items.named_parameters()] == ["1.weight", "1.bias", "3.weight", "3.bias"]
    items[0] = nn.Linear(3, 1)
    del items[2]
    assert len(items) == 3 and isinstance(items[1:], nn.ModuleList) and items[-1].out_features == 3
    assert [type(m).__name__ for m in items] == ["Linear"] * 3

    named = nn.ModuleDict({"a": nn.Linear(1, 1)})
    named["b"] = nn.ReLU()
    named.update([("a", nn.Tanh())])
    assert list(named) == ["a", "b"] and "b" in named and named.keys() == ("a", "b")
    assert type(named.pop("a")).__name__ == "Tanh" and len(named) == 1
    assert [k for k, _ in named.items()] == ["b"]
    for bad in ("a.b", "training", "", 3):
        with pytest.raises(KeyError, match="ModuleDict"):
            named[bad] = nn.ReLU()
    with pytest.raises(KeyError, match="no 'a'"):
        named["a"]
    with pytest.raises(TypeError, match="ModuleDict: item 'c' is a int"):
        named["c"] = 1
    with pytest.raises(TypeError, match="ModuleList: item 3 is a int"):
        items.append(1)
    assert len(items) == 3


def test_parameter_lists_and_dicts():
    model = nn.Module()
    model.list = nn.ParameterList([tensor(2), nn.Parameter(tensor(3))])
    model.dict = nn.ParameterDict({"x": tensor(1)})
    model.list.append(tensor(4))
    assert [(n, p.shape) for n, p in model.named_parameters()] == [
        ("list.0", (2,)), ("list.1", (3,)), ("list.2", (4,)), ("dict.x", (1,)),
    ]  # fmt: skip
    assert all(isinstance(p, nn.Parameter) for p in model.list)
    with pytest.raises(TypeError, match="ParameterDict: item 'y' is a float"):
        model.dict["y"] = 1.0
    model.load_state_dict({**model.state_dict(), "dict.x": np.full(1, 5, "float32")})
    assert model.dict["x"].numpy() == 5


# PyTorch's layout


class Tied(nn.Module):
    """A module whose output layer is its embedding, as language models have it."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.body = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.head = nn.Module()
        self.head.weight = self.embed.weight


def test_what_does_not_fit_is_named_in_pytorchs_words():
    model = Tied()
    state = model.state_dict(layout="torch")
    assert list(state) == [
        "embed.weight", "body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias",
        "body.1.running_mean", "body.1.running_var", "head.weight",
    ]  # fmt: skip
    bad = {**state, "body.1.num_batches_tracked": np.array(3), "body.0.bias": np.ones((1, 3), "f4")}
    bad |= {"extra": np.ones(1), "body.0.weight": np.ones((3, 3))}
    del bad["body.1.bias"]
    with pytest.raises(ValueError) as caught:
        model.load_state_dict(bad, layout="torch")
    assert str(caught.value) == (
        "load_state_dict: Tied: missing 'body.1.bias'; unexpected 'extra'; "
        "'body.0.weight' has dtype float64, not float32; "
        "'body.0.bias' has shape (1, 3), not (3,)"
    )
    with pytest.raises(ValueError, match="layout 'jax' is not 'needle' or 'torch'"):
        model.state_dict(layout="jax")


def test_a_tied_weight_needs_one_of_its_names():
    model = Tied()
    state = dict(model.state_dict(layout="torch"))
    new = np.arange(15, dtype="float32").reshape(5, 3)
    del state["embed.weight"]
    state["head.weight"] = new
    model.load_state_dict(state, layout="torch")
    np.testing.assert_array_equal(model.embed.weight.numpy(), new)
    with pytest.raises(ValueError, match="are one tensor and have different values"):
        model.load_state_dict({**state, "embed.weight": new + 1}, layout="torch")
    np.testing.assert_array_equal(model.embed.weight.numpy(), new)


def test_a_module_declares_its_own_layout():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = nn.Parameter(ndl.Tensor(np.arange(24.0).reshape(2, 3, 4)))
            self.inner = [nn.Linear(1, 2)]

        def torch_layout(self):
            return {"kernel": Form("w", (2, 0, 1)), "inner.0": "proj"}

    model = Own()
    state = model.state_dict(layout="torch")
    assert list(state) == ["w", "proj.weight", "proj.bias"] and state["w"].shape == (4, 2, 3)
    np.testing.assert_array_equal(state["w"].numpy(), model.kernel.numpy().transpose(2, 0, 1))
    other = Own()
    other.kernel.data = other.kernel * 0
    other.load_state_dict(state, layout="torch")
    np.testing.assert_array_equal(other.kernel.numpy(), model.kernel.numpy())


@pytest.mark.peer
def test_a_safetensors_file_of_a_torch_model_loads(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(16, 3),
    ).eval()  # fmt: skip
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    ours = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    ).eval()
    ours.load_state_dict(ndl.load(tmp_path / "model.safetensors"), layout="torch")
    x = np.random.default_rng(0).normal(size=(2, 2, 4, 4)).astype("float32")
    expected = theirs(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(ours(ndl.Tensor(x)).numpy(), expected, atol=1e-5)
    ndl.save(tmp_path / "again.safetensors", ours.state_dict(layout="torch"))
    from safetensors.torch import load_file

    theirs.load_state_dict(load_file(tmp_path / "again.safetensors"))


# Summaries


def test_a_summary_counts_parameters_and_multiply_adds():
    shared = nn.Linear(8, 8, bias=False)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Dropout(), shared, shared)
    model.modules[3].requires_grad_(False)
    x = ndl.Tensor(np.zeros((3, 2, 3, 4), "float32"))
    found = model.summary(x)
    conv, linear = 3 * 4 * 2 * 9, 3 * 8 * 8
    assert found.multiply_adds == conv + 2 * linear
    assert (found.parameters, found.trainable, found.parameter_bytes) == (104, 40, 416)
    rows = {row.path: row for row in found.rows}
    assert rows["modules.0"].outputs == ("float32[3, 4, 1, 2]",)
    assert rows["modules.3"].calls == 2 and rows["modules.3"].multiply_adds == 2 * linear
    assert model.training and model.modules[0]._hooks == ()
    text = str(found)
    assert "(2 calls)" in text and "104 parameters (64 of them fixed), 416 bytes" in text

    lstm = nn.LSTM(4, 5, bidirectional=True).summary(np.zeros((6, 2, 4), "float32"))
    assert lstm.multiply_adds == 2 * (6 * 2 * 20 * (4 + 5))
    with pytest.raises(TraceError):
        _Draws().summary(x)


class _Ignoring(nn.Module):
    """A hook with parameters of its own, which returns None."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(tensor(1))

    def forward(self, module, args, output):
        return None


class _Draws(nn.Module):
    def forward(self, x):
        return x + ndl.init.rand(1)
