"""Optimizers."""

import numpy as np
import pytest

import needle as ndl
from needle import nn, optim
from needle.backend_ndarray.dtypes import HALVES
from needle.errors import TraceError
from needle.testing import assert_close
from needle.trace import trace


def parameters(device, dtype="float64"):
    rng = np.random.default_rng(1)
    return [
        nn.Parameter(ndl.Tensor(rng.normal(size=shape).astype(dtype), device=device))
        for shape in ((3, 4), (4,), ())
    ]


def gradients(step, params, dtype="float64"):
    rng = np.random.default_rng(100 + step)
    return [rng.normal(size=p.shape).astype(dtype) for p in params]


def set_gradients(params, values, device):
    for param, value in zip(params, values, strict=True):
        param.grad = ndl.Tensor(value, device=device, requires_grad=False)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd_is_the_courses_formula(momentum, weight_decay, device):
    params = parameters(device)
    expected = [p.numpy() for p in params]
    u = [np.zeros_like(p) for p in expected]
    optimizer = optim.SGD(params, 0.1, momentum, None, weight_decay)
    for step in range(20):
        grads = gradients(step, params)
        set_gradients(params, grads, device)
        optimizer.step()
        for i, grad in enumerate(grads):
            u[i] = momentum * u[i] + (1 - momentum) * (grad + weight_decay * expected[i])
            expected[i] = expected[i] - 0.1 * u[i]
    for param, value in zip(params, expected, strict=True):
        np.testing.assert_allclose(param.numpy(), value, rtol=1e-9)


@pytest.mark.peer
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda p: optim.SGD(p, 0.1), lambda t, p: t.optim.SGD(p, 0.1)),
        (
            lambda p: optim.SGD(p, 0.1, weight_decay=0.2),
            lambda t, p: t.optim.SGD(p, 0.1, weight_decay=0.2),
        ),
        (lambda p: optim.Adam(p, 0.1), lambda t, p: t.optim.Adam(p, 0.1)),
        (
            lambda p: optim.Adam(p, 0.05, (0.8, 0.99), 1e-6, 0.2),
            lambda t, p: t.optim.Adam(p, 0.05, (0.8, 0.99), 1e-6, 0.2),
        ),
        (lambda p: optim.AdamW(p), lambda t, p: t.optim.AdamW(p)),
        (
            lambda p: optim.AdamW(p, 0.05, (0.8, 0.99), 1e-6, 0.2),
            lambda t, p: t.optim.AdamW(p, 0.05, (0.8, 0.99), 1e-6, 0.2),
        ),
    ],
)
def test_twenty_steps_are_torchs(ours, theirs, dtype, device):
    torch = pytest.importorskip("torch")
    params = parameters(device, dtype)
    twins = [torch.tensor(p.numpy(), requires_grad=True) for p in params]
    mine, other = ours(params), theirs(torch, twins)
    for step in range(20):
        grads = gradients(step, params, dtype)
        set_gradients(params, grads, device)
        for twin, grad in zip(twins, grads, strict=True):
            twin.grad = torch.tensor(grad)
        mine.step()
        other.step()
    for param, twin in zip(params, twins, strict=True):
        assert_close(param.numpy(), twin.detach().numpy(), 20, scale=1.0)


def test_adam_without_bias_correction(device):
    (p,) = [nn.Parameter(ndl.Tensor(np.array([1.0]), device=device))]
    optimizer = optim.Adam([p], lr=0.1, bias_correction=False)
    set_gradients([p], [np.array([2.0])], device)
    optimizer.step()
    np.testing.assert_allclose(p.numpy(), 1 - 0.1 * 0.2 / (np.sqrt(0.004) + 1e-8))


def test_clip_grad_norm(device):
    params = parameters(device)
    optimizer = optim.SGD(params, 0.1)
    grads = gradients(0, params)
    norm = np.sqrt(sum((g**2).sum() for g in grads))
    set_gradients(params, grads, device)
    assert optimizer.clip_grad_norm(100.0) == pytest.approx(norm)
    np.testing.assert_array_equal(params[0].grad.numpy(), grads[0])
    optimizer.clip_grad_norm(0.5)
    clipped = np.sqrt(sum((p.grad.numpy() ** 2).sum() for p in params))
    assert clipped == pytest.approx(0.5, rel=1e-4)


def test_clipping_a_gradient_that_two_parameters_share(device):
    a, b = (nn.Parameter(ndl.Tensor(np.ones(2), device=device)) for _ in range(2))
    (a + b).sum().backward()
    optim.SGD([a, b], 0.1).clip_grad_norm(1.0)
    np.testing.assert_allclose(a.grad.numpy(), 0.5, rtol=1e-5)
    np.testing.assert_allclose(b.grad.numpy(), 0.5, rtol=1e-5)


def test_steps_skip_what_has_no_gradient_and_record_nothing(device):
    params = parameters(device)
    before = [p.numpy() for p in params]
    optimizer = optim.Adam(params, 0.1)
    optimizer.step()
    params[0].grad = ndl.Tensor(np.ones((3, 4)), device=device)
    optimizer.step()
    assert (params[0].numpy() != before[0]).all() and params[0].is_leaf
    np.testing.assert_array_equal(params[1].numpy(), before[1])
    optimizer.zero_grad(set_to_none=False)
    assert params[1].grad is None and not params[0].grad.numpy().any()
    optimizer.reset_grad()
    assert all(p.grad is None for p in params)


def test_bad_options_are_refused(device):
    params = parameters(device)
    for make in (
        lambda: optim.SGD([], 0.1),
        lambda: optim.SGD(params, -0.1),
        lambda: optim.SGD(params, float("nan")),
        lambda: optim.SGD(params, 0.1, momentum=1.0),
        lambda: optim.SGD(params, 0.1, weight_decay=-1),
        lambda: optim.Adam(params, 0.1, beta2=1.5),
        lambda: optim.Adam(params, 0.1, eps=-1e-8),
    ):
        with pytest.raises(ValueError):
            make()
    for bad in (np.ones(2), ndl.Tensor([1], device=device)):
        with pytest.raises(TypeError, match="parameter 0"):
            optim.SGD([bad])


def test_a_step_is_refused_while_tracing(device):
    model = nn.Linear(2, 2, device=device)
    optimizer = optim.SGD(model.parameters(), 0.1)
    model.weight.grad = ndl.init.ones(2, 2, device=device)
    with pytest.raises(TraceError, match=r"writes to 'm\.weight'"):
        trace(
            lambda m, x: (optimizer.step(), m(x))[1],
            model,
            ndl.init.ones(1, 2, device=device),
            training=True,
        )


def test_an_expanded_parameter_is_stepped_right(device):
    wide = ndl.Tensor(np.ones((1, 3)), device=device).cached_data.broadcast_to((2, 3))
    p = nn.Parameter(ndl.Tensor(wide))
    p.grad = ndl.Tensor(np.arange(6.0).reshape(2, 3), device=device)
    optim.SGD([p], lr=1.0).step()
    np.testing.assert_array_equal(p.numpy(), 1 - np.arange(6.0).reshape(2, 3))


def test_training_finds_the_minimum(device):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 3))
    y = x @ np.array([[1.0], [-2.0], [3.0]]) + 0.5
    for make in (
        lambda p: optim.SGD(p, lr=0.2, momentum=0.5),
        lambda p: optim.Adam(p, lr=0.1),
    ):
        layer = nn.Linear(3, 1, device=device, dtype="float64")
        optimizer = make(layer.parameters())
        for _ in range(300):
            optimizer.reset_grad()
            error = layer(ndl.Tensor(x, device=device)) - ndl.Tensor(y, device=device)
            (error * error).mean().backward()
            optimizer.step()
        np.testing.assert_allclose(layer.weight.numpy()[:, 0], [1, -2, 3], atol=1e-3)
        np.testing.assert_allclose(layer.bias.numpy(), 0.5, atol=1e-3)


@pytest.mark.peer
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda o: optim.StepLR(o, 4, 0.3), lambda t, o: t.StepLR(o, 4, 0.3)),
        (lambda o: optim.ExponentialLR(o, 0.9), lambda t, o: t.ExponentialLR(o, 0.9)),
        (lambda o: optim.LinearLR(o, 0.2, 0.9, 7), lambda t, o: t.LinearLR(o, 0.2, 0.9, 7)),
        (
            lambda o: optim.LambdaLR(o, lambda n: 1 / (n + 1)),
            lambda t, o: t.LambdaLR(o, lambda n: 1 / (n + 1)),
        ),
        (
            lambda o: optim.CosineLR(o, 20, end=0.1),
            lambda t, o: t.CosineAnnealingLR(o, 20, 0.05),
        ),
    ],
)
def test_schedules_are_torchs(ours, theirs, device):
    torch = pytest.importorskip("torch")
    optimizer = optim.SGD(parameters(device), lr=0.5)
    other = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    mine, twin = ours(optimizer), theirs(torch.optim.lr_scheduler, other)
    for _ in range(20):
        assert optimizer.lr == pytest.approx(other.param_groups[0]["lr"], rel=1e-9)
        other.step()
        mine.step(), twin.step()


def test_a_cosine_schedule_warms_up_and_ends(device):
    optimizer = optim.Adam(parameters(device), lr=1.0)
    schedule = optim.CosineLR(optimizer, 10, warmup=4, end=0.1)
    rates = []
    for _ in range(14):
        rates.append(optimizer.lr)
        schedule.step()
    np.testing.assert_allclose(rates[:5], [0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[4:11] == sorted(rates[4:11], reverse=True)
    np.testing.assert_allclose(rates[10:], 0.1)
    schedule.steps = 2
    assert optimizer.lr == rates[2]


def test_schedules_refuse_what_makes_no_sense(device):
    optimizer = optim.SGD(parameters(device), lr=0.5)
    for make, what in (
        (lambda: optim.StepLR(optimizer, 0), "step_size"),
        (lambda: optim.ExponentialLR(optimizer, -1), "gamma"),
        (lambda: optim.CosineLR(optimizer, 5, warmup=5), "warmup"),
        (lambda: optim.LinearLR(optimizer, total=0), "total"),
    ):
        with pytest.raises(ValueError, match=what):
            make()


# State

KINDS = {
    "sgd": (ndl.optim.SGD, {}),
    "momentum": (ndl.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01}),
    "adam": (ndl.optim.Adam, {"weight_decay": 0.01}),
    "adamw": (ndl.optim.AdamW, {"bias_correction": False}),
}


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_state_goes_on_bit_for_bit(kind, dtype, device):
    make, options = KINDS[kind]

    def new():
        values = np.random.default_rng(1).normal(size=(3, 3)).astype("float32")
        return [ndl.Tensor(values * k, device=device, dtype=dtype) for k in (1, 2, 3)]

    def steps(optimizer, params, first, last):
        for i in range(first, last):
            for k, param in enumerate(params[:2]):  # the third never has a gradient
                grad = np.random.default_rng(10 * i + k).normal(size=(3, 3)).astype("float32")
                param.grad = ndl.Tensor(grad, device=device, dtype=dtype)
            optimizer.step()

    whole = new()
    steps(make(whole, lr=0.1, **options), whole, 0, 7)
    half = new()
    before = make(half, lr=0.1, **options)
    steps(before, half, 0, 4)
    state = before.state_dict()
    after = make(half, lr=0.5)  # all options come from the state
    after.load_state_dict(state)
    assert after.state_dict()["numbers"] == state["numbers"]
    kept = {(i, name): x.numpy() for i, of in state["state"].items() for name, x in of.items()}
    steps(after, half, 4, 7)
    for mine, expected in zip(half, whole, strict=True):
        np.testing.assert_array_equal(mine.numpy(), expected.numpy())
    for (i, name), array in kept.items():  # loading copied
        np.testing.assert_array_equal(state["state"][i][name].numpy(), array)


def test_a_state_that_does_not_fit_is_refused_whole(device):
    params = [ndl.Tensor(np.ones(n), device=device) for n in (2, 3)]
    for param in params:
        param.grad = ndl.Tensor(np.ones(param.shape), device=device)
    adam = ndl.optim.Adam(params, lr=0.1)
    adam.step()
    state = adam.state_dict()
    other = ndl.optim.SGD(params, lr=0.2, momentum=0.5)
    with pytest.raises(ValueError, match=r"missing 'momentum'.*unexpected 'beta1'.*lacks 'u'"):
        other.load_state_dict(state)
    assert other.lr == 0.2 and not other.state
    swapped = {**state, "state": {0: state["state"][1], 2: {}}}
    with pytest.raises(ValueError, match=r"'m' of parameter 0 is float64\[3\].*no parameter 2"):
        adam.load_state_dict(swapped)
    with pytest.raises(ValueError, match=r"'lr' is a str"):
        adam.load_state_dict({**state, "numbers": {**state["numbers"], "lr": "0.1"}})
