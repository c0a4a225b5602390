"""Hooks on gradients, kept gradients and anomaly mode: drawn programs beside PyTorch's."""

import inspect

import numpy as np
import pytest

import needle as ndl
from needle import nn
from needle.errors import ShapeError

STEPS = {
    "mul": lambda x, y: x * y,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "exp": lambda x, y: (x * 0.3).exp(),
    "tanh": lambda x, y: x.tanh(),
    "view": lambda x, y: x.reshape((3, 2)).reshape((2, 3)),
}
HOOKS = {
    "scale": lambda g: g * 3,
    "see": lambda g: None,
    "square": lambda g: g * g,
    "same": lambda g: g,
}


def program(make, seed, seen):
    """A drawn graph over two leaves, with drawn hooks and kept gradients. Returns its tensors."""
    rng = np.random.default_rng(seed)
    tensors = [make(rng.normal(size=(2, 3))) for _ in range(2)]
    handles = []
    for number in range(8):
        if number:
            x, y = (tensors[i] for i in rng.integers(0, len(tensors), 2))
            tensors.append(STEPS[rng.choice([*STEPS])](x, y))
        for _ in range(rng.integers(0, 3)):
            each, hook = tensors[rng.integers(0, len(tensors))], HOOKS[rng.choice([*HOOKS])]
            handles.append(each.register_hook(lambda g, hook=hook: (seen.append(1), hook(g))[1]))
        if rng.random() < 0.5:
            tensors[rng.integers(0, len(tensors))].retain_grad()
        if rng.random() < 0.2 and handles:
            handles.pop().remove()
    tensors.append(sum(tensors[2:], tensors[0]).sum())
    return tensors


@pytest.mark.peer
@pytest.mark.parametrize("seed", range(40))
def test_gradients_pass_through_hooks_as_in_pytorch(seed):
    torch = pytest.importorskip("torch")
    counts = [], []
    mine = program(ndl.Tensor, seed, counts[0])
    other = program(lambda v: torch.tensor(v, requires_grad=True), seed, counts[1])
    for _ in range(2):  # the second pass adds
        mine[-1].backward(retain_graph=True), other[-1].backward(retain_graph=True)
        for ours, theirs in zip(mine, other, strict=True):
            assert ours.retains_grad == theirs.retains_grad
            grad = theirs.grad if theirs.is_leaf or theirs.retains_grad else None
            assert (ours.grad is None) == (grad is None)
            if grad is not None:
                np.testing.assert_allclose(ours.grad.numpy(), grad.numpy(), rtol=1e-12, atol=1e-14)
    assert len(counts[0]) == len(counts[1])
    arrays = [x.grad.numpy().copy() for x in mine if x.grad is not None]
    for x in mine[:2]:  # each gradient has memory of its own
        x.grad.cached_data[...] = 7.0
    kept = [x for x in mine if x.grad is not None and not x.is_leaf]
    for x, array in zip(kept, arrays[-len(kept) :] if kept else [], strict=True):
        np.testing.assert_array_equal(x.grad.numpy(), array)


def test_a_hook_ends_with_its_context():
    x = ndl.Tensor([1.0, 2.0])
    with x.register_hook(lambda g: g * 10) as hook:
        (x * x).sum().backward()
    assert x.grad.tolist() == [20.0, 40.0]
    hook.remove()
    x.grad = None
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_a_gradient_that_is_not_accumulated_calls_no_hook_after_it():
    x, calls = ndl.Tensor([1.0, 2.0]), []
    x.register_post_accumulate_grad_hook(lambda tensor: calls.append(tensor is x))
    (found,) = ndl.autograd.grad((x * x).sum(), [x])
    assert found.tolist() == [2.0, 4.0] and not calls
    (x * x).sum().backward()
    assert calls == [True]


def test_an_optimizer_may_step_in_the_backward_pass():
    """PyTorch's recipe: a gradient is used and dropped as soon as it is there."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    twin = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    twin.load_state_dict(model.state_dict())
    own = {id(p): ndl.optim.Adam([p], lr=0.1) for p in model.parameters()}
    whole = ndl.optim.Adam(twin.parameters(), lr=0.1)

    def step(parameter):
        own[id(parameter)].step()
        own[id(parameter)].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    x = ndl.Tensor(np.random.default_rng(0).normal(size=(5, 3)).astype("float32"))
    for _ in range(3):
        model(x).sum().backward()
        assert all(p.grad is None for p in model.parameters())
        whole.zero_grad()
        twin(x).sum().backward()
        whole.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_hook_is_part_of_a_graph_of_gradients():
    x = ndl.Tensor([3.0])
    y = x * x
    y.register_hook(lambda g: g * x)
    (first,) = ndl.autograd.grad(y.sum(), [x], create_graph=True)  # 2 x * x
    (second,) = ndl.autograd.grad(first.sum(), [x])
    assert first.item() == 18.0 and second.item() == 12.0


def test_what_hooks_cannot_do_is_named():
    x, y = ndl.Tensor([1.0]), ndl.Tensor([1.0], requires_grad=False)
    for call, error, text in (
        (lambda: y.register_hook(abs), RuntimeError, "register_hook: this .* not require"),
        (lambda: y.retain_grad(), RuntimeError, "retain_grad: this"),
        (lambda: x.register_hook(3), TypeError, "register_hook: hook is a int"),
        (
            lambda: (x * 2).register_post_accumulate_grad_hook(abs),
            RuntimeError,
            "register_post_accumulate_grad_hook: .* not a leaf",
        ),
    ):
        with pytest.raises(error, match=text):
            call()
    for new, error, text in (
        (lambda g: 3, TypeError, "returned a int"),
        (lambda g: ndl.zeros(2), ShapeError, r"shape \(2,\) .* \(1,\)"),
        (lambda g: g.astype("float64"), TypeError, "float64"),
    ):
        with x.register_hook(new), pytest.raises(error, match=text):
            (x * x).sum().backward()
        assert x.grad is None


# Anomaly mode

BAD = {
    "sqrt": (lambda x: ndl.sqrt(x), [0.0, 1.0], "infinite"),
    "log": (lambda x: ndl.log(x), [0.0, 1.0], "infinite"),
    "divide": (lambda x: ndl.ones(2) / x, [0.0, 1.0], "infinite"),
    "power_scalar": (lambda x: x**0.5, [0.0, 1.0], "infinite"),
    "multiply": (lambda x: x * ndl.Tensor([float("inf"), 1.0]), [1.0, 1.0], "infinite"),
    "layer_norm": (lambda x: nn.LayerNorm(2, eps=0.0)(x), [1.0, 1.0], "NaN"),
}


@pytest.mark.parametrize("name", BAD)
def test_anomaly_mode_names_the_op_and_the_line(name):
    call, values, what = BAD[name]
    x = ndl.Tensor(values)
    with ndl.autograd.detect_anomaly():
        bad = call(x * 2 / 2)  # lines before and after pass finite gradients
        loss = (bad * 1).sum()
        with pytest.raises(RuntimeError) as caught:
            loss.backward(retain_graph=True)
    text = str(caught.value)
    if name == "layer_norm":  # made of other ops
        assert "test_gradient_hooks.py" in text
    else:
        assert f"the gradient of {name} for its input" in text and what in text
        first = inspect.getsource(call).split(":", 1)[1].split(",")[0].split("]")[0].strip()
        assert "test_gradient_hooks.py" in text and first in text
    assert x.grad is None
    loss.backward()  # without the mode nothing is checked
    assert not np.isfinite(x.grad.numpy()).all()


def test_anomaly_mode_does_not_change_results_or_outlive_its_context():
    x = ndl.Tensor(np.random.default_rng(0).normal(size=(4, 3)))
    model = nn.Sequential(nn.Linear(3, 5, dtype="float64"), nn.GELU(), nn.LayerNorm(5))
    model.to(dtype="float64")

    def gradients():
        model.zero_grad()
        model(x).sum().backward()
        return [p.grad.numpy() for p in model.parameters()]

    plain = gradients()
    with ndl.autograd.detect_anomaly():
        assert ndl.autograd.is_anomaly_enabled()
        with ndl.autograd.set_detect_anomaly(False):
            assert not ndl.autograd.is_anomaly_enabled()
        checked = gradients()
    assert not ndl.autograd.is_anomaly_enabled()
    for a, b in zip(plain, checked, strict=True):
        np.testing.assert_array_equal(a, b)
    ndl.autograd.set_detect_anomaly(True, check_nan=False)
    try:
        z = ndl.Tensor([0.0])
        ndl.sqrt(z).sum().backward()  # not checked
        assert np.isinf(z.grad.numpy()).all()
    finally:
        ndl.autograd.set_detect_anomaly(False)


def test_an_anomaly_context_may_be_entered_within_itself():
    context = ndl.autograd.detect_anomaly()
    with context:
        with context:
            pass
        assert ndl.autograd.is_anomaly_enabled()
    assert not ndl.autograd.is_anomaly_enabled()


def test_anomaly_mode_without_the_forward_pass_and_with_a_bad_seed():
    x = ndl.Tensor([0.0])
    y = ndl.sqrt(x)
    with ndl.autograd.detect_anomaly():
        with pytest.raises(RuntimeError, match="sqrt was called before anomaly mode was on"):
            y.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="that backward begins with has 1 NaN of 1"):
            y.backward(ndl.Tensor([float("nan")]))


def test_compiled_gradients_have_the_effect_of_hooks():
    pytest.importorskip("tvm")
    import needle_tvm

    model, x = nn.Linear(3, 2), ndl.Tensor(np.ones((4, 3), "float32"))
    model.weight.register_hook(lambda g: g * 10)

    def gradients(x):
        y = model(x)
        y.register_hook(lambda g: g.clip(-0.1, 0.1))
        (y * y).sum().backward()
        return model.weight.grad, model.bias.grad

    compiled = needle_tvm.jit(gradients)(x)
    for ours, theirs in zip(compiled, gradients(x), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)


def test_hooks_and_anomaly_mode_within_checkpointed_blocks_and_transforms():
    x, seen = ndl.Tensor([0.5, 1.0]), []

    def block(x):
        y = x.exp()
        y.register_hook(lambda g: (seen.append(g.tolist()), g * 2)[1])
        return (y * y).sum()

    block(x).backward()
    plain = x.grad.tolist()
    x.grad = None
    ndl.checkpoint(block, x).backward()
    assert x.grad.tolist() == plain and len(seen) == 2 and seen[0] == seen[1]
    zero = ndl.Tensor([0.0])
    with ndl.autograd.detect_anomaly():
        with pytest.raises(RuntimeError, match=r"gradient of sqrt .* at test_gradient_hooks\.py"):
            ndl.func.grad(lambda x: x.sqrt().sum())(zero)
        with pytest.raises(RuntimeError, match=r"gradient of sqrt .* at test_gradient_hooks\.py"):
            ndl.checkpoint(lambda x: x.sqrt().sum(), zero).backward()
