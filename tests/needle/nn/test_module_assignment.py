"""Assignment to attributes of Modules that hold Parameters, buffers and Modules, as PyTorch's."""

import numpy as np
import pytest

import needle as ndl
from needle import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(ndl.ones(2))
        self.register_parameter("shift", None)
        self.register_buffer("table", ndl.ones(2))
        self.register_buffer("later", None)
        self.inner = nn.Linear(2, 2)
        self.several = [nn.Parameter(ndl.ones(2))]
        self.named = {"a": (nn.Parameter(ndl.ones(2)),)}
        self.size = 3


REFUSED = [
    ("weight", lambda: ndl.zeros(2), "Parameter or None"),
    ("weight", lambda: np.zeros(2, "float32"), "Parameter or None"),
    ("weight", lambda: nn.ReLU(), "Parameter or None"),
    ("shift", lambda: ndl.zeros(2), "Parameter or None"),
    ("table", lambda: np.zeros(2, "float32"), "Tensor or None"),
    ("later", lambda: 3, "Tensor or None"),
    ("inner", lambda: len, "Module or None"),
    ("inner", lambda: ndl.zeros(2), "Module or None"),
    ("several", lambda: [ndl.zeros(2)], r"\.0 .*Parameter"),
    ("named", lambda: {"a": (ndl.zeros(2),)}, r"\.a\.0 .*Parameter"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), REFUSED)
def test_a_registered_name_takes_its_kind_alone(name, value, allowed):
    model = Model()
    before, names = getattr(model, name), [n for n, _ in model.named_parameters()]
    with pytest.raises(TypeError, match=rf"Model\.{name}.*{allowed}"):
        setattr(model, name, value())
    assert getattr(model, name) is before
    assert [n for n, _ in model.named_parameters()] == names


@pytest.mark.parametrize("name", [row[0] for row in REFUSED[:8]])
def test_none_keeps_the_name_and_del_frees_it(name):
    model, values = Model(), {each: value for each, value, _ in REFUSED[:8]}
    if name != "inner":  # a Module's name is free again, as every attribute's that holds None
        setattr(model, name, None)
        with pytest.raises(TypeError, match=name):
            setattr(model, name, values[name]())
    delattr(model, name)
    setattr(model, name, values[name]())


def test_what_is_allowed():
    model = Model()
    model.weight = nn.Parameter(ndl.zeros(3))
    model.table = ndl.zeros(5)
    model.inner = nn.Linear(3, 3)
    model.shift = nn.Parameter(ndl.zeros(1))
    model.several = [nn.Parameter(ndl.zeros(2)), ndl.zeros(2)]
    model.size = ndl.zeros(2)
    model.later = nn.Parameter(ndl.zeros(1))  # a Parameter may take any name, as in PyTorch
    assert model.weight.shape == (3,) and model.inner.weight.shape == (3, 3)
    assert {"weight", "shift", "later", "several.0"} <= dict(model.named_parameters()).keys()


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Linear(2, 2, bias=False),
        lambda: nn.Conv2d(2, 2, 1, bias=False),
        lambda: nn.Conv(2, 2, 1, bias=False),
        lambda: nn.LayerNorm(2, bias=False),
        lambda: nn.BatchNorm1d(2, affine=False),
        lambda: nn.GroupNorm(1, 2, affine=False),
        lambda: nn.Bilinear(2, 2, 2, bias=False),
        lambda: nn.MultiheadAttention(2, 1, bias=False).out_proj,
    ],
)
def test_a_layer_without_bias_takes_no_plain_tensor_for_one(layer):
    module = layer()
    with pytest.raises(TypeError, match=r"\.bias.*Parameter or None"):
        module.bias = ndl.zeros(2)
    assert module.bias is None


def test_running_statistics_are_buffers():
    norm = nn.BatchNorm1d(2)
    with pytest.raises(TypeError, match=r"BatchNorm1d\.running_mean.*Tensor or None"):
        norm.running_mean = 0.0
    norm.running_mean = ndl.ones(2)
    assert [name for name, _ in norm.named_buffers()] == ["running_mean", "running_var"]


def test_augmented_assignment_keeps_parameters_of_modules_and_lists():
    layer, several = nn.Linear(2, 2), nn.ParameterList([ndl.ones(2)])
    named = nn.ParameterDict({"a": ndl.ones(2)})
    weight, seen = layer.weight, layer.state_dict()["weight"]
    with ndl.no_grad():
        layer.weight -= layer.weight
        several[0] -= 1
        named["a"] *= 2
    assert layer.weight is weight and len(layer.parameters()) == 2
    assert not seen.numpy().any() and several[0].tolist() == [0.0, 0.0]
    assert named["a"].tolist() == [2.0, 2.0]
    with pytest.raises(TypeError, match=r"ParameterList\.0"):
        setattr(several, "0", ndl.ones(2))
    with pytest.raises(RuntimeError, match="no_grad"):
        layer.weight -= 1
