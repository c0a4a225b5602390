"""Normalization, activations, embedding and losses against PyTorch, forward and backward."""

import numpy as np
import pytest

import needle as ndl
from needle import nn, ops
from needle.errors import ShapeError
from needle.testing import assert_close


def tensor(values, device):
    return ndl.Tensor(values, device=device)


def compare(torch, ours, theirs, values, device, length, extra=((), ())):
    """Draw new parameters, equal on both sides, and compare results and all gradients."""
    rng = np.random.default_rng(9)
    dtype = values.dtype.name
    theirs = theirs.to(getattr(torch, dtype))
    others = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        drawn = rng.normal(size=parameter.shape).astype(dtype)
        parameter.data = ndl.Tensor(drawn, device=device)
        others[name].data = torch.tensor(drawn)
    x, z = tensor(values, device), torch.tensor(values, requires_grad=True)
    y, t = ours(x, *extra[0]), theirs(z, *extra[1])
    assert_close(y.numpy(), t.detach().numpy(), length)
    weights = rng.normal(size=y.shape).astype(dtype)
    y.backward(ndl.Tensor(weights, device=device))
    t.backward(torch.tensor(weights))
    assert_close(x.grad.numpy(), z.grad.numpy(), length, scale=1.0)
    for name, parameter in ours.named_parameters():
        assert_close(parameter.grad.numpy(), others[name].grad.numpy(), length, scale=1.0)


@pytest.mark.peer
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (1, 2, 1, 3), (2, 1, 4, 1)])
def test_batch_norm_2d_is_torchs(shape, training, dtype, device):
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).normal(1, 2, shape).astype(dtype)
    ours = nn.BatchNorm2d(shape[1], momentum=0.3, device=device, dtype=dtype)
    theirs = torch.nn.BatchNorm2d(shape[1], momentum=0.3).to(getattr(torch, dtype))
    for _ in range(2):  # running statistics other than the first
        warm = np.random.default_rng(1).normal(2, 3, shape).astype(dtype)
        ours(tensor(warm, device)), theirs(torch.tensor(warm))
    ours.train(training), theirs.train(training)
    count = values.size // shape[1]
    compare(torch, ours, theirs, values, device, count**2)
    assert_close(ours.running_mean.numpy(), theirs.running_mean.numpy(), count)
    assert_close(ours.running_var.numpy(), theirs.running_var.numpy(), count**2)


def test_batch_norm_refuses_other_channels(device):
    with pytest.raises(ShapeError, match=r"BatchNorm2d: .*\(2, 4, 3, 3\).*dim=3"):
        nn.BatchNorm2d(3, device=device)(tensor(np.ones((2, 4, 3, 3), "float32"), device))
    with pytest.raises(ShapeError, match=r"BatchNorm1d: .*\(2, 3, 1, 1\)"):
        nn.BatchNorm1d(3, device=device)(tensor(np.ones((2, 3, 1, 1), "float32"), device))


def test_batch_norm_in_eval_mode_is_one_product_and_one_sum(device):
    """Folding batch norm into the preceding weights relies on this."""
    norm = nn.BatchNorm2d(3, device=device, dtype="float64").eval()
    rng = np.random.default_rng(2)
    for name, value in norm.state_dict().items():
        drawn = rng.uniform(0.5, 2, value.shape)
        norm.load_state_dict({name: drawn}, strict=False)
    x = rng.normal(size=(2, 3, 4, 4))
    s = {name: value.numpy().reshape(3, 1, 1) for name, value in norm.state_dict().items()}
    scale = s["weight"] / np.sqrt(s["running_var"] + norm.eps)
    expected = x * scale + (s["bias"] - s["running_mean"] * scale)
    np.testing.assert_allclose(norm(tensor(x, device)).numpy(), expected, rtol=1e-12)


@pytest.mark.peer
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("groups", "shape"), [(1, (2, 4, 3, 3)), (2, (2, 4, 3)), (3, (1, 6, 2, 5))]
)
def test_group_norm_is_torchs(groups, shape, dtype, device):
    torch = pytest.importorskip("torch")
    ours = nn.GroupNorm(groups, shape[1], device=device, dtype=dtype)
    theirs = torch.nn.GroupNorm(groups, shape[1])
    values = np.random.default_rng(3).normal(1, 2, shape).astype(dtype)
    compare(torch, ours, theirs, values, device, 400)


def test_group_norm_refuses_what_does_not_divide(device):
    with pytest.raises(ValueError, match="num_groups 3"):
        nn.GroupNorm(3, 4)
    with pytest.raises(ShapeError, match="GroupNorm"):
        nn.GroupNorm(2, 4, device=device)(tensor(np.ones((2, 3), "float32"), device))


@pytest.mark.peer
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["GELU", "SiLU", "ReLU", "Tanh", "Sigmoid"])
def test_activations_are_torchs(name, dtype, device):
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(4).normal(0, 3, (5, 7)).astype(dtype)
    compare(torch, getattr(nn, name)(), getattr(torch.nn, name)(), values, device, 4)


@pytest.mark.peer
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_embedding_is_torchs(dtype, device):
    torch = pytest.importorskip("torch")
    ours = nn.Embedding(6, 3, device=device, dtype=dtype)
    weight = torch.tensor(ours.weight.numpy(), requires_grad=True)
    index = np.array([[0, 5, 5], [2, 0, 5]])
    y = ours(ndl.Tensor(index, device=device))
    t = torch.nn.functional.embedding(torch.tensor(index), weight)
    np.testing.assert_array_equal(y.numpy(), t.detach().numpy())
    grad = np.random.default_rng(5).normal(size=y.shape).astype(dtype)
    y.backward(ndl.Tensor(grad, device=device))
    t.backward(torch.tensor(grad))
    assert_close(ours.weight.grad.numpy(), weight.grad.numpy(), 3)


def test_embedding_refuses_rows_it_has_not(device):
    layer = nn.Embedding(4, 2, device=device)
    with pytest.raises(IndexError, match="4"):
        layer(ndl.Tensor(np.array([4]), device=device))


@pytest.mark.peer
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_is_torchs(reduction, smoothing, dtype, device):
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(6).normal(0, 5, (6, 4)).astype(dtype)
    y = np.array([0, 1, 2, 3, 0, 1])
    extra = ((ndl.Tensor(y, device=device),), (torch.tensor(y),))
    ours = nn.CrossEntropyLoss(reduction, label_smoothing=smoothing)
    theirs = torch.nn.CrossEntropyLoss(reduction=reduction, label_smoothing=smoothing)
    compare(torch, ours, theirs, values, device, 24, extra)


@pytest.mark.peer
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_mean_squared_error_is_torchs(reduction, device):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    values, y = rng.normal(size=(3, 4)), rng.normal(size=(3, 4))
    extra = ((ndl.Tensor(y, device=device),), (torch.tensor(y),))
    compare(
        torch,
        nn.MSELoss(reduction),
        torch.nn.MSELoss(reduction=reduction),
        values,
        device,
        12,
        extra,
    )


def test_losses_refuse_what_does_not_fit(device):
    x = tensor(np.ones((2, 3)), device)
    with pytest.raises(ShapeError, match="cross_entropy"):
        nn.CrossEntropyLoss()(x, ndl.Tensor(np.array([0, 1, 2]), device=device))
    with pytest.raises(ShapeError, match="mse_loss"):
        nn.MSELoss()(x, tensor(np.ones((2, 1)), device))
    with pytest.raises(ValueError, match="reduction 'max'"):
        nn.MSELoss("max")
    with pytest.raises(ValueError, match="label_smoothing"):
        nn.CrossEntropyLoss(label_smoothing=2)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Conv(2, 3, 3), lambda: nn.MaxPool2d(2), lambda: nn.AvgPool2d(2),
        lambda: nn.BatchNorm2d(2), lambda: nn.GroupNorm(1, 2), lambda: nn.Embedding(3, 2),
        lambda: nn.Transformer(4, 4, 1), lambda: nn.MSELoss(), lambda: nn.CrossEntropyLoss(),
    ],
)  # fmt: skip
def test_modules_say_what_they_are(layer):
    module = layer()
    assert repr(module).startswith(f"{type(module).__name__}(")
    assert (type(module).__doc__ or "").strip()


@pytest.mark.parametrize("shape", [(1, 5), (1, 1, 3), (7, 2)])
def test_batch_norm_s_gradient_of_what_does_not_vary_is_nothing(shape):
    """The gradient is 0 however large the output gradient: eps of 1e-5 would amplify rounding
    errors 300 times."""
    x = ndl.Tensor(np.full(shape, 0.3, "float32"))
    x.requires_grad = True
    weight, bias = (ndl.Tensor(np.full(shape[-1], 1.7, "float32")) for _ in "wb")
    y = ops.BatchNormTrain(axis=-1)(x, weight, bias)[0]
    (y * 1234.567).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 0)
