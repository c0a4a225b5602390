"""Convolution and pooling: ops and modules against PyTorch, forward and backward."""

import itertools

import numpy as np
import pytest

import needle as ndl
from needle import nn, ops
from needle.errors import ShapeError
from needle.testing import assert_close

KERNELS = (1, 2, 3, (3, 2))
STRIDES = (1, 2, (2, 3))
PADDINGS = (0, 1, (2, 0))
DILATIONS = (1, 2)
GROUPS = (1, 2, 4)


def tensor(values, device):
    return ndl.Tensor(values, device=device)


def torch_or_skip():
    return pytest.importorskip("torch")


def check_backward(torch, pairs, ours, theirs, length, rng):
    """Check that values are equal, and gradients for the same output gradient."""
    assert_close(ours.numpy(), theirs.detach().numpy(), length)
    weights = rng.normal(size=ours.shape).astype(ours.dtype)
    ours.backward(ndl.Tensor(weights, device=ours.device))
    theirs.backward(torch.tensor(weights))
    for mine, other in pairs:
        assert_close(mine, other.numpy(), ours.size, scale=1.0)


@pytest.mark.peer
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_conv_is_torchs(groups, dtype, device):
    torch = torch_or_skip()
    rng = np.random.default_rng(groups)
    sweep = itertools.product(KERNELS, STRIDES, PADDINGS, DILATIONS)
    for kernel, stride, padding, dilation in sweep:
        layer = nn.Conv(
            4, 8, kernel, stride, device=device, dtype=dtype,
            padding=padding, groups=groups, dilation=dilation,
        )  # fmt: skip
        twin = torch.nn.Conv2d(4, 8, kernel, stride, padding, dilation, groups)
        twin = twin.to(getattr(torch, dtype))
        twin.weight.data = torch.tensor(layer.weight.numpy().transpose(3, 2, 0, 1).copy())
        twin.bias.data = torch.tensor(layer.bias.numpy())
        values = rng.normal(size=(2, 4, 7, 6)).astype(dtype)
        x, z = tensor(values, device), torch.tensor(values, requires_grad=True)
        y, t = layer(x), twin(z)
        check_backward(torch, [], y, t, 36, rng)
        assert_close(x.grad.numpy(), z.grad.numpy(), 72, scale=1.0)
        weight = twin.weight.grad.numpy().transpose(2, 3, 1, 0)
        assert_close(layer.weight.grad.numpy(), weight, 84, scale=1.0)
        assert_close(layer.bias.grad.numpy(), twin.bias.grad.numpy(), 84, scale=1.0)


@pytest.mark.parametrize("kernel", [1, 3, 5, 7, (3, 5)])
def test_the_default_padding_keeps_extents(kernel, device):
    x = tensor(np.ones((1, 2, 8, 9), "float32"), device)
    assert nn.Conv(2, 3, kernel, device=device)(x).shape == (1, 3, 8, 9)
    assert nn.Conv(2, 3, kernel, 2, device=device)(x).shape == (1, 3, 4, 5)


def test_convs_parameters(device):
    np.random.seed(0)
    layer = nn.Conv(16, 8, 3, device=device)
    assert layer.weight.shape == (3, 3, 16, 8) and layer.bias.shape == (8,)
    bound = 1 / np.sqrt(16 * 9)
    weight, bias = np.abs(layer.weight.numpy()), np.abs(layer.bias.numpy())
    assert 0.9 * bound < weight.max() <= bound and bias.max() <= bound
    assert nn.Conv(16, 8, 3, bias=False, device=device).bias is None
    assert nn.Conv(16, 8, 3, groups=4, device=device).weight.shape == (3, 3, 4, 8)
    with pytest.raises(ValueError, match="groups 3"):
        nn.Conv(16, 8, 3, groups=3)
    with pytest.raises(ShapeError, match="conv"):
        layer(tensor(np.ones((1, 3, 4, 4), "float32"), device))


def test_the_ops_defaults_are_the_courses(device):
    x = tensor(np.ones((1, 4, 4, 2)), device)
    w = tensor(np.ones((3, 3, 2, 5)), device)
    assert ops.conv(x, w).shape == (1, 4, 4, 5)  # padding 1
    assert ops.conv(x, w, stride=2, padding=0).shape == (1, 1, 1, 5)


def test_gradients_of_conv_are_dilated_and_flipped_convolutions(device):
    """The textbook formula, written with other ops than the gradient's own."""
    rng = np.random.default_rng(3)
    x = tensor(rng.normal(size=(2, 6, 6, 3)), device)
    w = tensor(rng.normal(size=(3, 3, 3, 4)), device)
    g = tensor(rng.normal(size=(2, 3, 3, 4)), device)
    ops.conv(x, w, stride=2, padding=1).backward(g)
    spread = ops.dilate(g, (1, 2), 1)
    back = ops.transpose(ops.flip(w, (0, 1)), (2, 3))
    assert_close(x.grad.numpy(), ops.conv(spread, back, padding=1).numpy(), 36)
    columns = ops.permute(x, (3, 1, 2, 0))
    taps = ops.conv(columns, ops.permute(spread, (1, 2, 0, 3)), padding=1)
    expected = ops.permute(taps, (1, 2, 0, 3))[:3, :3]
    assert_close(w.grad.numpy(), expected.numpy(), 72)


def test_mixed_dtypes_promote(device):
    x = tensor(np.ones((1, 3, 3, 1), "float32"), device)
    w = tensor(np.ones((1, 1, 1, 1), "float64"), device)
    y = ops.conv(x, w, padding=0)
    y.sum().backward()
    assert (y.dtype, x.grad.dtype, w.grad.dtype) == ("float64", "float32", "float64")


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pools_are_torchs(kind, dtype, device):
    torch = torch_or_skip()
    rng = np.random.default_rng(1)
    for kernel, stride, padding in itertools.product((2, 3, (3, 2)), (None, 1, (2, 3)), (0, 1)):
        ours, theirs = {
            "max": (nn.MaxPool2d, torch.nn.MaxPool2d),
            "avg": (nn.AvgPool2d, torch.nn.AvgPool2d),
        }[kind]
        # As after ReLU, so that windows have several largest elements.
        values = np.maximum(rng.normal(size=(2, 3, 7, 6)), 0).astype(dtype)
        x, z = tensor(values, device), torch.tensor(values, requires_grad=True)
        y = ours(kernel, stride, padding)(x)
        t = theirs(kernel, stride, padding)(z)
        check_backward(torch, [], y, t, 9, rng)
        assert_close(x.grad.numpy(), z.grad.numpy(), 9, scale=1.0)


@pytest.mark.peer
def test_max_pool_dilates_as_torch(device):
    torch = torch_or_skip()
    values = np.random.default_rng(2).normal(size=(1, 2, 9, 8))
    x = tensor(values, device)
    y = nn.MaxPool2d(2, 1, 1, dilation=(2, 3))(x)
    t = torch.nn.MaxPool2d(2, 1, 1, dilation=(2, 3))(torch.tensor(values))
    np.testing.assert_array_equal(y.numpy(), t.numpy())


def test_max_pool_keeps_nan(device):
    values = np.zeros((1, 4, 4, 1))
    values[0, 1, 1, 0] = np.nan
    y = ops.max_pool(tensor(values, device), 2).numpy()
    assert np.isnan(y[0, 0, 0, 0]) and not np.isnan(y[0, 1, 1, 0])


@pytest.mark.parametrize("stride", [(1, 1), (2, 3), (5, 1)])
@pytest.mark.parametrize("padding", [(0, 0), (2, 1)])
def test_threads_share_the_rows_of_one_image(stride, padding):
    """Windows across the border of two threads' rows count for both."""
    rng = np.random.default_rng(0)
    size, kernel = (41, 40), (4, 3)
    op = ops.ConvInput(size, stride, padding)
    shape = ops.Conv(stride, padding).output((1, *size, 32), (*kernel, 32, 16))
    g = rng.integers(-3, 4, shape).astype(np.float32)
    w = rng.integers(-3, 4, (*kernel, 32, 16)).astype(np.float32)
    found = ops.conv_input(ndl.Tensor(g), ndl.Tensor(w), size, stride, padding)
    np.testing.assert_array_equal(found.numpy(), op.reference(g, w))


def test_padding_mode_is_checked():
    with pytest.raises(ValueError, match=r"Conv2d: padding_mode 'mirror' is not one of"):
        nn.Conv2d(1, 1, 3, padding_mode="mirror")
    with pytest.raises(ValueError, match="ConvTranspose1d: padding_mode 'circular'"):
        nn.ConvTranspose1d(1, 1, 3, padding_mode="circular")
    layer = nn.Conv1d(1, 1, 3, padding=3, padding_mode="reflect")
    with pytest.raises(ShapeError, match=r"padding 3 in mode 'reflect' .* 3"):
        layer(ndl.Tensor(np.zeros((1, 1, 3), np.float32)))
