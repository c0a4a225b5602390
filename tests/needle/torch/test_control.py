"""Conditions and loops inside PyTorch models, compared with PyTorch."""

import numpy as np
import pytest

import needle as ndl
import needle.torch
import needle_tvm
from needle.errors import UnsupportedError

torch = pytest.importorskip("torch")
hops = pytest.importorskip("torch._higher_order_ops")
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Applied(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.tensor(np.eye(4) + 0.1, dtype=torch.float32))
        self.register_buffer("steps", torch.tensor(3))

    def forward(self, *args):
        return self.function(self, *args)


def chosen(model, x):
    def up(x):
        return (x @ model.weight + 1).relu(), x.sum(0)

    def down(x):
        return x @ model.weight - 1, x[0] + 1

    return torch.cond(x.sum() > 0, up, down, (x,))


def nested_choice(model, x):
    def inner(x):
        return torch.cond(x[0, 0] > 1, lambda x: x * 2, lambda x: x - 2, (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x.exp(), (x,))


def counted(model, x):
    def again(i, x):
        return i < model.steps

    def step(i, x):
        return i + 1, torch.tanh(x @ model.weight)

    return torch.while_loop(again, step, (torch.tensor(0), x))


def until_large(model, x):
    return torch.while_loop(lambda x: x.sum() < 50, lambda x: (x.abs() * 2 + 1,), (x,))


def running(model, x):
    def step(carry, row):
        new = torch.tanh(carry @ model.weight + row)
        return new, new * 2

    return hops.scan(step, torch.zeros(4), x)


def summed(model, x):
    return hops.associative_scan(torch.add, x, 0, combine_mode="generic")


def mapped(model, x):
    return hops.map(lambda row, weight: weight @ row + 1, x, model.weight)


CASES = [chosen, nested_choice, counted, running, summed, mapped]
INPUTS = [
    torch.tensor(np.random.default_rng(seed).normal(size=(3, 4)) + shift, dtype=torch.float32)
    for seed, shift in ((0, 1), (1, -1))
]


def compared(found, wanted):
    found = [*found] if isinstance(found, (tuple, list)) else [found]
    wanted = torch.utils._pytree.tree_leaves(wanted)
    for have, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(have.numpy(), want.detach().numpy(), atol=2e-6)


@pytest.mark.parametrize("function", [*CASES, until_large], ids=lambda f: f.__name__)
def test_results_are_pytorchs(function):
    model = Applied(function).eval()
    loaded = needle.torch.load(model, INPUTS[0])
    for x in INPUTS:
        compared(loaded(x.numpy()), model(x))


@pytest.mark.parametrize("function", [chosen, counted, mapped], ids=lambda f: f.__name__)
def test_weights_inside_have_gradients(function):
    model = Applied(function).eval()
    loaded = needle.torch.load(model, INPUTS[0])
    result = loaded(INPUTS[0].numpy())
    last = result[0 if function is chosen else -1] if isinstance(result, tuple) else result
    (last**2).sum().backward()
    given = model.weight.detach().clone().requires_grad_()
    model.weight = torch.nn.Parameter(given)
    x = INPUTS[0]
    if function is chosen:
        wanted = (x @ model.weight + 1).relu()
    elif function is mapped:
        wanted = x @ model.weight.T + 1
    else:
        wanted = x
        for _ in range(3):
            wanted = torch.tanh(wanted @ model.weight)
    (wanted**2).sum().backward()
    gradient = dict(loaded.named_parameters())["weight"].grad
    np.testing.assert_allclose(gradient.numpy(), model.weight.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_compiled_results_are_pytorchs(function):
    model = Applied(function).eval()
    loaded = needle.torch.load(model, INPUTS[0])
    compiled = needle_tvm.compile(loaded, INPUTS[0].numpy(), stage="fused")
    for x in INPUTS:
        compared(compiled(x.numpy()), model(x))


def test_a_loop_that_values_end_is_not_compiled():
    loaded = needle.torch.load(Applied(until_large).eval(), INPUTS[0])
    with pytest.raises(UnsupportedError, match="iterations depends on values that only a call"):
        needle_tvm.compile(loaded, INPUTS[0].numpy())


def test_branches_take_open_sizes():
    model = Applied(chosen).eval()
    loaded = needle.torch.load(model, INPUTS[0], dims={"args_0": {0: ndl.Dim("n", max=8)}})
    x = torch.ones(5, 4)
    compared(loaded(x.numpy()), model(x))
