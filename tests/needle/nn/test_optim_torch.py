"""Further optimizers and schedules beside PyTorch's, groups, limits and averages."""

import numpy as np
import pytest

import needle as ndl
from needle import nn, optim
from needle.backend_ndarray.dtypes import HALVES
from needle.testing import assert_close

SHAPES = ((3, 4), (4,), ())
FURTHER = ("Adadelta", "Adamax", "NAdam", "RAdam")


def drawn(seed, shapes, dtype):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def run(mine, params, other, twins, torch, device, steps=12):
    """The same steps on both sides, with the same gradients."""
    for step in range(steps):
        shapes = [p.shape for p in params]
        for p, t, g in zip(params, twins, drawn(50 + step, shapes, params[0].dtype), strict=True):
            p.grad = ndl.Tensor(g, device=device, requires_grad=False)
            t.grad = torch.tensor(g)
        mine.step(), other.step()


OPTIMIZERS = {
    "SGD": {"momentum": 0.9, "dampening": 0.0, "weight_decay": 0.1},
    "SGD dampened": {"momentum": 0.9, "dampening": 0.3},
    "SGD nesterov": {"momentum": 0.9, "dampening": 0.0, "nesterov": True, "weight_decay": 0.1},
    "Adam betas": {"betas": (0.8, 0.95)},
    "SGD up": {"momentum": 0.9, "dampening": 0.0, "weight_decay": 0.1, "maximize": True},
    "Adam amsgrad": {"amsgrad": True, "weight_decay": 0.1},
    "Adam up": {"maximize": True, "weight_decay": 0.1},
    "AdamW amsgrad up": {"amsgrad": True, "weight_decay": 0.1, "maximize": True},
    "Adagrad": {},
    "Adagrad up": {"maximize": True, "weight_decay": 0.1},
    "RMSprop up": {"maximize": True, "momentum": 0.8},
    "Adafactor up": {"maximize": True, "weight_decay": 0.1},
    "Adagrad all": {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5},
    "RMSprop": {},
    "RMSprop all": {"momentum": 0.8, "centered": True, "weight_decay": 0.1, "alpha": 0.9},
    "Adadelta": {},
    "Adadelta up": {"rho": 0.7, "eps": 1e-3, "weight_decay": 0.1, "maximize": True},
    "Adamax": {},
    "Adamax up": {"betas": (0.5, 0.8), "eps": 1e-3, "weight_decay": 0.1, "maximize": True},
    "NAdam": {},
    "NAdam up": {"betas": (0.5, 0.8), "momentum_decay": 0.1, "maximize": True},
    "NAdam decoupled": {"weight_decay": 0.1, "decoupled_weight_decay": True},
    "RAdam": {"weight_decay": 0.1},
    "RAdam never": {"betas": (0.5, 0.6), "maximize": True},  # whose factor is not defined
    "RAdam decoupled": {"betas": (0.5, 0.9), "weight_decay": 0.1, "decoupled_weight_decay": True},
    "Adafactor": {},
    "Adafactor all": {"weight_decay": 0.1, "d": 1.5, "beta2_decay": -0.5, "eps": (1e-20, 1e-2)},
}


@pytest.mark.peer
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_torchs(name, dtype, device, wide_torch):
    torch = wide_torch
    options = {"lr": 0.05, **OPTIMIZERS[name]}
    first = drawn(1, SHAPES, dtype)
    params = [nn.Parameter(ndl.Tensor(v, device=device)) for v in first]
    twins = [torch.tensor(v, requires_grad=True) for v in first]
    kind = name.partition(" ")[0]
    mine, other = (
        getattr(optim, kind)(params, **options),
        getattr(torch.optim, kind)(twins, **options),
    )
    run(mine, params, other, twins, torch, device)
    for param, twin in zip(params, twins, strict=True):
        assert_close(param.numpy(), twin.detach().numpy(), 100, scale=1.0)


@pytest.mark.peer
@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n.partition(" ")[0] in FURTHER])
def test_fifty_steps_are_torchs_to_the_last_digits(name, wide_torch):
    first, kind = drawn(1, SHAPES, "float64"), name.partition(" ")[0]
    params = [nn.Parameter(ndl.Tensor(v)) for v in first]
    twins = [wide_torch.tensor(v, requires_grad=True) for v in first]
    options = {"lr": 0.05, **OPTIMIZERS[name]}
    mine = getattr(optim, kind)(params, **options)
    other = getattr(wide_torch.optim, kind)(twins, **options)
    run(mine, params, other, twins, wide_torch, ndl.cpu(), steps=50)
    for param, twin in zip(params, twins, strict=True):
        np.testing.assert_allclose(param.numpy(), twin.detach().numpy(), 1e-10, 1e-10)


def test_lion_is_the_papers_formula(device):
    (value,) = drawn(2, [(3, 4)], "float64")
    param = nn.Parameter(ndl.Tensor(value, device=device))
    lion = optim.Lion([param], lr=0.1, betas=(0.8, 0.9), weight_decay=0.2)
    m = np.zeros_like(value)
    for step in range(5):
        (g,) = drawn(step, [value.shape], "float64")
        param.grad = ndl.Tensor(g, device=device)
        lion.step()
        value = value - 0.1 * (np.sign(0.8 * m + 0.2 * g) + 0.2 * value)
        m = 0.9 * m + 0.1 * g
    np.testing.assert_allclose(param.numpy(), value, rtol=1e-9)


INFINITE = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Lion")


@pytest.mark.peer
@pytest.mark.parametrize("kind", INFINITE)
def test_without_weight_decay_an_infinite_parameter_stays(kind, device):
    """As in PyTorch, which has no Lion: zero times infinity is not added to the gradient."""
    torch = pytest.importorskip("torch")
    values, grads = np.array([np.inf, 1.0, -np.inf]), np.array([0.5, -1.0, 2.0])
    param = nn.Parameter(ndl.Tensor(values, device=device))
    twin = torch.tensor(values, requires_grad=True)
    mine = getattr(optim, kind)([param], lr=0.1, weight_decay=0.0)
    other = getattr(torch.optim, "SGD" if kind == "Lion" else kind)(
        [twin], lr=0.1, weight_decay=0.0
    )
    for _ in range(2):
        param.grad, twin.grad = ndl.Tensor(grads, device=device), torch.tensor(grads)
        mine.step(), other.step()
    wanted = twin.detach().numpy()
    assert_close(param.numpy()[::2], wanted[::2], 1)
    if kind != "Lion":
        assert_close(param.numpy(), wanted, 100, scale=1.0)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
def test_muon_steps_are_nearly_orthogonal(shape, device):
    (g,) = drawn(3, [shape], "float64")
    param = nn.Parameter(ndl.Tensor(np.zeros(shape), device=device))
    param.grad = ndl.Tensor(g, device=device)
    optim.Muon([param], lr=1.0, weight_decay=0.0).step()
    rate = max(1, shape[1] / shape[0]) ** 0.5  # of the weight (in, out)
    u, _, v = np.linalg.svd(g, full_matrices=False)
    found = np.diag(u.T @ -param.numpy() @ v.T) / rate
    assert ((found > 0.3) & (found < 1.3)).all()  # what five steps reach
    np.testing.assert_allclose(u @ np.diag(found) @ v, -param.numpy() / rate, atol=1e-9)


@pytest.mark.peer
def test_muon_is_torchs(device):
    """PyTorch orthogonalises in bfloat16, and its weights are transposed."""
    torch = pytest.importorskip("torch")
    (value,) = drawn(4, [(6, 4)], "float32")
    param = nn.Parameter(ndl.Tensor(value, device=device))
    twin = torch.tensor(value.T.copy(), requires_grad=True)
    mine, other = optim.Muon([param], lr=0.1), torch.optim.Muon([twin], lr=0.1)
    for step in range(4):
        (g,) = drawn(step, [(6, 4)], "float32")
        param.grad, twin.grad = ndl.Tensor(g, device=device), torch.tensor(g.T.copy())
        mine.step(), other.step()
    np.testing.assert_allclose(param.numpy(), twin.detach().numpy().T, atol=0.02)
    with pytest.raises(ValueError, match=r"parameter 0 has shape \(3,\)"):
        optim.Muon([nn.Parameter(ndl.Tensor(np.ones(3)))])


def rosenbrock(x):
    a, b = x[0], x[1]
    return (1 - a) ** 2 + 100 * (b - a**2) ** 2


@pytest.mark.peer
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_is_torchs(search, device):
    torch = pytest.importorskip("torch")
    options = {"lr": 0.1 if search is None else 1.0, "max_iter": 6, "line_search_fn": search}
    x = nn.Parameter(ndl.Tensor(np.array([-1.2, 1.0]), device=device))
    z = torch.tensor([-1.2, 1.0], dtype=torch.float64, requires_grad=True)
    mine, other = optim.LBFGS([x], **options), torch.optim.LBFGS([z], **options)

    def closure():
        mine.zero_grad()
        loss = rosenbrock(x)
        loss.backward()
        return loss

    def their_closure():
        other.zero_grad()
        loss = rosenbrock(z)
        loss.backward()
        return loss

    for step in range(8):
        mine.step(closure), other.step(their_closure)
        if search is None or step == 0:  # later the searches may choose other lengths
            np.testing.assert_allclose(x.numpy(), z.detach().numpy(), rtol=1e-5, atol=1e-6)
        if step == 3:  # a loaded state goes on in the same way
            state = mine.state_dict()
            mine = optim.LBFGS([x], lr=0.7, max_iter=3, line_search_fn=search)
            mine.load_state_dict(state)
    if search:
        np.testing.assert_allclose(x.numpy(), [1, 1], atol=1e-3)
    with pytest.raises(TypeError, match="closure"):
        mine.step()


STATES = {
    "nesterov": (optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adagrad": (optim.Adagrad, {}),
    "rmsprop": (optim.RMSprop, {"momentum": 0.5, "centered": True}),
    "lion": (optim.Lion, {}),
    "adafactor": (optim.Adafactor, {}),
}


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize("kind", STATES)
def test_a_loaded_state_goes_on_bit_for_bit(kind, dtype, device):
    make, options = STATES[kind]

    def new():
        return [ndl.Tensor(v, device=device, dtype=dtype) for v in drawn(1, SHAPES, "float32")]

    def steps(optimizer, params, first, last):
        for i in range(first, last):
            for param, g in zip(params[:2], drawn(i, SHAPES, "float32"), strict=False):
                param.grad = ndl.Tensor(g, device=device, dtype=dtype)
            optimizer.step()

    whole, half = new(), new()
    steps(make(whole, lr=0.1, **options), whole, 0, 6)
    before = make(half, lr=0.1, **options)
    steps(before, half, 0, 3)
    after = make(half, lr=0.5)
    state = before.state_dict()
    after.load_state_dict(state)
    steps(after, half, 3, 6)
    for mine, expected in zip(half, whole, strict=True):
        np.testing.assert_array_equal(mine.numpy(), expected.numpy())


def test_parameters_may_have_names():
    """As in PyTorch from 2.6 on: names change nothing but `param_names`."""
    torch = pytest.importorskip("torch")
    model, theirs = nn.Linear(2, 3), torch.nn.Linear(2, 3)
    for make in (
        lambda m, o: o.SGD(m.named_parameters(), lr=0.1),
        lambda m, o: o.SGD([{"params": m.named_parameters(), "lr": 0.2}], lr=0.1),
    ):
        mine, other = make(model, optim), make(theirs, torch.optim)
        assert mine.param_groups[0]["param_names"] == other.param_groups[0]["param_names"]
        assert mine.params == list(model.parameters())
        plain = optim.SGD(model.parameters(), lr=0.1)
        assert plain.state_dict()["numbers"].items() <= mine.state_dict()["numbers"].items()
    pair = ("w", nn.Parameter(ndl.Tensor([1.0])))
    for call in (
        lambda: optim.SGD([pair, model.weight]),
        lambda: mine.add_param_group({"params": [pair[1]]}),
        lambda: plain.add_param_group({"params": [pair]}),
    ):
        with pytest.raises(ValueError, match=r"SGD: .*name (all|the parameters of all groups)"):
            call()
    assert "param_names" not in plain.param_groups[0] and len(mine.params) == 2


def test_groups_have_options_of_their_own(device):
    a, b, c = (nn.Parameter(ndl.Tensor(np.ones(2), device=device)) for _ in range(3))
    optimizer = optim.SGD([{"params": [a]}, {"params": b, "lr": 0.5}], lr=0.1)
    optimizer.add_param_group({"params": [c], "weight_decay": 1.0})
    schedule = optim.ExponentialLR(optimizer, 0.5)
    schedule.step()
    assert schedule.get_last_lr() == [0.05, 0.25, 0.05]
    for p in (a, b, c):
        p.grad = ndl.Tensor(np.ones(2), device=device)
    optimizer.step()
    assert [p.numpy()[0] for p in (a, b, c)] == [0.95, 0.75, 0.9]
    other = optim.SGD([{"params": [a]}, {"params": b, "lr": 3}, {"params": c, "weight_decay": 0}])
    other.load_state_dict(optimizer.state_dict())
    assert [dict(g) | {"params": 0} for g in other.param_groups] == [
        dict(g) | {"params": 0} for g in optimizer.param_groups
    ]
    one = optim.Adam([a], lr=1.0)
    one.param_groups[0]["lr"] = 0.25
    assert one.lr == 0.25 and one.param_groups[0]["params"] == [a]
    with pytest.raises(ValueError, match=r"no option 'beta'.* lr, beta1"):
        one.param_groups[0]["beta"] = 1
    with pytest.raises(ValueError, match="SGD: lr -1"):
        optim.SGD([{"params": [a], "lr": -1}])
    with pytest.raises(ValueError, match=r"parameter 1 .* twice"):
        optim.SGD([{"params": [a]}, {"params": [a]}])
    with pytest.raises(ValueError, match="nesterov"):
        optim.SGD([a], nesterov=True)


@pytest.mark.peer
@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0, float("inf")])
def test_limits_for_gradients_are_torchs(norm, device):
    torch = pytest.importorskip("torch")
    params = [nn.Parameter(ndl.Tensor(v, device=device)) for v in drawn(1, SHAPES, "float64")]
    twins = [torch.tensor(p.numpy(), requires_grad=True) for p in params]
    for p, t, g in zip(params, twins, drawn(2, SHAPES, "float64"), strict=True):
        p.grad, t.grad = ndl.Tensor(g, device=device), torch.tensor(g)
    found = optim.clip_grad_norm(params, 0.7, norm)
    assert found == pytest.approx(float(torch.nn.utils.clip_grad_norm_(twins, 0.7, norm)))
    optim.clip_grad_value(params, 0.1)
    torch.nn.utils.clip_grad_value_(twins, 0.1)
    for p, t in zip(params, twins, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), t.grad.numpy(), rtol=1e-6)


def _warm(s, optimizer):
    cycle = s.CosineAnnealingLR(optimizer, 8, eta_min=0.01)
    warm = s.LinearLR(optimizer, start_factor=0.1, end_factor=1.0, total_iters=4)
    return s.SequentialLR(optimizer, [warm, cycle, s.StepLR(optimizer, 3)], [4, 12])


@pytest.mark.peer
@pytest.mark.parametrize(
    "make",
    [
        lambda s, o: s.MultiStepLR(o, [3, 9, 5], 0.3),
        lambda s, o: s.CosineAnnealingLR(o, 7, eta_min=0.02),
        lambda s, o: s.OneCycleLR(o, 0.9, total_steps=20),
        lambda s, o: s.OneCycleLR(
            o, 0.9, epochs=4, steps_per_epoch=5, anneal_strategy="linear", three_phase=True
        ),
        lambda s, o: s.OneCycleLR(o, 0.9, 20, pct_start=0.1, cycle_momentum=False),
        _warm,
    ],
)  # fmt: skip
def test_schedules_are_torchs(make, device):
    torch = pytest.importorskip("torch")
    (param,) = (nn.Parameter(ndl.Tensor(np.ones(2), device=device)),)
    optimizer = optim.SGD([param], lr=0.5, momentum=0.9)
    other = torch.optim.SGD([torch.zeros(1)], lr=0.5, momentum=0.9)
    if make is _warm:  # PyTorch's needs to be told which schedule comes first
        s = torch.optim.lr_scheduler
        warm = s.LinearLR(other, 0.1, 1.0, 4)
        rest = [s.CosineAnnealingLR(other, 8, eta_min=0.01), s.StepLR(other, 3)]
        twin = s.SequentialLR(other, [warm, *rest], [4, 12])
    else:
        twin = make(torch.optim.lr_scheduler, other)
    mine = make(optim, optimizer)
    for _ in range(19):
        group = other.param_groups[0]
        assert optimizer.lr == pytest.approx(group["lr"], rel=1e-9)
        assert optimizer.momentum == pytest.approx(group["momentum"], rel=1e-9)
        other.step()
        mine.step(), twin.step()
    state = mine.state_dict()
    again = make(optim, optim.SGD([param], lr=0.5, momentum=0.9))
    again.load_state_dict(state)
    assert again.optimizer.lr == optimizer.lr


@pytest.mark.peer
@pytest.mark.parametrize(
    "options",
    [
        {"patience": 2},
        {"mode": "max", "factor": 0.5, "patience": 1, "cooldown": 2, "min_lr": 0.1},
        {"threshold": 0.3, "threshold_mode": "abs", "patience": 0},
    ],
)
def test_a_plateau_lowers_the_rate_as_in_torch(options, device):
    torch = pytest.importorskip("torch")
    optimizer = optim.SGD([nn.Parameter(ndl.Tensor(np.ones(2), device=device))], lr=1.0)
    other = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    mine = optim.ReduceLROnPlateau(optimizer, **options)
    twin = torch.optim.lr_scheduler.ReduceLROnPlateau(other, **options)
    rng = np.random.default_rng(0)
    for metric in 1 + np.exp(-np.arange(30) / 3) + rng.random(30) / 10:
        mine.step(metric), twin.step(metric)
        assert optimizer.lr == pytest.approx(other.param_groups[0]["lr"])


def test_moving_averages_of_weights(device):
    model = nn.Linear(2, 2, device=device, dtype="float64")
    ema = optim.EMA(model, decay=0.75)
    first = model.weight.numpy()
    model.weight.data = model.weight.detach() * 3
    ema.update()
    expected = 0.75 * first + 0.25 * 3 * first
    with ema.applied():
        np.testing.assert_allclose(model.weight.numpy(), expected)
    np.testing.assert_allclose(model.weight.numpy(), 3 * first)
    other = optim.EMA(model, decay=0.1)
    other.load_state_dict(ema.state_dict())
    assert other.decay == 0.75 and other.updates == 1
    other.copy_to()
    np.testing.assert_allclose(model.weight.numpy(), expected)
    with pytest.raises(ValueError, match="averages are"):
        optim.EMA([model.weight]).load_state_dict(ema.state_dict())


def test_options_that_make_no_sense(device):
    params = [nn.Parameter(ndl.Tensor(np.ones((2, 2)), device=device))]
    optimizer = optim.RMSprop(params)
    for make, what in (
        (lambda: optim.Adagrad(params, lr_decay=-1), "Adagrad: lr_decay -1"),
        (lambda: optim.RMSprop(params, alpha=1), "RMSprop: alpha 1"),
        (lambda: optim.Adafactor(params, beta2_decay=0.5), "Adafactor: beta2_decay 0.5"),
        (lambda: optim.Muon(params, adjust_lr_fn="x"), "Muon: adjust_lr_fn 'x'"),
        (lambda: optim.LBFGS(params, line_search_fn="x"), "LBFGS: line_search_fn 'x'"),
        (lambda: optim.OneCycleLR(optimizer, 0.1), "OneCycleLR: give total_steps"),
        (lambda: optim.OneCycleLR(optim.Adagrad(params), 0.1, 5), "not Adagrad"),
        (lambda: optim.SequentialLR(optimizer, [], [1]), "SequentialLR: 0 schedulers"),
        (lambda: optim.ReduceLROnPlateau(optimizer, factor=1.5), "factor 1.5"),
        (lambda: optim.clip_grad_value(params, -1), "clip_value -1"),
        (lambda: optim.EMA(params, 2), "EMA: decay 2"),
    ):
        with pytest.raises(ValueError, match=what):
            make()
    with pytest.raises(TypeError, match="Lion: betas"):
        optim.Lion(params, betas=0.9)
