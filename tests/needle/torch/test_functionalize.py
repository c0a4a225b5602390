"""Exported programs are made functional without a second trace only where that is right."""

import copy

import numpy as np
import pytest

import needle as ndl
from needle.torch import exporting, functionalize
from needle.torch.nodes import live_nodes

torch = pytest.importorskip("torch")
nn = torch.nn


class Of(nn.Module):
    """A model that applies a function to the result y of a convolution of its input x."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 4, 3), function
        self.register_buffer("held", torch.linspace(-1, 1, 4)[:, None, None])

    def forward(self, x):
        return self.function(self, self.conv(x), x)


@pytest.fixture
def taken(monkeypatch):
    """The answers of `functionalized` during a test."""
    answers, original = [], functionalize.functionalized

    def recorded(exported):
        answers.append(original(exported))
        return answers[-1]

    monkeypatch.setattr(functionalize, "functionalized", recorded)
    return answers


def agrees(model, x):
    """Load a model and compare it with PyTorch: one convolution of 27 products in float32."""
    with torch.no_grad():
        wanted = copy.deepcopy(model)(x.clone())
    found = ndl.torch.load(model, x.clone())(ndl.Tensor(x.numpy()))
    for a, b in zip(
        found if isinstance(found, tuple) else (found,),
        wanted if isinstance(wanted, tuple) else (wanted,),
        strict=True,
    ):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-5)


def example():
    return torch.randn(2, 3, 6, 7, generator=torch.Generator().manual_seed(0))


REWRITTEN = {
    "a write": lambda m, y, x: y.relu_() + 1,
    "two writes": lambda m, y, x: y.relu_().add_(1).mul(2),
    "reads before and after a write": lambda m, y, x: (y * 2, y.relu_(), y * 3),
    "a result that a write broadcasts to": lambda m, y, x: y.add_(m.held).exp(),
    "a write of the tensor to itself": lambda m, y, x: y.mul_(y).exp(),
    "a view of the written result": lambda m, y, x: y.relu_().flatten(1).sum(1),
    "a returned tensor": lambda m, y, x: (y, y.relu_()),
    "a write through an alias that export drops": lambda m, y, x: (y.contiguous().relu_(), y)[1],
    "dropout in eval mode": lambda m, y, x: nn.functional.dropout(y, 0.5, False).relu_() + y,
    "alpha dropout": lambda m, y, x: nn.functional.alpha_dropout(y, 0.5, False).relu_() + y,
    "dropout in place in eval mode": lambda m, y, x: (
        nn.functional.dropout(y, 0.5, False, True),
        y,
    ),
    "a write through the only view": lambda m, y, x: y[:, 1:].transpose(1, 2)[:, 0].add_(1) * 2,
    "a tensor that flatten returns itself": lambda m, y, x: (torch.flatten(y, 0, 0).relu_(), y)[1],
    "a cast": lambda m, y, x: y.relu_().to("cpu", torch.float64) + 1,
    "a cast that returns its input": lambda m, y, x: y.relu_().to(torch.zeros(1)).type_as(x) + 1,
    "padding": lambda m, y, x: nn.functional.pad(y.relu_(), (1, 2), value=3.0),
    "padding with zeros": lambda m, y, x: nn.functional.pad(y, (1, 2, 0, 1)),
}


@pytest.mark.parametrize("function", REWRITTEN.values(), ids=REWRITTEN)
def test_plain_programs_are_rewritten(function, taken):
    agrees(Of(function).eval(), example())
    assert taken == [True]


def viewed(make):
    """A view or an alias of y is made before y is written, and read after."""

    def function(model, y, x):
        view = make(y)
        y.relu_()
        return view * 2

    return function


LEFT = {
    "a view": viewed(lambda y: y[:, 1:]),
    "a reshape": viewed(lambda y: y.reshape(-1)),
    "an alias by float": viewed(lambda y: y.float()),
    "an alias by type_as": viewed(lambda y: y.type_as(y)),
    "an alias by expand": viewed(lambda y: y.expand_as(y)),
    "an alias by atleast_3d": viewed(torch.atleast_3d),
    "one part of several": viewed(lambda y: y.chunk(2, 1)[0]),
    "an alias by detach": viewed(lambda y: y.detach()),
    "a write through a view": lambda m, y, x: (y[:, 0].relu_(), y * 2)[1],
    "a write through a view of a view that is read": lambda m, y, x: (
        (lambda view: (view[:, :2].relu_(), view))(y[:, 1:])[1] * 2
    ),
    "a write through a view of a returned tensor": lambda m, y, x: (y[:, 1:].relu_(), y)[1],
    "a write through the only view of a buffer": lambda m, y, x: y + m.held[1:].exp_().sum(),
    "a write through windows": lambda m, y, x: y.flatten().unfold(0, 4, 4).relu_() * 2,
    "a written buffer": lambda m, y, x: m.held.add_(1) + y,
    "another dtype": lambda m, y, x: y.add_(m.held.double()).exp(),
    "integers": lambda m, y, x: (y > 0).long().mul_(2) + y,
    "complex numbers": lambda m, y, x: torch.complex(y, y).abs(),
    "an operator without a converter": lambda m, y, x: torch.addcmul(y, y, y).relu_(),
}


@pytest.mark.parametrize("function", LEFT.values(), ids=LEFT)
def test_programs_that_break_a_precondition_are_left_to_pytorch(function, taken):
    agrees(Of(function).eval(), example())
    assert taken == [False]


def test_open_sizes_are_left_to_pytorch(taken):
    model, n = Of(lambda m, y, x: y.relu_() + 1).eval(), ndl.Dim("n", min=2, max=5)
    loaded = ndl.torch.load(model, example(), dims={"x": {0: n}})
    x = torch.cat([example()] * 2)
    np.testing.assert_allclose(loaded(ndl.Tensor(x.numpy())).numpy(), model(x).detach(), 1e-5, 1e-5)
    assert taken == [False]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_norm(affine, dtype, taken):
    norm = nn.BatchNorm2d(4, affine=affine)
    norm.running_mean.uniform_(-1, 1), norm.running_var.uniform_(0.5, 2)
    model = Of(lambda m, y, x: m.norm(y).relu_())
    model.norm = norm
    agrees(model.eval().to(dtype), example().to(dtype))
    assert taken == [True]


def test_batch_norm_by_the_batch_is_left_to_pytorch(taken):
    model = Of(lambda m, y, x: m.norm(y))
    model.norm = nn.BatchNorm2d(4, track_running_stats=False)
    agrees(model.eval(), example())
    assert taken == [False]


def network():
    """Layers as image networks have them."""
    torch.manual_seed(0)

    def block(a, b, groups=1):
        conv = nn.Conv2d(a, b, 3, padding=1, groups=groups, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(b), nn.SiLU(inplace=True))

    return nn.Sequential(
        block(3, 8),
        block(8, 8, 8),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(8),
        nn.Linear(8, 5),
        nn.Hardswish(inplace=True),
        nn.Softmax(1),
    ).eval()


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of PyTorch's own code
def test_the_operators_are_those_of_a_decomposed_program():
    """PyTorch's own decomposition is the reference. It does not keep flatten, which may return a
    view."""
    with exporting.quiet():
        exported = torch.export.export(network(), (torch.randn(2, 3, 8, 8),))
        wanted = exported.run_decompositions(exporting.decompositions())
    found = exporting.functional_program(exported)
    assert found is exported

    def operators(program):
        names = [str(n.target) for n in live_nodes(program.graph) if n.op == "call_function"]
        return [name.replace("flatten.using_ints", "view.default") for name in names]

    assert operators(found) == operators(wanted)
