"""What a `jit` function reads around it, and calls inside other traces."""

import numpy as np
import pytest

import needle_tvm
from needle import nn, ops
from needle.errors import TraceError
from tests.needle_tvm.compiler.jitted import compilations, ones, plain
from tests.needle_tvm.conftest import make_mlp, tensor


def test_train_mode_and_attributes_of_modules():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)
            self.scale = 2.0

        def forward(self, x):
            return self.inner(x) * (self.scale if self.training else 1.0)

    model, other = Scaled(), Scaled()
    f = plain(lambda x, m: model(x) + m(x))
    x = ones(2, 3)

    def check(count):
        wanted = (model(x) + other(x)).numpy()
        np.testing.assert_allclose(f(x, other).numpy(), wanted, rtol=1e-5, atol=1e-6)
        assert compilations(f) == count

    check(1)
    model.eval()
    check(2)
    other.eval()
    check(3)
    model.train()
    other.train()
    check(3)  # as the first
    other.scale = -1.0
    check(4)
    other.inner.weight.requires_grad = False
    check(5)
    other.inner = nn.Linear(3, 3)  # other weights of the first kind
    check(4 + 1)
    model.inner = nn.Linear(3, 3, bias=False)
    check(6)


def test_tensors_of_a_closure_are_followed():
    shift = tensor(np.array([1.0, 2.0], "float32"))
    tables = {"scale": [tensor(np.array([3.0, 4.0], "float32"))]}
    f = plain(lambda x: x * tables["scale"][0] + shift)
    x = ones(2)
    assert f(x).numpy().tolist() == [4, 6]
    shift.data = tensor(np.array([10.0, 20.0], "float32"))
    assert f(x).numpy().tolist() == [13, 24]
    tables["scale"][0] = tensor(np.array([0.0, 1.0], "float32"))
    assert f(x).numpy().tolist() == [10, 21]
    shift = tensor(np.array([0.0, 0.0], "float32"))
    assert f(x).numpy().tolist() == [0, 1]
    assert compilations(f) == 1
    shift = tensor(np.zeros((2, 2), "float32"))  # of another shape
    assert f(x).numpy().tolist() == [[0, 1], [0, 1]]
    assert compilations(f) == 2
    with pytest.raises(TraceError, match="shift"):
        plain(lambda x: x * float(shift.sum()))(x)


def test_values_of_variables_are_part_of_the_signature():
    factor, act = 2.0, ops.exp

    def helper(x):
        return act(x) * factor

    f, x = plain(lambda x: helper(x)), ones(2)

    def check(count):
        for _ in range(2):
            np.testing.assert_allclose(f(x).numpy(), helper(x).numpy(), rtol=1e-6)
        assert compilations(f) == count

    check(1)
    factor = 3.0
    check(2)
    act = ops.tanh
    check(3)
    factor, act = 2.0, ops.exp
    check(3)


def test_a_variable_with_the_name_of_an_attribute_is_no_surrounding():
    names = {"plain": plain, "__name__": "a_script", "data": 0}
    exec("f = plain(lambda x: x.data * factor)\nfactor = 2.0", names)
    for turn in range(2):
        names["data"] = turn
        assert names["f"](ones(2)).numpy().tolist() == [2, 2]
    assert compilations(names["f"]) == 1
    names["factor"] = 3.0
    assert names["f"](ones(2)).numpy().tolist() == [3, 3]
    assert compilations(names["f"]) == 2


def test_another_layer_in_a_list_is_seen():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    layers = [*model.modules]

    def run(x):
        for layer in layers:
            x = layer(x)
        return x

    f, x = plain(run), tensor(np.array([[1.0, -2.0, 0.5]], "float32"))
    np.testing.assert_allclose(f(x).numpy(), run(x).numpy(), rtol=1e-5, atol=1e-6)
    layers[1] = nn.Tanh()  # has no weights by which to tell
    np.testing.assert_allclose(f(x).numpy(), run(x).numpy(), rtol=1e-5, atol=1e-6)
    assert compilations(f) == 2


class Scaled:
    """An object that is no Module."""

    def __init__(self, factor, power):
        self.factor, self.power = tensor(np.array(factor, "float32")), power

    @plain
    def apply(self, x):
        """Scale x."""
        return (x * self.factor) ** self.power

    @staticmethod
    @plain
    def double(x):
        return x + x


def test_methods():
    before = compilations(Scaled.apply)
    one, two = Scaled(2, 1), Scaled(3, 2)
    assert one.apply.__doc__ == "Scale x."
    x = ones(2)
    assert one.apply(x).numpy().tolist() == [2, 2] and two.apply(x).numpy().tolist() == [9, 9]
    one.factor = tensor(np.array(5, "float32"))
    assert one.apply(x).numpy().tolist() == Scaled.apply(one, x).numpy().tolist() == [5, 5]
    assert compilations(Scaled.apply) == before + 2
    one.power = 2
    assert one.apply(x).numpy().tolist() == [25, 25]
    assert one.apply.cache_info().compilations == before + 3
    assert Scaled.double(x).numpy().tolist() == one.double(x).numpy().tolist() == [2, 2]
    bound = plain(Scaled(4, 1).apply.__func__.__wrapped__.__get__(two))  # of a bound method
    assert bound(x).numpy().tolist() == [9, 9]
    two.factor.data = tensor(np.array(1, "float32"))
    assert bound(x).numpy().tolist() == [1, 1]


def test_modules_as_arguments_and_as_the_function(rng):
    models = [make_mlp(4, 4), make_mlp(4, 4)]
    f = plain(lambda x, ms, last: last(ms[1](ms[0](x))))
    x, last = tensor(rng.standard_normal((2, 4)).astype("float32")), nn.Linear(4, 2)
    for _ in range(2):
        wanted = last(models[1](models[0](x))).numpy()
        np.testing.assert_allclose(f(x, models, last).numpy(), wanted, rtol=1e-5, atol=1e-6)
        for p in models[1].parameters():
            p.data = tensor(rng.standard_normal(p.shape).astype("float32"))
    assert compilations(f) == 1
    fast = plain(models[0])
    np.testing.assert_allclose(fast(x).numpy(), models[0](x).numpy(), rtol=1e-5, atol=1e-6)
    assert fast.cache_info().currsize == 1 and not hasattr(fast, "modules")


def test_functions_without_arguments_follow_their_weights():
    weight = nn.Parameter(np.ones(3, "float32"))
    norm = plain(lambda: (weight * weight).sum())
    assert norm().item() == 3
    weight.data = tensor(np.full(3, 2, "float32"))
    assert norm().item() == 12 and compilations(norm) == 1


def test_calls_inside_other_traces_are_inlined():
    weight = nn.Parameter(np.full(3, 2, "float32"))
    inner = plain(lambda x: x * weight)
    outer = plain(lambda x: inner(x) + 1.0)
    x = ones(3)
    assert outer(x).numpy().tolist() == [3, 3, 3]
    compiled = needle_tvm.compile(outer, x, stage="noopt")
    weight.data = tensor(np.full(3, 5, "float32"))
    assert outer(x).numpy().tolist() == compiled(x).numpy().tolist() == [6, 6, 6]
    assert (compilations(inner), compilations(outer)) == (0, 1)

    class Uses(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(np.full(3, 3, "float32"))

        @plain
        def scaled(self, x):
            return x * self.scale

        def forward(self, x):
            return self.scaled(x)

    model = Uses()
    model.eval()
    compiled = needle_tvm.compile(model, x, stage="noopt")
    assert [each["name"] for each in compiled.program.params] == ["scale"]
    assert compiled(x).numpy().tolist() == [3, 3, 3] and compilations(Uses.scaled) == 0
