"""Pooling with the arguments that PyTorch's has, beside PyTorch."""

import itertools

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle.nn import functional as F

SIZES = {1: (11,), 2: (7, 10), 3: (5, 6, 7)}


def drawn(axes, seed=0):
    return np.random.default_rng(seed).standard_normal((2, 3, *SIZES[axes])).astype("float32")


def gradients_agree(ours, theirs, x, tx, torch):
    weights = np.random.default_rng(1).standard_normal(ours.shape).astype("float32")
    (theirs * torch.from_numpy(weights)).sum().backward()
    (ours * ndl.Tensor(weights, requires_grad=False)).sum().backward()
    # A gradient is the sum of at most 27 shares.
    np.testing.assert_allclose(x.grad.numpy(), tx.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.peer
@pytest.mark.parametrize("axes", SIZES)
def test_the_largest_elements_and_their_places_are_torchs(axes):
    torch = pytest.importorskip("torch")
    name = f"max_pool{axes}d"
    tried = 0
    for k, s, p, d, ceil in itertools.product((2, 3), (1, 2, 3), (0, 1), (1, 2), (False, True)):
        values = drawn(axes)
        values[1, 0] = -np.inf  # as the padding
        x, tx = ndl.Tensor(values), torch.tensor(values, requires_grad=True)
        window = (k, s, p, d, ceil)
        expected, places = getattr(torch.nn.functional, name)(tx, *window, return_indices=True)
        largest, indices = getattr(F, name)(x, *window, return_indices=True)
        alone = getattr(F, name)(x, *window)
        for found in (largest, alone):
            np.testing.assert_array_equal(found.numpy(), expected.detach().numpy())
        np.testing.assert_array_equal(indices.numpy(), places.numpy())
        if p == 0:  # else the gradients of equal elements differ
            gradients_agree(alone, expected, x, tx, torch)
        tried += 1
    assert tried == 48


@pytest.mark.peer
@pytest.mark.parametrize("axes", SIZES)
def test_means_are_torchs(axes):
    torch = pytest.importorskip("torch")
    name = f"avg_pool{axes}d"
    divisors = (None,) if axes == 1 else (None, 5)
    kinds = itertools.product((2, 3), (1, 2, 3), (0, 1), (False, True), (False, True), divisors)
    for k, s, p, ceil, with_padding, divisor in kinds:
        x, tx = ndl.Tensor(drawn(axes)), torch.tensor(drawn(axes), requires_grad=True)
        window = (k, s, p, ceil, with_padding, *([divisor] if axes > 1 else []))
        expected, found = (
            getattr(torch.nn.functional, name)(tx, *window),
            getattr(F, name)(x, *window),
        )
        np.testing.assert_allclose(found.numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
        gradients_agree(found, expected, x, tx, torch)


FUNCTIONS = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1, 1, True, True),
    "mean": lambda x: F.avg_pool2d(x, 3, 2, 1, True, False),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_compiled_code_agrees(kind):
    x = ndl.Tensor(drawn(2), requires_grad=False)
    found, expected = needle_tvm.jit(FUNCTIONS[kind])(x), FUNCTIONS[kind](x)
    pair = isinstance(expected, tuple)
    for a, b in zip(found, expected, strict=True) if pair else [(found, expected)]:
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)


def test_partly_filled_windows_of_symbolic_images():
    rows = ndl.Dim("rows", min=4, max=30)
    pool = needle_tvm.jit(FUNCTIONS["mean"], dims={"x": {2: rows}})
    for size in (4, 5, 9, 12):
        x = ndl.Tensor(np.random.default_rng(size).random((1, 2, size, 6), "float32"))
        expected = FUNCTIONS["mean"](x).numpy()
        np.testing.assert_allclose(pool(x).numpy(), expected, rtol=1e-6)


def test_layers_pass_their_arguments_on():
    x = ndl.Tensor(drawn(2))
    largest, places = ndl.nn.MaxPool2d(3, 2, 1, return_indices=True, ceil_mode=True)(x)
    assert largest.shape == places.shape == (2, 3, 4, 6)
    assert places.dtype == "int64"
    mean = ndl.nn.AvgPool2d(3, 2, 1, ceil_mode=True, divisor_override=1)(x)
    np.testing.assert_allclose(
        mean[:, :, 1, 1].numpy(), x[:, :, 1:4, 1:4].sum((2, 3)).numpy(), 1e-5
    )


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: F.max_pool2d(x[0], 2), ndl.ShapeError, r"max_pool2d: x has shape \(3, 7, 10\)"),
        (lambda x: F.avg_pool1d(x, 2), ndl.ShapeError, r"not \(N, C, L\)"),
        (lambda x: F.avg_pool2d(x, 2, divisor_override=0), ValueError, "divisor_override"),
        (lambda x: ndl.nn.AvgPool2d(2, divisor_override=-1), ValueError, "divisor_override"),
    ],
)
def test_bad_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call(ndl.Tensor(drawn(2)))
