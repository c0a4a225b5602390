"""What TVM would fold to a constant: not where it is none, and where it is, in bfloat16 as well."""

import numpy as np
import pytest

import needle_tvm
from needle import ops

from .conftest import tensor

NUMBERS = np.array([[np.inf, np.nan, -np.inf, -0.0, 1.0, 2.0, -3.0, 0.5] * 4], "float32")

FUNCTIONS = {
    "x - x": lambda x: x - x,
    "a sum less itself": lambda x: (x + 1) - (x + 1) + x,
    "functions": lambda x: ops.exp(x) - ops.exp(x),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("stage", ["noopt", "fused", "tuned"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_difference_of_equals_is_nan_where_these_are_infinite(name, stage, dtype):
    x = tensor(NUMBERS).astype(dtype)
    found = needle_tvm.compile(FUNCTIONS[name], x, stage=stage, threads=1, check=False)(x)
    expected = FUNCTIONS[name](x)
    found, expected = (each.numpy().astype("float64") for each in (found, expected))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("stage", ["noopt", "fused", "tuned"])
@pytest.mark.parametrize("columns", [1, 31, 32, 50])
def test_a_constant_of_bfloat16_is_stored_in_vectors(stage, columns, rng):
    x = tensor(rng.uniform(-1, 1, (3, columns))).astype("bfloat16")
    found = needle_tvm.compile(lambda x: (ops.abs(x) + 0.5) ** 0, x, stage=stage, threads=1)(x)
    np.testing.assert_array_equal(found.numpy().astype("float32"), np.ones((3, columns)))


REPEATED = {
    "moved": lambda x: ops.broadcast_to(x, (3, 32)),
    "rounded": lambda x: ops.broadcast_to(x + 1, (3, 32)),
    "a function": lambda x: ops.broadcast_to(ops.exp(x), (3, 32)),
    "rows": lambda x: ops.broadcast_to(ops.reshape(x + x, (3, 1)), (3, 50)),
    "with an outer one": lambda x: ops.broadcast_to(x, (2, 3, 64)) * 1,
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", REPEATED)
def test_one_bfloat16_is_stored_in_many_places(name, threads, rng):
    x = tensor(rng.uniform(-1, 1, (3, 1) if name == "rows" else (1, 1))).astype("bfloat16")
    found = needle_tvm.compile(REPEATED[name], x, threads=threads)(x)
    np.testing.assert_array_equal(found.numpy(), REPEATED[name](x).numpy())


@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.filterwarnings("ignore:")
def test_a_variance_of_no_elements(correction):
    x = tensor(np.zeros((4, 2, 0), "float32"))

    def var(x):
        return ops.Var(axes=(-1,), keepdims=True, correction=correction)(x)

    compiled = needle_tvm.compile(var, x, threads=1)
    np.testing.assert_array_equal(compiled(x).numpy(), var(x).numpy())
