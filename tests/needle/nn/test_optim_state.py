"""Arguments and defaults of optimizers, the state that they keep for each parameter, and limits."""

import copy
import inspect
import pickle

import numpy as np
import pytest

import needle as ndl
import needle.course
from needle import nn, optim
from needle.testing import assert_close

# PyTorch's arguments that choose an implementation, not a result.
HOW = {"foreach", "fused", "differentiable", "capturable", "params", "maximize"}
NAMES = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adafactor", "LBFGS", "Muon")
NAMES += ("Adadelta", "Adamax", "NAdam", "RAdam")
KINDS = {
    "SGD": {"momentum": 0.9},
    "SGD dampened": {"momentum": 0.9, "dampening": 0.5},
    "SGD nesterov": {"momentum": 0.9, "nesterov": True},
    "Adam": {},
    "Adam amsgrad": {"amsgrad": True},
    "Adam decoupled": {"decoupled_weight_decay": True, "weight_decay": 0.1},
    "AdamW": {},
    "AdamW amsgrad": {"amsgrad": True},
    "Adagrad": {"lr_decay": 0.5},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Adafactor": {},
    "Adadelta": {"weight_decay": 0.1},
    "Adamax": {"weight_decay": 0.1},
    "NAdam": {"momentum_decay": 0.1},
    "NAdam decoupled": {"decoupled_weight_decay": True, "weight_decay": 0.1},
    "RAdam": {"betas": (0.5, 0.9)},
    "RAdam decoupled": {"decoupled_weight_decay": True, "weight_decay": 0.1},
}
OWN = {"SGD averaged": {"momentum": 0.9, "dampening": None}, "Lion": {}}


def positional(function):
    values = inspect.signature(function).parameters.values()
    return {
        p.name: p.default
        for p in values
        if p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in {*HOW, "self"}
    }


@pytest.mark.peer
@pytest.mark.parametrize("name", NAMES)
def test_arguments_and_defaults_are_torchs(name):
    torch = pytest.importorskip("torch")
    ours = getattr(optim, name)
    known = positional(getattr(torch.optim, name).__init__)
    assert list(positional(ours.__init__).items()) == list(known.items())


def new(kind, count=2, dtype="float64", device=None, **options):
    rng = np.random.default_rng(1)
    values = [rng.normal(size=(3, 4)).astype(dtype) for _ in range(count)]
    params = [nn.Parameter(ndl.Tensor(v, device=device)) for v in values]
    cls = getattr(optim, kind.partition(" ")[0])
    return cls(params, **{"lr": 0.1, **(KINDS | OWN)[kind], **options}), params, values


def gradient(step, which):
    return np.random.default_rng([step, which]).normal(size=(3, 4))


def take(optimizer, params, steps, first=0, device=None):
    for step in range(first, first + steps):
        for i, param in enumerate(params):
            g = gradient(step, i).astype(param.dtype)
            param.grad = ndl.Tensor(g, device=device, requires_grad=False)
        optimizer.step()


@pytest.mark.peer
@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_that_gets_its_first_gradient_late_is_torchs(kind, device, wide_torch):
    torch = wide_torch
    mine, params, values = new(kind, device=device)
    twins = [torch.tensor(v, requires_grad=True) for v in values]
    other = getattr(torch.optim, kind.partition(" ")[0])(twins, **{"lr": 0.1, **KINDS[kind]})
    for step in range(9):
        for i, (param, twin) in enumerate(zip(params, twins, strict=True)):
            g = gradient(step, i) if i == 0 or step >= 4 else None
            param.grad = None if g is None else ndl.Tensor(g, device=device)
            twin.grad = None if g is None else torch.tensor(g)
        mine.step(), other.step()
    for param, twin in zip(params, twins, strict=True):
        assert_close(param.numpy(), twin.detach().numpy(), 100, scale=1.0)
    assert [mine.state[i]["step"].item() for i in (0, 1)] == [9, 5]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", sorted({*KINDS, *OWN} - {"Adafactor"}))  # which has no op
def test_a_step_is_that_of_its_op(kind, dtype, device):
    """The op computes from tensors alone what the step does in place; so it can be compiled."""
    optimizer, params, _ = new(kind, 1, dtype, device)
    take(optimizer, params, 3, device=device)
    (param,) = params
    param.grad = ndl.Tensor(gradient(3, 0).astype(dtype), device=device, requires_grad=False)
    (group,) = optimizer.param_groups
    op, kept = optimizer._rule(group.options), optimizer.state[0]
    gradient_now = -param.grad if group.options.maximize else param.grad
    rate = ndl.Tensor(group["lr"], dtype="float64", device=device, requires_grad=False)
    state_now = [ndl.Tensor(kept[name], requires_grad=False) for name in (*op.states, "step")]
    inputs = [param.detach(), gradient_now, *state_now[:-1], rate, state_now[-1]]
    after, *state, step = op(*inputs)
    optimizer.step()
    assert_close(after.numpy(), param.numpy(), scale=1.0)
    for name, value in zip(op.states, state, strict=True):
        assert_close(value.numpy(), optimizer.state[0][name].numpy(), scale=1.0)
    assert step.item() == optimizer.state[0]["step"].item() == 4
    assert [x.shape for x in inputs[-2:]] == [(), ()]
    assert {x.device for x in (*inputs, *optimizer.state[0].values())} == {device}


@pytest.mark.parametrize("kind", [*KINDS, *OWN])
def test_copies_go_on_by_themselves(kind):
    optimizer, params, _ = new(kind)
    take(optimizer, params, 3)
    for made in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        take(made, made.params, 2, first=3)
        assert made.state[0]["step"].item() == 5 and optimizer.state[0]["step"].item() == 3
    take(optimizer, params, 2, first=3)
    np.testing.assert_array_equal(made.params[0].numpy(), params[0].numpy())


def older(state):
    """A state as optimizers wrote it that counted steps for all parameters together."""
    numbers = dict(state["numbers"])
    kept = {i: {n: x for n, x in of.items() if n != "step"} for i, of in state["state"].items()}
    if numbers.get("dampening", 0) is None:
        del numbers["dampening"]
    return {"state": kept, "numbers": {**numbers, "t": 3}}


@pytest.mark.parametrize("kind", [*KINDS, *OWN])
def test_older_files_are_loaded(kind):
    whole, params, _ = new(kind)
    take(whole, params, 3)
    values = older(whole.state_dict())
    if "Adam" not in kind and kind not in ("Adagrad", "Adafactor"):
        del values["numbers"]["t"]
    half = [nn.Parameter(ndl.Tensor(p.numpy())) for p in params]
    other = type(whole)(
        half, lr=0.7, **{n: v for n, v in (KINDS | OWN)[kind].items() if "deco" in n}
    )
    other.load_state_dict(values)
    take(whole, params, 2, first=3), take(other, half, 2, first=3)
    for a, b in zip(params, half, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_files_without_a_count_are_refused():
    adam, params, _ = new("Adam")
    take(adam, params, 2)
    values = older(adam.state_dict())
    del values["numbers"]["t"]
    with pytest.raises(ValueError, match="Adam: parameter 0 lacks 'step'"):
        adam.load_state_dict(values)


def test_momentum_that_begins_late_begins_at_the_gradient():
    optimizer, params, _ = new("SGD", 1, momentum=0.0)
    take(optimizer, params, 2)
    optimizer.momentum = 0.9
    take(optimizer, params, 1, first=2)
    np.testing.assert_array_equal(optimizer.state[0]["u"].numpy(), gradient(2, 0))


def test_betas_of_groups():
    _, (a, b), _ = new("Adam")
    adam = optim.Adam([{"params": [a]}, {"params": [b], "betas": (0.5, 0.75)}])
    assert adam.param_groups[0]["betas"] == (0.9, 0.999)
    assert adam.param_groups[1]["betas"] == (0.5, 0.75)
    with pytest.raises(TypeError, match=r"Adam: betas 0\.5"):
        adam.param_groups[0]["betas"] = 0.5
    with pytest.raises(TypeError, match=r"Adam: betas 0\.9"):
        optim.Adam([a], 0.1, 0.9, 0.999)  # as the course's


def test_the_course_has_its_own_defaults():
    needle.course.install()
    try:
        optimizer, _, _ = new("Adam", lr=1.0)
        params = optimizer.params
        assert optim.Adam(params).lr == 0.01 and optim.Adam(params, 0.1, 0.5).beta1 == 0.5
        assert optim.AdamW(params).weight_decay == optim.AdamW(params).lr * 10 == 0.01
        sgd = optim.SGD(params, 0.1, 0.9, 0.2)
        assert (sgd.dampening, sgd.weight_decay, optim.SGD(params).lr) == (None, 0.2, 0.01)
    finally:
        needle.course.uninstall()
    assert optim.SGD(params).dampening == 0.0 and optim.Adam(params).lr == 0.001


@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("norm", [0.5, 1.0, 2.0, 3.0, float("inf")])
def test_a_norm_of_gradients_shows_a_nan_anywhere(norm, where, device):
    params = [ndl.Tensor(np.ones(2), device=device) for _ in range(3)]
    for i, param in enumerate(params):
        bad = [1.0, float("nan")] if i == where else [3.0, 2.0]
        param.grad = ndl.Tensor(bad, device=device, requires_grad=False)
    with pytest.raises(RuntimeError, match="is nan"):
        optim.clip_grad_norm(params, 1.0, norm, error_if_nonfinite=True)
    assert np.isnan(optim.clip_grad_norm(params, 1.0, norm))
    optim.clip_grad_value(params, 0.5)
    assert all(np.isnan(param.grad.numpy()).any() for param in params)


@pytest.mark.parametrize("kind", ["Adafactor", "Muon"])
def test_a_nan_stays_one(kind):
    (value,) = (np.ones((3, 4)),)
    param = nn.Parameter(ndl.Tensor(value))
    param.grad = ndl.Tensor(np.where(np.eye(3, 4) > 0, np.nan, 1.0), requires_grad=False)
    getattr(optim, kind)([param]).step()
    assert np.isnan(param.numpy()).any()
