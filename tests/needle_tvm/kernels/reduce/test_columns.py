"""Reductions with results that lie side by side in memory."""

import numpy as np
import pytest

from needle.ops.reduce import Max, Mean, Min, Summation
from needle_tvm._tvm.names import TE_NAMESPACE, te, tirx, tvm
from needle_tvm.kernels import cpu
from needle_tvm.kernels.blocks import WRITTEN
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import NODES, module_of, nodes_in
from tests.needle_tvm.kernels.reduce.test_partial import EVERY_WIDTH, TARGETS, run, scheduled

OPS = [Summation(1), Max(1), Min(1), Mean(1)]


# Shorter than a vector, whole vectors, one element more or less, longer than a tile of vectors.
@pytest.mark.parametrize("length", [1, 3, 4, 7, 16, 17, 49, 127, 129, 300])
@pytest.mark.parametrize("terms", [1, 5, 64])
def test_rows_of_any_length(length, terms, rng):
    x = rng.integers(-1000, 1000, (3, terms, length)).astype(np.float32)  # sums are exact
    for op in OPS:
        found, expected = run(op, x)
        np.testing.assert_allclose(found, expected, rtol=2 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("shape", [(2, 40, 21), (40, 261)], ids=str)
def test_every_width_of_vector(shape, dtype, target, rng):
    x = rng.integers(-1000, 1000, shape).astype(dtype)
    for op in (Summation(-2), Max(-2)):
        found, expected = run(op, x, target)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2), (1, 2)], ids=str)
@pytest.mark.parametrize("shape", [(3, 7, 5, 9), (2, 6, 8, 33)], ids=str)
def test_any_axes(axes, shape, rng):
    x = rng.integers(-1000, 1000, shape).astype(np.float32)
    for op in (Summation(axes), Max(axes, True), Mean(axes)):
        found, expected = run(op, x)
        np.testing.assert_allclose(found, expected, rtol=2 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("place", [0, 16, 32, 33, 48])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values_wherever_they_are(value, place, rng):
    x = rng.standard_normal((2, 12, 49)).astype(np.float32)
    x[0, 5, place] = value
    x[1] = -np.inf
    for op in (Max(1), Min(1), Summation(1)):
        found, expected = run(op, x)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", EVERY_WIDTH, ids=lambda target: target["mcpu"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_results_are_kept_in_whole_vectors(op, target):
    fn = scheduled(op, (64, 37, 49), target)
    written = [block for block in nodes_in(fn.body, NODES.sblock) if WRITTEN in block.annotations]
    assert len(written) == 1
    assert all(str(buffer.scope()) == "local" for buffer in written[0].alloc_buffers)
    for realize in nodes_in(fn.body, NODES.realize):
        assert isinstance(realize.predicate, tirx.IntImm)
    tvm.compile(module_of(fn), target=resolve(target, 2).to_tvm())


@pytest.mark.parametrize(
    ("terms", "parts"), [(64, 8), (32, 8), (24, 6), (28, 7), (8, 2), (7, 1), (37, 1)]
)
@pytest.mark.parametrize("op", OPS[:2], ids=lambda op: op.name)
def test_a_single_vector_has_several_sums_of_four_terms_or_more(op, terms, parts):
    """At most as many as an addition takes cycles, and each of as many terms as the others."""
    fn = scheduled(op, (64, terms, 16), {"kind": "llvm", "mcpu": "skylake-avx512"})
    (kept,) = (
        buffer for block in nodes_in(fn.body, NODES.sblock) for buffer in block.alloc_buffers
    )
    assert [int(extent) for extent in kept.shape] == [parts, 1, 16]


def test_what_has_functions_in_it_is_left_alone():
    """Code for many exponentials at a time would be long and slow to compile."""
    x = te.placeholder((8, 30, 49), "float32", name="x")
    exp = te.compute(x.shape, lambda *at: te.exp(x(*at)), name="exp")
    total = Summation(1).emit_te(TE_NAMESPACE, exp)
    fn = cpu.schedule_function(te.create_prim_func([x, total]), resolve("cpu", 2).to_tvm())
    assert not any(WRITTEN in block.annotations for block in nodes_in(fn.body, NODES.sblock))


def test_what_several_reductions_read_keeps_a_place_of_its_own(rng):
    """If it were inlined into the rewritten blocks, TVM would refuse to parallelise them."""
    x = te.placeholder((3, 5, 8), "int8", name="x")
    wide = te.compute(x.shape, lambda *at: x(*at).astype("int32"), name="wide")
    largest = Max(1, True).emit_te(TE_NAMESPACE, wide)
    over = te.compute(x.shape, lambda i, j, f: wide[i, j, f] - largest[i, 0, f], name="over")
    fn = te.create_prim_func([x, Summation(1).emit_te(TE_NAMESPACE, over)])
    target = resolve("cpu", 2).to_tvm()
    with target:
        built = tvm.compile(module_of(cpu.schedule_function(fn, target)), target=target)
    given = rng.integers(-100, 100, (3, 5, 8)).astype(np.int8)
    exact = given.astype(np.int64)
    result = tvm.runtime.tensor(np.zeros((3, 8), np.int64))
    built["main"](tvm.runtime.tensor(given), result)
    np.testing.assert_array_equal(result.numpy(), (exact - exact.max(1, keepdims=True)).sum(1))
