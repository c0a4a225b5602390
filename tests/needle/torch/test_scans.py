"""PyTorch's `scan` and `map` in models, compared with PyTorch: results, gradients, open time."""

import numpy as np
import pytest

import needle as ndl
import needle.torch
import needle_tvm

torch = pytest.importorskip("torch")
hops = pytest.importorskip("torch._higher_order_ops")
pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
leaves_of = torch.utils._pytree.tree_leaves


class Applied(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.eye(4) / 2 + 0.1)
        self.bias = torch.nn.Parameter(torch.linspace(-0.2, 0.3, 4))
        self.register_buffer("scale", torch.linspace(0.5, 1, 4))
        self.lstm = torch.nn.LSTMCell(4, 4)
        self.gru = torch.nn.GRUCell(4, 4)

    def forward(self, x):
        return self.function(self, x)


def with_buffer(m, x):
    return hops.scan(
        lambda c, r: ((c @ m.weight + r * m.scale).tanh(), c * 2 + r), torch.zeros(4), x
    )


def backward_in_time(m, x):
    return hops.scan(
        lambda c, r: ((c @ m.weight + r).tanh(), c + r), torch.zeros(4), x, reverse=True
    )


def along_axis_1(m, x):
    return hops.scan(
        lambda c, r: ((c / 2 + r[0]).tanh(), c + r), torch.zeros(4), x[:, :, None], dim=1
    )


def one_step(m, x):
    return hops.scan(lambda c, r: ((c @ m.weight + r).tanh(), c + r), torch.ones(4), x[:1])


def of_dicts(m, x):
    def step(c, r):
        return {"a": c["a"] + r["p"] * r["q"]}, (c["a"] * 1,)

    return hops.scan(step, {"a": torch.zeros(4)}, {"p": x, "q": x.exp()})


def lstm_cell(m, x):
    def step(c, r):
        state = m.lstm(r[None], c)
        return state, state[0].clone()

    return hops.scan(step, (torch.zeros(1, 4), torch.ones(1, 4)), x)


def gru_cell(m, x):
    def step(c, r):
        state = m.gru(r[None], c)
        return state, state.clone()

    return hops.scan(step, torch.zeros(1, 4), x)


def exchanged(m, x):
    start = torch.zeros(4), torch.ones(4)
    return hops.scan(lambda c, r: ((c[1] + r, c[0] / 2), c[0].clone()), start, x)


def outputs_apart(m, x):
    """Outputs that are a slice, and the same in all steps; a state that stays."""
    start = torch.zeros(4), torch.ones(4)
    return hops.scan(lambda c, r: ((c[0] + r, c[1].clone()), (r.clone(), m.bias * 2)), start, x)


def scan_in_scan(m, x):
    def outer(c, r):
        total, ys = hops.scan(lambda a, e: (a / 2 + e, a + e), c.sum(), r)
        return c + total * m.bias, ys

    return hops.scan(outer, torch.zeros(4), x)


def choice_in_scan(m, x):
    def step(c, r):
        def up(c, r):
            return (c @ m.weight + r).tanh()

        return torch.cond(r.sum() > 0, up, lambda c, r: c - r, (c, r)), c + 1

    return hops.scan(step, torch.zeros(4), x)


def mapped(m, x):
    return hops.map(lambda row, weight: weight @ row + 1, x, m.weight)


def scan_in_map(m, x):
    return hops.map(lambda r: hops.scan(lambda a, e: (a / 2 + e, a + e), r.sum(), r)[1], x)


def counting(m, x):
    """States of int64, bool and float32 without axes, and outputs of all three."""

    def step(c, r):
        i, seen, h = c
        seen = seen | (h > 1)
        return (i + 1, seen, torch.where(seen, h, h + r.sum())), (i * 2, seen.clone(), h.clone())

    return hops.scan(step, (torch.tensor(0), torch.tensor(False), torch.tensor(0.0)), x)


def written_in_place(m, x):
    def step(c, r):
        new = c @ m.weight
        new.add_(r)
        return new.tanh_(), new.clone()

    return hops.scan(step, torch.zeros(4), x)


def in_halves(m, x):
    def step(c, r):
        return (c + r * m.bias.half()).tanh(), c * 2

    return hops.scan(step, torch.zeros(4).half(), x.half())


def of_complex(m, x):
    z = torch.complex(m.bias, m.scale)
    start = torch.zeros(4, dtype=torch.complex64)
    _, ys = hops.scan(lambda c, r: (c * z / 2 + r, c.clone()), start, torch.complex(x, x * 2))
    return torch.view_as_real(ys)


QUICK = [backward_in_time, of_dicts, outputs_apart, mapped]
SMOOTH = [
    *(with_buffer, along_axis_1, one_step, lstm_cell, gru_cell),
    *(exchanged, scan_in_scan, choice_in_scan, scan_in_map),
]
OTHER = [counting, written_in_place, in_halves, of_complex]  # PyTorch 2.13 has no gradient of these
X = torch.tensor(np.random.default_rng(0).normal(size=(3, 4)), dtype=torch.float32)


def loaded(function, x=X, **keywords):
    torch.manual_seed(0)
    model = Applied(function).eval()
    return model, needle.torch.load(model, x, **keywords)


def flat(result):
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (tuple, list)):
        return [leaf for part in result for leaf in flat(part)]
    return [result]


def compared(found, wanted):
    for have, want in zip(flat(found), leaves_of(wanted), strict=True):
        have, want = have.numpy(), want.detach().numpy()
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(have, want, atol=3e-3 if have.dtype == "float16" else 2e-6)


def loss(result):
    return sum(((part + 0.3) ** 2).sum() * (i + 1) for i, part in enumerate(result))


@pytest.mark.parametrize(
    "function",
    [*QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in SMOOTH)],
    ids=lambda f: f.__name__,
)
def test_results_and_gradients_are_pytorchs(function):
    model, ours = loaded(function)
    x, given = X.clone().requires_grad_(), ndl.Tensor(X.numpy(), requires_grad=True)
    wanted, found = model(x), ours(given)
    compared(found, wanted)
    loss(leaves_of(wanted)).backward()
    loss(flat(found)).backward()
    np.testing.assert_allclose(given.grad.numpy(), x.grad.numpy(), rtol=1e-4, atol=1e-5)
    gradients = {name: each.grad for name, each in ours.named_parameters()}
    for name, each in model.named_parameters():
        if each.grad is not None:
            np.testing.assert_allclose(
                gradients[name].numpy(), each.grad.numpy(), rtol=1e-4, atol=1e-5, err_msg=name
            )


@pytest.mark.parametrize("function", OTHER, ids=lambda f: f.__name__)
def test_results_of_other_dtypes_are_pytorchs(function):
    model, ours = loaded(function)
    with torch.no_grad():
        compared(ours(X.numpy()), model(X))


@pytest.mark.slow
@pytest.mark.parametrize("function", QUICK + SMOOTH + OTHER, ids=lambda f: f.__name__)
def test_compiled_results_are_pytorchs(function, tmp_path):
    model, ours = loaded(function)
    with torch.no_grad():
        wanted = model(X)
    for stage in ("noopt", "fused"):
        compiled = needle_tvm.compile(ours, X.numpy(), stage=stage)
        compared(compiled(X.numpy()), wanted)
    compared(needle_tvm.load(compiled.export(tmp_path / "model"))(X.numpy()), wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [lstm_cell, backward_in_time, of_dicts, mapped, counting, outputs_apart, of_complex],
    ids=lambda f: f.__name__,
)
def test_the_number_of_steps_may_be_open(function):
    n = {"x": {0: ndl.Dim("n", max=16)}}
    model, ours = loaded(function, dims=n)
    compiled = needle_tvm.compile(ours, X.numpy(), stage="fused", dims=n)
    for steps in (1, 2, 16):
        x = torch.tensor(np.random.default_rng(steps).normal(size=(steps, 4)), dtype=torch.float32)
        with torch.no_grad():
            wanted = model(x)
        compared(ours(x.numpy()), wanted)
        compared(compiled(x.numpy()), wanted)
