"""The rule for functions that pass over the same rows more than once."""

import warnings

import numpy as np
import pytest

import needle_tvm
from needle import ops
from needle.ops.norm import LayerNorm, Normalize
from needle.ops.softmax import LogSoftmax, Softmax
from needle_tvm._tvm.names import SCHEDULE_ERROR, TE_NAMESPACE, Schedule, te, tvm
from needle_tvm.errors import ScheduleWarning
from needle_tvm.kernels import cpu
from needle_tvm.kernels.blocks import inline_producers
from needle_tvm.kernels.reduce.cpu_rows import rows
from needle_tvm.lower.libraries import generated_source
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import module_of
from tests.needle_tvm.conftest import tensor

TARGETS = [
    {"kind": "llvm", "mcpu": "x86-64-v2"},
    {"kind": "llvm", "mcpu": "haswell"},
    "cpu",
]


def function(op, *shapes, dtype="float32"):
    given = [te.placeholder(shape, dtype, name=f"x{i}") for i, shape in enumerate(shapes)]
    return te.create_prim_func([*given, op.emit_te(TE_NAMESPACE, *given)])


def run(function, target, *arrays):
    built = tvm.compile(module_of(function), target=resolve(target, 2).to_tvm())
    tensors = [tvm.runtime.tensor(array) for array in (*arrays, np.empty_like(arrays[0]))]
    built["main"](*tensors)
    return tensors[-1].numpy()


def check(op, *shapes, target="cpu", rng, dtype="float32"):
    plain = function(op, *shapes, dtype=dtype)
    scheduled = cpu.schedule_function(plain, resolve(target, 2).to_tvm())
    arrays = [(rng.standard_normal(shape) * 3 + 1).astype(dtype) for shape in shapes]
    eps = np.finfo(dtype).eps
    found = run(scheduled, target, *arrays)
    np.testing.assert_allclose(found, op.reference(*arrays), rtol=64 * eps, atol=64 * eps)
    arrays[0].flat[0] = np.nan
    with np.errstate(all="ignore"):
        expected = op.reference(*arrays)
    np.testing.assert_array_equal(np.isnan(run(scheduled, target, *arrays)), np.isnan(expected))


@pytest.mark.parametrize("op", [Softmax(), LogSoftmax(), Normalize(-1)], ids=lambda op: op.name)
@pytest.mark.parametrize("length", [1, 2, 7, 16, 33, 101, 384, 500])
def test_rows_of_any_length(op, length, rng):
    check(op, (5, 3, length), rng=rng)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(80, 512), (1, 48), (3, 1000)], ids=str)
def test_layer_norm_for_every_width_of_vector(shape, dtype, target, rng):
    check(LayerNorm(), shape, shape[-1:], shape[-1:], target=target, dtype=dtype, rng=rng)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(4, 37, 40), (2, 3, 1), (64, 8, 100)], ids=str)
def test_along_any_axis(axis, shape, rng):
    check(Softmax(axis), shape, rng=rng)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 5)], ids=str)
def test_functions_of_no_elements_are_left_alone(shape):
    sch = Schedule(module_of(function(Softmax(), shape)))
    assert not rows(sch, resolve("cpu", 2).to_tvm())


def test_one_loop_over_rows_is_left():
    sch = Schedule(module_of(function(Softmax(), (64, 128))))
    inline_producers(sch, keep=set())
    assert rows(sch, resolve("cpu", 2).to_tvm())
    script = str(sch.mod)
    assert script.count("T.parallel") == 1 and "range(64)" not in script


@pytest.mark.parametrize(
    "fn",
    [function(Softmax(0), (40, 100)), function(Normalize((0, 1)), (3, 4))],
    ids=["nothing is shared", "no loop is left to share"],
)
def test_what_does_not_fit_is_left_alone(fn):
    sch = Schedule(module_of(fn))
    assert not rows(sch, resolve("cpu", 2).to_tvm())
    tvm.ir.assert_structural_equal(sch.mod, module_of(fn))


def test_it_compiles_for_neon():
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}
    target = resolve(target, 2).to_tvm()
    scheduled = cpu.schedule_function(function(Softmax(), (64, 128)), target)
    assert ".4s" in generated_source(tvm.compile(module_of(scheduled), target=target), "asm")


def test_blocks_that_only_some_rows_need_are_not_computed_in_every_one():
    """Two steps of a recurrence are concatenated: the second row needs more blocks than the first,
    and the first needs none of the second's."""
    rng = np.random.default_rng(0)
    x, bias = (tensor(rng.standard_normal((n, 3, 64)).astype("float32")) for n in (2, 1))

    def steps(x, bias):
        gate = ops.sigmoid(x[:1] + bias)
        cell = ops.tanh(gate * 2 + x[1:])
        state = ops.exp(cell) * gate
        both = ops.concat((gate * ops.tanh(state), cell * state + ops.sigmoid(state)), 0)
        return both[:, 2]

    for threads in (1, 2):
        compiled = needle_tvm.compile(steps, x, bias, threads=threads, check=False)
        np.testing.assert_allclose(
            compiled(x, bias).numpy(), steps(x, bias).numpy(), rtol=1e-5, atol=1e-6
        )


def test_results_of_which_a_row_has_several_stay_where_they_are():
    """Blocks share fewer rows than there are results, which are not a vector of partial results."""

    def largest(x, y):
        apart = ops.abs(x) - y
        return ops.max(ops.stack([apart, ops.abs(x), ops.tanh(apart)], -3), -1)

    rng = np.random.default_rng(0)
    x = tensor(rng.standard_normal((1, 1, 2, 8)).astype("float32"))
    y = tensor(rng.standard_normal((1, 1, 1, 1)).astype("float32"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ScheduleWarning)
        compiled = needle_tvm.compile(largest, x, y)
    np.testing.assert_allclose(compiled(x, y).numpy(), largest(x, y).numpy(), rtol=1e-6)


def test_a_function_whose_schedule_fails_is_right_and_slow_and_says_so(monkeypatch):
    def refused(sch, target):
        raise SCHEDULE_ERROR("ScheduleError: no such loop\nin a page of TVM's")

    monkeypatch.setattr(cpu, "loops", refused)
    x = tensor(np.linspace(-2, 2, 60, dtype="float32").reshape(3, 20))
    said = r"^\w+ is slow, since its schedule failed \(ScheduleError: no such loop\)$"
    with pytest.warns(ScheduleWarning, match=said):
        compiled = needle_tvm.compile(lambda x: ops.softmax(ops.exp(x) * 2, -1), x)
    expected = ops.softmax(ops.exp(x) * 2, -1).numpy()
    np.testing.assert_allclose(compiled(x).numpy(), expected, rtol=1e-5)
