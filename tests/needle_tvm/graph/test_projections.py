"""Norms and products of one tensor that become one: the numbers."""

import numpy as np
import pytest

import needle_tvm
from needle import nn, ops
from needle.trace import trace
from needle_tvm.frontend import lowering
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import calls_of
from tests.needle_tvm.conftest import tensor


@pytest.fixture(scope="module")
def target():
    return resolve("cpu", 2).to_tvm()


def values(*shape, seed=3):
    return tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def norm(size, seed):
    layer = nn.LayerNorm1d(size)
    layer.weight.data, layer.bias.data = values(size, seed=seed), values(size, seed=seed + 1)
    return layer


def split(x, heads):
    return ops.reshape(x, (*x.shape[:-1], heads, x.shape[-1] // heads))


def check(fn, *inputs):
    found = needle_tvm.compile(fn, *inputs, stage="tuned")(*inputs)
    for one, other in zip(found, fn(*inputs), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-4)


def branches(count, size=12, norms=True, bias=False, columns=(6, 8, 6)):
    """`count` projections of one input, each with a norm of its own, split into heads."""
    layers = [nn.Linear(size, columns[i], bias=bias) for i in range(count)]
    before = [norm(size, 10 * i) if norms else nn.Identity() for i in range(count)]

    def fn(x):
        projected = [layer(b(x)) for layer, b in zip(layers, before, strict=True)]
        return tuple(split(y, 2) for y in projected)

    return fn


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_norms_of_other_dtypes(dtype):
    norms, layers = ([made(12, dtype=dtype) for _ in "ab"] for made in (nn.LayerNorm1d, square))
    fn = lambda x: tuple(layer(one(x)) for layer, one in zip(layers, norms, strict=True))  # noqa: E731
    needle_tvm.compile(fn, values(2, 5, 12).astype(dtype), stage="tuned")  # which compares


def square(size, dtype):
    return nn.Linear(size, size, bias=False, dtype=dtype)


def test_norms_and_products_of_one_tensor():
    """With biases and without, of matrices and of batches of them; one that is read elsewhere."""
    one, two, layer = norm(12, 1), norm(12, 5), nn.Linear(12, 4, bias=False)

    def elsewhere(x):
        read = two(x)
        return layer(one(x)), layer(read), read

    of_norms, plain, biased = (
        branches(3, **options) for options in ({}, {"norms": False}, {"norms": False, "bias": True})
    )

    def every(x, y):
        return *of_norms(x), *elsewhere(y), *plain(x), *plain(y), *biased(x), *biased(y)

    check(every, values(2, 5, 12), values(3, 12))


def test_products_that_are_no_such_group():
    """Of what depends on no input; and with a number that is added to one column."""
    one, two, start = values(4, 8), values(4, 8, seed=4), tensor(np.zeros((1, 4), np.float32))
    weight = nn.Parameter(values(8, 1))

    def every(x, y):
        first = ops.relu(x + split(start @ one, 2))
        second = split(start @ ops.transpose(ops.transpose(two)), 2) + x
        return first, second, y @ weight + 2, ops.reshape(y @ weight + 2, (3,))

    check(every, values(1, 2, 4), values(3, 8))


def test_an_attention_layer_is_four_kernels(target):
    layer = nn.AttentionLayer(24, 3, 8)
    layer.eval()
    module = lowering.lower(trace(layer, values(2, 9, 24)), target, "tuned")
    called = [name.rstrip("0123456789") for name in calls_of(module, "main")]
    assert called == ["layer_norm", "fused_dense_add", "attention", "dense"]


def test_keys_from_elsewhere_share_what_they_can(rng):
    layer = nn.AttentionLayer(12, 2, 4, k_features=8, v_features=8, causal=False)
    layer.eval()
    q, k = values(2, 6, 12), values(2, 9, 8)
    found = needle_tvm.compile(layer, q, k, k, stage="tuned")(q, k, k).numpy()
    np.testing.assert_allclose(found, layer(q, k, k).numpy(), rtol=1e-4, atol=1e-4)
