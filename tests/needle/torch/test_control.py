"""Conditions and loops inside PyTorch models, compared with PyTorch."""

import numpy as np
import pytest

import needle as ndl
import needle.torch
import needle_tvm

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


def newton(model, x):
    target = x.abs() + 1

    def again(i, z):
        return ((z * z - target).abs().max() > 1e-4) & (i < 50)

    return torch.while_loop(again, lambda i, z: (i + 1, (z + target / z) / 2), (torch.tensor(0), x))


def loop_in_loop(model, x):
    def step(z):
        (w,) = torch.while_loop(lambda a: a.sum() < 50, lambda a: (a + 1,), (z,))
        return (w + 1,)

    return torch.while_loop(lambda z: z.sum() < 100, step, (x,))


def scan_in_loop(model, x):
    def step(i, z):
        last, ys = hops.scan(lambda c, r: (c + r, c * 2), z[0], z)
        return i + 1, last / 10 + ys

    return torch.while_loop(lambda i, z: (i < 3) & (z.sum() < 1e4), step, (torch.tensor(0), x))


def loop_in_scan(model, x):
    def step(carry, row):
        (w,) = torch.while_loop(lambda a: a.sum() < 10, lambda a: (a.abs() + 1,), (carry + row,))
        return w, w * 2

    return hops.scan(step, torch.zeros(4), x)


def choice_in_loop(model, x):
    def step(i, z):
        return i + 1, torch.cond(i % 2 == 0, lambda z: z * 2, lambda z: z @ model.weight, (z,))

    return torch.while_loop(lambda i, z: z.abs().sum() < 100, step, (torch.tensor(0), x))


def choice_of_complex(model, x):
    z = torch.complex(x, x * 2)
    return torch.view_as_real(torch.cond(x.sum() > 0, lambda z: z * z, lambda z: z + 1, (z,)))


def loop_of_complex(model, x):
    start = torch.complex(x, x * 2)
    (z,) = torch.while_loop(lambda z: z.real.sum() < 20, lambda z: (z * 1.5 + 1,), (start,))
    return torch.view_as_real(z)


def choice_of_dtypes(model, x):
    def up(x):
        return x > 0, x.argmax(-1), x.sum()

    return torch.cond(x.sum() > 0, up, lambda x: (x < 1, x.argmin(-1), x[0, 0] * 1), (x,))


def ended_at_once(model, x):
    return torch.while_loop(lambda i, x: i < 0, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))


def counting_rows(model, x):
    def step(i, total):
        return i + 1, total + x.index_select(0, i[None])[0]

    return torch.while_loop(lambda i, total: i < 3, step, (torch.tensor(0), torch.zeros(4)))


def counting_in_python(model, x):
    def step(i, x):
        return i + 1, x.abs() * 2 + i

    return torch.while_loop(lambda i, x: x.sum() + i < 50, step, (0, x))[1]


CASES = [chosen, nested_choice, counted, running, summed, mapped]
OPEN = [until_large, newton, choice_of_dtypes]
SLOW = [
    *(loop_in_loop, scan_in_loop, loop_in_scan, choice_in_loop, choice_of_complex),
    *(loop_of_complex, ended_at_once, counting_rows, counting_in_python),
]
INPUTS = [
    torch.tensor(np.random.default_rng(seed).normal(size=(3, 4)) + shift, dtype=torch.float32)
    for seed, shift in ((0, 1), (1, -1))
]


def results(model, x):
    with torch.no_grad():  # PyTorch has no gradient of all of these
        return model(x)


def compared(found, wanted):
    found = [*found] if isinstance(found, (tuple, list)) else [found]
    wanted = torch.utils._pytree.tree_leaves(wanted)
    for have, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(have.numpy(), want.detach().numpy(), atol=2e-6)


@pytest.mark.parametrize(
    "function",
    [*CASES, *OPEN, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)],
    ids=lambda f: f.__name__,
)
def test_results_are_pytorchs(function):
    model = Applied(function).eval()
    loaded = needle.torch.load(model, INPUTS[0])
    for x in INPUTS:
        compared(loaded(x.numpy()), results(model, x))


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
@pytest.mark.parametrize("function", CASES + OPEN + SLOW, ids=lambda f: f.__name__)
def test_compiled_results_are_pytorchs(function, tmp_path):
    model = Applied(function).eval()
    loaded = needle.torch.load(model, INPUTS[0])
    plain = needle_tvm.compile(loaded, INPUTS[0].numpy(), stage="noopt")
    compiled = needle_tvm.compile(loaded, INPUTS[0].numpy(), stage="fused")
    read = needle_tvm.load(compiled.export(tmp_path / "model"))
    for x in INPUTS:
        for each in (plain, compiled, read):
            compared(each(x.numpy()), results(model, x))


def test_branches_take_open_sizes():
    model = Applied(chosen).eval()
    loaded = needle.torch.load(model, INPUTS[0], dims={"args_0": {0: ndl.Dim("n", max=8)}})
    x = torch.ones(5, 4)
    compared(loaded(x.numpy()), results(model, x))
