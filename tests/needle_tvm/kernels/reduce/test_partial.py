"""Reductions as vectors of partial results, and last vectors moved back to fit into an axis."""

import numpy as np
import pytest

from needle.ops.activation import Gelu
from needle.ops.reduce import Max, Mean, Min, Summation
from needle.ops.softmax import LogSumExp
from needle_tvm._tvm.names import TE_NAMESPACE, te, tirx, tvm
from needle_tvm.kernels import cpu
from needle_tvm.kernels.reduce.cpu_nests import rewritten
from needle_tvm.kernels.reduce.cpu_partial import partial_results
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import NODES, module_of, nodes_in

TARGETS = [{"kind": "llvm", "mcpu": cpu} for cpu in ("x86-64-v2", "haswell")] + ["cpu"]
NEON = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}
EVERY_WIDTH = [*TARGETS[:2], {"kind": "llvm", "mcpu": "skylake-avx512"}, NEON]


def function(op, shape, dtype="float32"):
    x = te.placeholder(shape, dtype, name="x")
    return te.create_prim_func([x, op.emit_te(TE_NAMESPACE, x)])


def scheduled(op, shape, target="cpu", dtype="float32"):
    return cpu.schedule_function(function(op, shape, dtype), resolve(target, 2).to_tvm())


def run(op, x, target="cpu"):
    target = resolve(target, 2).to_tvm()
    fn = cpu.schedule_function(function(op, x.shape, x.dtype.name), target)
    with target:
        built = tvm.compile(module_of(fn), target=target)
    with np.errstate(all="ignore"):
        expected = np.asarray(op.reference(x))
    result = tvm.runtime.tensor(np.zeros_like(expected))
    built["main"](tvm.runtime.tensor(x), result)
    return result.numpy(), expected


# Shorter than a vector, whole vectors, one element more or less, longer than one vector of sums.
@pytest.mark.parametrize("length", [1, 7, 8, 15, 16, 17, 49, 63, 64, 197, 256, 1000, 1023, 4099])
@pytest.mark.parametrize(
    "op", [Summation(-1), Max(-1), Min(-1), LogSumExp(-1)], ids=lambda op: op.name
)
def test_rows_of_any_length(op, length, rng):
    x = rng.standard_normal((6, length)).astype(np.float32)
    found, expected = run(op, x)
    # Each sum has at most `length` roundings of values about as large as itself.
    eps = np.finfo(np.float32).eps
    np.testing.assert_allclose(found, expected, rtol=4 * eps, atol=eps * length)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("op", [Summation(1), Max(1)], ids=lambda op: op.name)
def test_every_width_of_vector(op, dtype, target, rng):
    x = rng.integers(-1000, 1000, (3, 101)).astype(dtype)  # sums of whole numbers are exact
    found, expected = run(op, x, target)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (1, 2), (0, 2), (0, 1, 2), (0, 1)], ids=str)
@pytest.mark.parametrize("shape", [(3, 7, 9), (2, 5, 33), (4, 8, 16), (2, 1, 20)], ids=str)
def test_any_axes(axes, shape, rng):
    x = rng.integers(-1000, 1000, shape).astype(np.float32)
    for op in (Summation(axes), Max(axes), Mean(axes, True)):
        found, expected = run(op, x)
        np.testing.assert_allclose(found, expected, rtol=2 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("place", [0, 5, 15, 16, 83, 84, 95, 99])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values_wherever_they_are(value, place, rng):
    x = rng.standard_normal((2, 100)).astype(np.float32)
    x[0, place] = value
    for op in (Max(-1), Min(-1), Summation(-1)):
        found, expected = run(op, x)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_row_of_minus_infinity_has_that_maximum():
    found, _ = run(Max(-1), np.full((2, 37), -np.inf, np.float32))
    np.testing.assert_array_equal(found, [-np.inf, -np.inf])


@pytest.mark.parametrize("shape", [(3, 7), (40, 100), (5,)], ids=str)
def test_what_is_no_long_reduction_along_memory_is_left_alone(shape):
    plain = function(Summation(0), shape)
    target = resolve("cpu", 2).to_tvm()
    assert rewritten(plain, [lambda block: partial_results(block, target)]).same_as(plain)


@pytest.mark.parametrize("shape", [(1001,), (16,), (17,), (3, 5, 37), (8, 9)], ids=str)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_elements_up_to_the_end_of_an_axis(shape, target, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    found, expected = run(Gelu(), x, target)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", EVERY_WIDTH, ids=lambda target: target["mcpu"])
@pytest.mark.parametrize("op", [Gelu(), Summation(-1), Max(-1)], ids=lambda op: op.name)
def test_no_vector_is_taken_apart(op, target):
    """A condition within a vectorised loop would make TVM run it lane by lane."""
    fn = scheduled(op, (64, 1001), target)
    for realize in nodes_in(fn.body, NODES.realize):
        assert isinstance(realize.predicate, tirx.IntImm)
    assert nodes_in(fn.body, NODES.loop)
    tvm.compile(module_of(fn), target=resolve(target, 2).to_tvm())
