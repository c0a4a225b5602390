"""What TVM would fold to a constant: not where it is none, and where it is, in bfloat16 as well."""

import numpy as np
import pytest

import needle_tvm
from needle import ops
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.together import together

NUMBERS = np.array([[np.inf, np.nan, -np.inf, -0.0, 1.0, 2.0, -3.0, 0.5] * 4], "float32")

# What the rules of integers would make something else of.
FUNCTIONS = {
    "x - x": lambda x: x - x,
    "rounded off": lambda x: ((x + 4096.0) - 4096.0, (x * 1e-4 + 1.0) - 1.0 + x),
    "a sum less a part": lambda x: (x + ops.exp(x)) - ops.exp(x),
    "a sum less the other part": lambda x: (x + ops.exp(x)) - x,
    "Kahan's correction": lambda x: ((x + 300.0) - x) - 300.0,
    "equals": lambda x: ((x + 1) == (x + 1), (x * 2) != (x * 2), ops.maximum(x + 1, x + 1)),
    "a choice less a part": lambda x: (ops.maximum(x, x * 2) - x, ops.where(x > 0, x, 1 - x) - x),
    "a function that tells NaN": lambda x: (ops.tanh(x) - x, ops.erf(x) - x, ops.relu(x) - x),
    "of what is no number": lambda x: ops.where(x == x, x + 1, x) * 0,
    "a sum less itself": lambda x: (x + 1) - (x + 1) + x,
    "functions": lambda x: ops.exp(x) - ops.exp(x),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("stage", ["noopt", pytest.param("fused", marks=pytest.mark.slow), "tuned"])
def test_arithmetic_of_floats_is_carried_out_as_written(stage, dtype):
    x = tensor(NUMBERS).astype(dtype)

    def every(x):
        given = (function(x) for function in FUNCTIONS.values())
        return [each if isinstance(each, tuple) else (each,) for each in given]

    found = needle_tvm.compile(every, x, stage=stage, threads=1, check=False)(x)
    eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype, np.finfo(np.float32).eps)
    for name, ones, others in zip(FUNCTIONS, found, every(x), strict=True):
        for one, other in zip(ones, others, strict=True):
            one, other = (each.numpy().astype("float64") for each in (one, other))
            # tanh, erf and exp: a few steps of rounding, of values up to 8.
            np.testing.assert_allclose(one, other, rtol=0, atol=32 * eps, err_msg=name)


@pytest.mark.parametrize("stage", ["noopt", "fused", "tuned"])
def test_a_constant_of_bfloat16_is_stored_in_vectors(stage, rng):
    cases = []
    for columns in (1, 31, 32, 50):
        x = tensor(rng.uniform(-1, 1, (3, columns))).astype("bfloat16")
        cases.append((lambda x: (ops.abs(x) + 0.5) ** 0, [x]))
    for found, _ in together(cases, stage=stage, threads=1):
        np.testing.assert_array_equal(found.astype("float32"), np.ones(found.shape))


REPEATED = {
    "moved": lambda x: ops.broadcast_to(x, (3, 32)),
    "rounded": lambda x: ops.broadcast_to(x + 1, (3, 32)),
    "a function": lambda x: ops.broadcast_to(ops.exp(x), (3, 32)),
    "rows": lambda x: ops.broadcast_to(ops.reshape(x + x, (3, 1)), (3, 50)),
    "with an outer one": lambda x: ops.broadcast_to(x, (2, 3, 64)) * 1,
}


@pytest.mark.parametrize("threads", [1, 2])
def test_one_bfloat16_is_stored_in_many_places(threads, rng):
    cases = []
    for name, function in REPEATED.items():
        x = tensor(rng.uniform(-1, 1, (3, 1) if name == "rows" else (1, 1))).astype("bfloat16")
        cases.append((function, [x]))
    for name, (found, expected) in zip(REPEATED, together(cases, threads=threads), strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.filterwarnings("ignore:")
def test_a_variance_of_no_elements(correction):
    x = tensor(np.zeros((4, 2, 0), "float32"))

    def var(x):
        return ops.Var(axes=(-1,), keepdims=True, correction=correction)(x)

    compiled = needle_tvm.compile(var, x, threads=1)
    np.testing.assert_array_equal(compiled(x).numpy(), var(x).numpy())


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("stage", ["noopt", "tuned"])
def test_numbers_beyond_the_dtype_are_infinite(stage, dtype, recwarn):
    x = tensor(np.array([1.0, -2.0, 3e4])).astype(dtype)

    def both(x):
        return x / 1e40, x * 1e40, x + 1e40, 1e40 - x, x / -1e300, ops.maximum(x, x / 1e39)

    for found, expected in zip(needle_tvm.compile(both, x, stage=stage)(x), both(x), strict=True):
        found, expected = (each.numpy().astype("float64") for each in (found, expected))
        np.testing.assert_allclose(found, expected, rtol=2.0**-7 if dtype == "bfloat16" else 1e-6)
    assert not recwarn.list


@pytest.mark.parametrize("stage", ["fused", "tuned"])
def test_what_stands_inside_functions_that_look_alike_is_kept_too(stage):
    """The first function has another difference than the second, which alone is of equals."""
    x = tensor(NUMBERS[0])
    found = needle_tvm.compile(
        lambda x: ops.exp(x[1:] - x[:-1]) + ops.exp(x[1:] - x[1:]), x, stage=stage, check=False
    )(x)
    with np.errstate(invalid="ignore"):
        expected = np.exp(np.diff(NUMBERS[0])) + np.exp(NUMBERS[0][1:] - NUMBERS[0][1:])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
