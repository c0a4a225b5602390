"""Elementwise ops that are fused into long sums."""

import numpy as np
import pytest

import needle_tvm
from needle_tvm.lower import pipeline
from needle_tvm.tir.functions import calls_of
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.modules import AVX512, Spec, needle_module

LONG = Spec(64, 1024)


def kernels(function, *specs):
    """The names of the kernels of a fused function."""
    stage = pipeline.of(AVX512, "fused")
    return calls_of(pipeline.run(stage.graph, needle_module(function, *specs), AVX512), "main")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * x).sum(),
        lambda x: (x * 2.0 + 1.0).mean(),
        lambda x: x.relu().sum(1),
        lambda x: x.exp().sum(0),
    ],
)
def test_what_is_added_up_has_no_kernel_of_its_own(function):
    assert len(kernels(function, LONG)) == 1


def test_sums_of_sums():
    assert len(kernels(lambda x: ((x * x).mean(1) * 2.0).mean(), Spec(1024, 1024))) == 2


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: (x.sum() * 2.0,), 1),  # nothing before: what comes after is fused
        (lambda x: (x * x, (x * x).sum()), 2),  # read again
        (lambda x, y: ((x @ y) * 2.0).sum(), 2),  # a product with its epilogue, and a sum
    ],
    ids=["nothing before", "read again", "after a product"],
)
def test_what_stays(function, count):
    specs = [LONG, Spec(1024, 64)][: function.__code__.co_argcount]
    assert len(kernels(function, *specs)) == count


@pytest.mark.parametrize("shape", [(1,), (7, 13), (16, 1024), (3, 0), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32"])
def test_the_sums_are_those_of_numpy(shape, dtype):
    x = np.random.default_rng(0).integers(-1, 2, shape).astype("float32")

    def function(x):
        return (x * x + 1).sum(), (x * 2).sum(0)

    given = tensor(x).astype(dtype)
    found = needle_tvm.compile(function, given)(given)
    # Small integers: exact in every dtype but for the rounding of the last result.
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3}.get(dtype, 1e-6)
    for one, other in zip(found, ((x * x + 1).sum(), (x * 2).sum(0)), strict=True):
        np.testing.assert_allclose(one.numpy().astype("float64"), other, rtol=tolerance)
