"""Compiled code follows the weights of its model, whatever writes them."""

import threading

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import nn, ops, optim
from needle.errors import ChangedError
from needle_runtime.errors import ParameterError
from tests.needle_tvm.conftest import make_mlp, tensor

STAGES = ("noopt", "tuned")


def equal(compiled, model, *inputs):
    """Check that the compiled model gives the eager model's present results, in float32."""
    with ndl.no_grad():
        expected = model(*inputs).numpy()
    found = compiled(*inputs).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("optimizer", [optim.SGD, optim.Adam])
def test_outputs_are_equal_at_each_of_200_training_steps(stage, optimizer, rng):
    model = make_mlp(12, 20, 3)
    x = tensor(rng.standard_normal((8, 12)).astype("float32"))
    y = tensor(rng.integers(0, 3, 8))
    compiled = needle_tvm.compile(model, x, stage=stage)
    opt, loss = optimizer(model.parameters(), lr=0.05), nn.SoftmaxLoss()
    before = compiled(x).numpy()
    for _ in range(200):
        opt.zero_grad()
        loss(model(x), y).backward()
        opt.step()
        equal(compiled, model, x)
    assert np.abs(compiled(x).numpy() - before).max() > 1  # the model has changed


def test_buffers_are_followed_as_parameters_are(rng):
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    model.eval()
    x = tensor(rng.standard_normal((7, 6)).astype("float32"))
    compiled = needle_tvm.compile(model, x)
    equal(compiled, model, x)
    model.train()
    model(tensor(rng.standard_normal((7, 6)).astype("float32") * 9 + 4))  # moves the statistics
    model.eval()
    equal(compiled, model, x)


def _load_state(model, rng):
    state = {
        n: rng.standard_normal(t.shape).astype("float32") for n, t in model.state_dict().items()
    }
    model.load_state_dict({name: ndl.Tensor(array) for name, array in state.items()})


def _write_in_place(model, rng):
    weight = model.modules[0].weight
    weight.data = ndl.Tensor(rng.standard_normal(weight.shape).astype("float32"))


def _descend(model, rng):
    layer = model.modules[0]
    with ndl.no_grad():
        layer.weight -= ndl.Tensor(rng.standard_normal(layer.weight.shape).astype("float32"))


def _replace(model, rng):
    layer = model.modules[0]
    layer.weight = nn.Parameter(rng.standard_normal(layer.weight.shape).astype("float32"))


@pytest.mark.parametrize("write", [_load_state, _write_in_place, _descend, _replace])
def test_any_write_through_needle_is_seen(write, rng):
    model = make_mlp(12, 20, 3)
    x = tensor(rng.standard_normal((8, 12)).astype("float32"))
    compiled = needle_tvm.compile(model, x)
    before = compiled(x).numpy()
    write(model, rng)
    equal(compiled, model, x)
    assert np.abs(compiled(x).numpy() - before).max() > 1e-3


def test_a_layer_may_be_replaced(rng):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x)

    model = Model()
    model.eval()
    x = tensor(rng.standard_normal((5, 4)).astype("float32"))
    compiled = needle_tvm.compile(model, x)
    model.layer = nn.Linear(4, 3)
    equal(compiled, model, x)
    del model.layer
    with pytest.raises(ChangedError, match=r"'layer\.(weight|bias)'"):
        compiled(x)


def test_weights_are_packed_again_only_after_a_change(monkeypatch, rng):
    model = make_mlp(12, 20, 3)
    x = tensor(rng.standard_normal((8, 12)).astype("float32"))
    compiled = needle_tvm.compile(model, x)
    packed = []
    executor = compiled.program.executor
    use = executor.use
    monkeypatch.setattr(executor, "use", lambda tensors: (packed.append(1), use(tensors)))
    for _ in range(3):
        compiled(x)
    assert packed == []
    other = ndl.Tensor(np.zeros(4))
    with ndl.no_grad():
        other += 1  # a write to an array that is not a weight
    compiled(x)
    assert packed == []
    _load_state(model, rng)
    compiled(x)
    compiled(x)
    assert packed == [1]


def test_captured_parameters_are_followed_under_the_names_they_have(rng):
    scale = nn.Parameter(np.full(3, 2, "float32"))
    layers = {"first": nn.Linear(4, 3)}
    layers["first"].eval()

    def f(x):
        return layers["first"](x) * scale

    x = tensor(rng.standard_normal((5, 4)).astype("float32"))
    compiled = needle_tvm.compile(f, x)
    names = [entry["name"] for entry in compiled.program.params]
    assert sorted(names) == ["layers.first.bias", "layers.first.weight", "scale"]
    opt = optim.SGD([scale, *layers["first"].parameters()], lr=0.3)
    for _ in range(3):
        opt.zero_grad()
        f(x).sum().backward()
        opt.step()
        equal(compiled, f, x)
    scale = nn.Parameter(np.full(3, -3, "float32"))  # another parameter of the same name
    equal(compiled, f, x)
    layers["first"] = nn.Linear(4, 3)
    layers["first"].eval()
    equal(compiled, f, x)


class _Scaled:
    def __init__(self):
        self.factor = nn.Parameter(np.full(4, 3, "float32"))

    def apply(self, x):
        return x * self.factor


def test_parameters_of_the_object_a_method_is_bound_to(rng):
    owner = _Scaled()
    x = tensor(rng.standard_normal((5, 4)).astype("float32"))
    compiled = needle_tvm.compile(owner.apply, x)
    assert [entry["name"] for entry in compiled.program.params] == ["self.factor"]
    owner.factor = nn.Parameter(np.full(4, -1, "float32"))
    equal(compiled, owner.apply, x)


def test_a_constant_that_is_written_or_replaced_is_refused(rng):
    table = ndl.Tensor(rng.standard_normal(4).astype("float32"), requires_grad=False)
    x = tensor(rng.standard_normal((5, 4)).astype("float32"))
    compiled = needle_tvm.compile(lambda x: x * table, x)
    compiled(x)
    table.data = ndl.Tensor(np.ones(4, "float32"))
    for _ in range(2):  # not only the first time
        with pytest.raises(ChangedError, match=r"float32.*4.*not a Parameter.*written"):
            compiled(x)
    compiled = needle_tvm.compile(lambda x: x * table, x)
    table = ndl.Tensor(np.zeros(4, "float32"))
    with pytest.raises(ChangedError, match=r"float32.*4.*not a Parameter.*replaced"):
        compiled(x)


def test_what_a_module_holds_in_lists_and_hides(rng):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
            self._mask = ndl.Tensor(np.array([1, 0, 1, 0], "float32"))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x) * self._mask
            return x

    model = Model()
    model.eval()
    x = tensor(rng.standard_normal((5, 4)).astype("float32"))
    compiled = needle_tvm.compile(model, x)
    model.layers[1] = nn.Linear(4, 4)  # no attribute has been assigned to
    model.eval()
    equal(compiled, model, x)
    model._mask = ndl.Tensor(np.ones(4, "float32"))
    with pytest.raises(ChangedError, match="replaced"):
        compiled(x)


def test_a_weight_of_another_shape_is_refused_and_nothing_is_changed(rng):
    model = make_mlp(12, 20, 3)
    x = tensor(rng.standard_normal((8, 12)).astype("float32"))
    compiled = needle_tvm.compile(model, x)
    kept = model.modules[0].weight
    model.modules[0].weight = nn.Parameter(np.zeros((12, 21), "float32"))
    for _ in range(2):  # not only the first time
        with pytest.raises(ParameterError, match=r"modules\.0\.weight"):
            compiled(x)
    model.modules[0].weight = kept
    equal(compiled, model, x)


def test_set_params_ends_the_following(rng):
    model = make_mlp(12, 20, 3)
    x = tensor(rng.standard_normal((8, 12)).astype("float32"))
    compiled = needle_tvm.compile(model, x)
    compiled.set_params(model.state_dict())
    before = compiled(x).numpy()
    _load_state(model, rng)
    np.testing.assert_array_equal(compiled(x).numpy(), before)


def test_an_export_keeps_the_weights_of_its_moment(tmp_path, rng):
    import needle_runtime

    model = make_mlp(12, 20, 3)
    array = rng.standard_normal((8, 12)).astype("float32")
    x = tensor(array)
    compiled = needle_tvm.compile(model, x)
    _load_state(model, rng)  # no call in between
    with ndl.no_grad():
        expected = model(x).numpy()
    compiled.export(tmp_path / "model")
    _load_state(model, rng)
    program = needle_runtime.load(tmp_path / "model")
    np.testing.assert_allclose(program(array), expected, rtol=1e-5, atol=1e-4)
    assert needle_runtime.self_test(program).passed


def test_calls_under_way_finish_with_the_weights_they_began_with(rng):
    """All weights are equal, and each call sees one value whatever a writer does meanwhile."""
    weight = nn.Parameter(np.zeros((64, 64), "float32"))
    x = tensor(np.ones((64, 64), "float32"))
    compiled = needle_tvm.compile(lambda x: (x @ weight) @ weight, x)
    stop, seen, errors = threading.Event(), set(), []

    def call():
        try:
            while not stop.is_set():
                values = np.unique(compiled(x).numpy())
                assert len(values) == 1, values
                seen.add(float(values[0]))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for value in range(60):
        weight.data = ndl.Tensor(np.full((64, 64), value, "float32"))
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    allowed = {float(64 * 64 * value * value) for value in range(60)}
    assert seen <= allowed
    np.testing.assert_array_equal(compiled(x).numpy(), np.full((64, 64), 64 * 64 * 59.0 * 59.0))


def test_a_weight_read_by_ops_alone_and_as_an_output(rng):
    weight = nn.Parameter(rng.standard_normal((3, 4)).astype("float32"))
    x = tensor(rng.standard_normal((3, 4)).astype("float32"))
    compiled = needle_tvm.compile(lambda x: (x + 1, ops.exp(weight), weight), x)
    weight.data = ndl.Tensor(np.ones((3, 4), "float32"))
    _, exp, itself = compiled(x)
    np.testing.assert_allclose(exp.numpy(), np.full((3, 4), np.e), rtol=1e-6)
    np.testing.assert_array_equal(itself.numpy(), np.ones((3, 4)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again, self.kept, self.weight = self.first, [self.first], self.first.weight

    def forward(self, x):
        return self.kept[0](self.again(self.first(x))) @ self.weight


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda m: setattr(m, "weight", nn.Parameter(np.ones((4, 4), "float32"))), "weight"),
        (lambda m: setattr(m.first, "weight", nn.Parameter(np.ones((4, 4), "float32"))), "weight"),
        (lambda m: setattr(m, "first", nn.Linear(4, 4)), "first"),
        (lambda m: setattr(m, "again", nn.Linear(4, 4)), "again"),
        (lambda m: m.kept.__setitem__(0, nn.Linear(4, 4)), "kept.0"),
    ],
)
def test_a_weight_that_becomes_two_is_said(rng, change, name):
    x = tensor(rng.standard_normal((2, 4)).astype("float32"))
    model = Tied().eval()
    compiled = needle_tvm.compile(model, x, stage="fused")
    model.extra = nn.Linear(4, 4)  # an unused module changes nothing
    np.testing.assert_allclose(compiled(x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)
    change(model)
    with pytest.raises(ChangedError, match=f"{name}.* were one weight"):
        compiled(x)


def test_a_weight_that_stays_one_under_all_its_names_is_followed(rng):
    x = tensor(rng.standard_normal((2, 4)).astype("float32"))
    model = Tied().eval()
    compiled = needle_tvm.compile(model, x, stage="fused")
    model.first.weight = model.weight = nn.Parameter(np.eye(4, dtype="float32"))
    np.testing.assert_allclose(compiled(x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)
