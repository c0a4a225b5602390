"""Cheap values that each reader computes for itself."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle_tvm.lower import pipeline
from needle_tvm.tir.functions import calls_of
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.modules import AVX512, Spec, needle_module

X, COLUMN, NUMBER = Spec(64, 32), Spec(64, 1), Spec()
LEFT = Spec(64, 64)


def kernels(function, *specs):
    """The names of the kernels of a fused function."""
    stage = pipeline.of(AVX512, "fused")
    return calls_of(pipeline.run(stage.graph, needle_module(function, *specs), AVX512), "main")


def averages(clipped, m, v):
    return m * 0.9 + clipped * 0.1, v * 0.99 + clipped * clipped * 0.01


@pytest.mark.parametrize(
    ("function", "specs"),
    [
        (lambda g, scale, m, v: averages(g * scale, m, v), (X, NUMBER, X, X)),
        (lambda g, scale, m, v: averages(g * scale, m, v), (X, COLUMN, X, X)),
    ],
    ids=["by a number", "by a column"],
)
def test_a_clipped_gradient_is_not_written(function, specs):
    assert len(kernels(function, *specs)) == 2


def test_a_kernel_that_reads_two_cheap_values():
    def function(g, h, m):
        one, other = g * 0.5, h * 0.25
        return one + other * m, one - m, other * 3.0 - m

    assert len(kernels(function, X, X, X)) == 3


def test_a_product_with_other_readers():
    def function(a, b, m, v):
        product = a @ b
        return (*averages(product * 0.5, m, v), product.sum(0))

    # The product, its sum, and each average.
    assert len(kernels(function, LEFT, X, X, X)) == 4


@pytest.mark.parametrize(
    ("function", "specs", "count"),
    [
        (lambda g, m, v: averages(g.exp(), m, v), (X, X, X), 3),  # a function
        (lambda g, m, v: averages(ndl.clip(g, -1.0, 1.0), m, v), (X, X, X), 3),  # two steps
        (lambda g, h, m, v: averages(g * h, m, v), (X, X, X, X), 3),  # two arrays to read again
        (lambda a, b, m, v: averages((a @ b) * 0.5, m, v), (LEFT, X, X, X), 3),  # an epilogue
        (lambda g, m: (g * 0.5, m + g * 0.5), (X, X), 2),
        (lambda g, m: (lambda c: (c @ m, c + 1.0))(g * 0.5), (LEFT, X), 3),  # read by a product
    ],
    ids=["a function", "two steps", "two arrays", "an epilogue", "a result", "read by a product"],
)
def test_what_stays(function, specs, count):
    assert len(kernels(function, *specs)) == count


@pytest.mark.parametrize("shape", [(1,), (3, 5), (17, 64)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
def test_the_values_are_eager_ones(shape, dtype):
    draw = np.random.default_rng(0)
    g, m, v = (tensor(draw.integers(-4, 5, shape)).astype(dtype) for _ in range(3))
    compiled = needle_tvm.compile(lambda *x: small(*x), g, m, v)
    for one, other in zip(compiled(g, m, v), small(g, m, v), strict=True):
        # Small integers: exact in every dtype.
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def small(g, m, v):
    clipped = g * 2
    return m * 3 + clipped, v - clipped * clipped
