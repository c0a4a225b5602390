"""Merging kernels into one parallel region, and reshapes as views: effects and limits."""

import itertools
import math
import re

import numpy as np
import pytest

import needle_runtime
import needle_tvm
from needle import nn, ops
from needle.trace import trace
from needle_runtime import profile
from needle_tvm._tvm.names import check_well_formed, make_target, relax, te, tvm
from needle_tvm.frontend import lowering
from needle_tvm.kernels import cpu
from needle_tvm.lower import build
from needle_tvm.lower.libraries import build_executable, for_llvm, generated_source
from needle_tvm.lower.merge_kernels import BY_KERNEL, merge_kernels
from needle_tvm.lower.region import _Value, place_values
from needle_tvm.target.spec import resolve
from needle_tvm.tir import regions
from needle_tvm.tir.functions import NODES, calls_of, nodes_in, prim_funcs, simplified
from needle_tvm.tir.nests import substitute
from tests.needle_tvm.conftest import make_mlp, tensor

WIDE = 1 << 16  # elements, enough for a parallel kernel


@pytest.fixture(scope="module")
def target():
    return resolve("cpu", 2).to_tvm()


def chain(steps, *shapes):
    """A module whose main binds a variable for each of `steps`, each a function of earlier ones."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{n}", relax.TensorType(s, "float32")) for n, s in enumerate(shapes)]
    with builder.function("main", inputs):
        values = list(inputs)
        with builder.dataflow():
            for step in steps:
                values.append(step(builder, values))
            result = builder.emit_output(values[-1])
        builder.emit_func_output(result)
    return builder.get()


def scale(factor, source=-1):
    """A kernel that multiplies the value at `source` by `factor`."""

    def kernel(x):
        shape = [int(n) for n in x.shape]
        return te.compute(shape, lambda *i: x(*i) * te.const(factor, "float32"), name="scaled")

    return lambda builder, values: builder.emit_te(kernel, values[source])


def total(source=-1):
    """A kernel that sums the last axis of the value at `source`, on one thread when it is small."""

    def kernel(x):
        rows, columns = (int(n) for n in x.shape)
        k = te.reduce_axis((0, columns))
        return te.compute((rows,), lambda i: te.sum(x[i, k], axis=k), name="total")

    return lambda builder, values: builder.emit_te(kernel, values[source])


def joined(one=-1, other=-2):
    """A kernel that adds two values."""

    def kernel(a, b):
        return te.compute([int(n) for n in a.shape], lambda *i: a(*i) + b(*i), name="joined")

    return lambda builder, values: builder.emit_te(kernel, values[one], values[other])


def reshaped(*shape):
    return lambda builder, values: builder.emit(relax.op.reshape(values[-1], shape))


def run(module, target, *arrays):
    """The merged module, and the module's outputs before and after merging."""
    scheduled = cpu.schedule(module, target)
    merged = merge_kernels(scheduled.clone(), target)
    check_well_formed(merged)
    results = []
    for each in (scheduled, merged):
        executable = build_executable(each, target)
        machine = relax.VirtualMachine(executable, tvm.cpu())
        results.append(machine["main"](*(tvm.runtime.tensor(a) for a in arrays)).numpy())
    return merged, *results


@pytest.mark.parametrize(
    ("rows", "threads"), [(1, 2), (7, 1), (7, 3), *((WIDE // 32, threads) for threads in (1, 2, 3))]
)
def test_a_chain_becomes_one_call(rng, rows, threads):
    target = resolve("cpu", threads).to_tvm()
    steps = [scale(2.0), scale(0.5), scale(3.0), total(), scale(4.0)]
    x = rng.standard_normal((rows, 32)).astype(np.float32)
    merged, before, after = run(chain(steps, (rows, 32)), target, x)
    assert calls_of(merged, "main") == ["region"]
    assert len(calls_of(merged, BY_KERNEL)) == len(steps)
    np.testing.assert_array_equal(after, before)
    np.testing.assert_allclose(after, 12 * x.sum(axis=1), rtol=1e-4, atol=1e-4)


def test_values_read_later_and_in_other_shapes_are_kept(target, rng):
    steps = [
        scale(2.0),  # 1
        scale(3.0),  # 2
        joined(1, 2),  # 3: both are alive
        reshaped(WIDE),  # 4
        scale(0.5),  # 5
        reshaped(WIDE // 64, 64),  # 6
        joined(3, 6),  # 7
        joined(1, 7),  # 8: reads the first again
    ]
    x = rng.standard_normal((WIDE // 64, 64)).astype(np.float32)
    merged, before, after = run(chain(steps, x.shape), target, x)
    assert calls_of(merged, "main") == ["region"]
    np.testing.assert_array_equal(after, before)
    np.testing.assert_allclose(after, 2 * x + 8 * x + 4 * x, rtol=1e-5)


@pytest.mark.parametrize(("rows", "shared"), [(1 << 6, False), (1 << 13, True)])
@pytest.mark.parametrize("count", [1, 3])
def test_threads_are_woken_where_the_whole_run_pays_for_it(target, rng, rows, shared, count):
    x = rng.standard_normal((rows, 64)).astype(np.float32)
    merged, before, after = run(chain([scale(2.0)] * count, x.shape), target, x)
    np.testing.assert_array_equal(after, before)
    (called,) = calls_of(merged, "main")
    # A single kernel that gains from threads stays unchanged.
    assert called.startswith("region") == (count > 1 or not shared)
    text = str(merged[called].script())
    assert ("parallel" in text) == shared


def test_a_large_kernel_ends_a_run(target):
    def product(builder, values):
        k = te.reduce_axis((0, 512))

        def kernel(x):
            return te.compute((512, 512), lambda i, j: te.sum(x[i, k] * x[k, j], axis=k))

        return builder.emit_te(kernel, values[-1])

    module = chain([scale(2.0), scale(0.5), product, scale(2.0), scale(0.5)], (512, 512))
    merged = merge_kernels(cpu.schedule(module, target), target)
    assert len(calls_of(merged, "main")) == 3
    assert sorted(n.rstrip("12") for n in calls_of(merged, "main"))[1:] == ["region", "region"]


def turned(source=-1):
    """A kernel that transposes a square."""

    def kernel(x):
        return te.compute([int(n) for n in x.shape], lambda i, j: x[j, i], name="turned")

    return lambda builder, values: builder.emit_te(kernel, values[source])


def shifted(source=-1):
    """A kernel that reads each element's neighbour, across the ends of rows."""

    def kernel(x):
        rows, columns = (int(n) for n in x.shape)
        last = rows * columns - 1

        def element(i, j):
            place = tvm.te.min(i * columns + j + 1, last)
            return x[place // columns, place % columns]

        return te.compute((rows, columns), element, name="shifted")

    return lambda builder, values: builder.emit_te(kernel, values[source])


@pytest.mark.parametrize(
    ("steps", "loops", "barriers"),
    [
        ([scale(2.0), scale(0.5), joined(1, 2)], 1, 0),
        ([scale(2.0, 0), scale(0.5, 0), joined(1, 2)], 1, 0),
        ([scale(2.0), turned()], 2, 1),
        ([scale(2.0), shifted()], 2, 1),
        ([scale(2.0), turned(), scale(0.5, 1), joined(3, 2)], 4, 2),
    ],
    ids=["a chain", "one source", "transposed", "neighbours", "around a transposition"],
)
def test_loops_over_the_same_parts_are_joined(target, rng, steps, loops, barriers):
    x = rng.standard_normal((512, 512)).astype(np.float32)
    merged, before, after = run(chain(steps, x.shape), target, x)
    np.testing.assert_array_equal(after, before)
    body = merged[calls_of(merged, "main")[0]].body
    kinds = [loop.kind for loop in nodes_in(body, NODES.loop)]
    assert kinds.count(tvm.tirx.ForKind.PARALLEL) == loops
    found = [each.attr_key for each in nodes_in(body, tvm.tirx.AttrStmt)]
    assert found.count("pragma_parallel_barrier_when_finish") == barriers


def test_large_elementwise_kernels_are_joined(target):
    steps = [scale(2.0), scale(0.5), total(), scale(2.0)]
    module = chain(steps, (1 << 13, 1 << 12))
    merged = merge_kernels(cpu.schedule(module, target), target)
    first, *others = calls_of(merged, "main")
    assert first == "region" and len(others) == 2
    loops = nodes_in(merged[first].body, NODES.loop)
    assert sum(loop.kind == tvm.tirx.ForKind.PARALLEL for loop in loops) == 1


def test_symbolic_shapes_are_merged(target):
    rows = tvm.tirx.Var("rows", "int64")
    x = relax.Var("x", relax.TensorType((rows, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_te(lambda a: te.compute(a.shape, lambda *i: a(*i) * a(*i)), x)
            z = builder.emit_te(lambda a: te.compute(a.shape, lambda *i: a(*i) + a(*i)), y)
            result = builder.emit_output(z)
        builder.emit_func_output(result)
    merged = merge_kernels(cpu.schedule(builder.get(), target), target)
    check_well_formed(merged)
    assert calls_of(merged, "main") == ["region"]


@pytest.mark.parametrize("third", [90, 100])  # which fills the first slot, or less
def test_slots_of_a_workspace_are_used_again_but_not_while_they_live(third):
    def value(name, first, last, size):
        return _Value(name, [size], "float32", first, last)

    values = [value("a", 0, 1, 100), value("b", 1, 2, 100), value("c", 2, 3, third)]
    offsets, size = place_values(values, 4, {})
    assert offsets["a"] == offsets["c"] != offsets["b"]
    assert size == 2 * 112  # slots begin at multiples of a cache line
    assert place_values([], 4, {}) == ({}, 0)


def test_slots_of_symbolic_sizes_do_not_overlap_at_any_size():
    n, m = (tvm.tirx.Var(name, "int64") for name in "nm")
    shapes = [[n, 3], [m, 5], [n + m], [n, 3], [m], [40], [2 * n]]
    lives = [(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 4), (3, 4)]
    values = [
        _Value(number, shape, "float32", *life)
        for number, (shape, life) in enumerate(zip(shapes, lives, strict=True))
    ]
    offsets, size = place_values(values, 4, {n: (1, None), m: (0, 64)})
    for sizes in ({n: 1, m: 0}, {n: 1, m: 64}, {n: 7, m: 9}, {n: 1000, m: 1}):

        def number(expr, sizes=sizes):
            known = {var: tvm.tirx.const(value, "int64") for var, value in sizes.items()}
            return expr if isinstance(expr, int) else int(simplified(substitute(expr, known)))

        ends = {v.key: number(offsets[v.key]) + math.prod(map(number, v.shape)) for v in values}
        assert max(ends.values()) <= number(size)
        for one, other in itertools.combinations(values, 2):
            if one.first <= other.last and other.first <= one.last:
                begins = number(offsets[one.key]), number(offsets[other.key])
                assert ends[one.key] <= begins[1] or ends[other.key] <= begins[0]


@pytest.mark.parametrize(
    "mcpu", ["x86-64-v3", "x86-64-v4", "cortex-a76"], ids=["avx2", "avx512", "neon"]
)
def test_regions_compile_for_other_processors(mcpu):
    triple = "aarch64-linux-gnu" if mcpu.startswith("cortex") else "x86_64-linux-gnu"
    fields = {"kind": "llvm", "mcpu": mcpu, "mtriple": triple, "num-cores": 4}
    other = make_target(fields)
    module = cpu.schedule(chain([scale(2.0), total(), scale(3.0)], (WIDE // 32, 32)), other)
    merged = merge_kernels(module, other)
    assert calls_of(merged, "main") == ["region"]
    build_executable(merged, other)


def test_sums_of_many_convolutions_stay_in_registers(monkeypatch):
    """Unless told otherwise, LLVM gives up on this in a function of many loops."""
    monkeypatch.setattr(regions, "_TASK", math.inf)  # all loops in one function
    target = resolve({"kind": "llvm", "mcpu": "x86-64-v4"}, 1).to_tvm()
    model = nn.Sequential(*(nn.Conv(64, 64, 3, groups=4) for _ in range(4))).eval()
    x = tensor(np.zeros((1, 64, 28, 28), np.float32))
    module = lowering.lower(trace(model, x), target, "tuned")
    module = build.schedule(module, target, "tuned")
    (name,) = calls_of(module, "main")
    function = prim_funcs(module)[name].with_attr("global_symbol", "main")
    library = tvm.tirx.build(function, target=for_llvm(target))
    blocks = re.split(r"\n\S+:", generated_source(library, "ll"))
    sums = [block for block in blocks if "@llvm.fmuladd.v16f32(" in block and " call " in block]
    assert len(sums) >= 4
    assert not any("store <16 x float>" in block for block in sums)


def test_equal_nests_are_one_function(target, rng):
    """Layers of equal shapes call the same function, in a region and as single kernels; what runs
    for a moment is no function of its own."""
    layers = [nn.Linear(256, 256) for _ in range(4)]
    model = nn.Sequential(*(each for layer in layers for each in (layer, nn.ReLU()))).eval()
    x = rng.standard_normal((16, 256)).astype(np.float32)
    module = lowering.lower(trace(model, tensor(x)), target, "tuned")
    functions = prim_funcs(build.schedule(module, target, "tuned"))
    called = {name: _called(function) for name, function in functions.items()}
    (region,) = (name for name in functions if name.startswith("region"))
    assert len(called[region]) == 4 and len(set(called[region])) == 1
    kernels = [names for name, names in called.items() if name != region and names]
    assert kernels and all(set(names) == set(called[region]) for names in kernels)
    expected = model(tensor(x)).numpy()
    np.testing.assert_allclose(needle_tvm.compile(model, tensor(x))(x).numpy(), expected, 1e-5)

    small = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
    module = lowering.lower(trace(small, tensor(x[:2, :8])), target, "tuned")
    assert not any(map(_called, prim_funcs(build.schedule(module, target, "tuned")).values()))


def _called(function):
    """The names of the functions that a function calls."""
    calls = nodes_in(function, NODES.call)
    return [each.op.name_hint for each in calls if isinstance(each.op, tvm.ir.GlobalVar)]


def test_a_profile_shows_single_kernels(rng):
    model = make_mlp(64, 64, 64)
    x = tensor(rng.standard_normal((8, 64)).astype(np.float32))
    compiled = needle_tvm.compile(model, x)
    rows = [row for row in profile.profile(compiled.program, runs=2).rows() if not row.builtin]
    assert sum(row.calls for row in rows) == 2
    assert not any(row.name.startswith("region") for row in rows)


def test_results_share_no_memory(rng):
    def fn(x):
        y = ops.exp(x)
        return y, ops.reshape(y, (6, 4)), ops.reshape(y, (24,)), ops.reshape(x, (3, 8))

    x = rng.standard_normal((4, 6)).astype(np.float32)
    compiled = needle_tvm.compile(fn, tensor(x))
    expected = [np.exp(x), np.exp(x).reshape(6, 4), np.exp(x).reshape(24), x.reshape(3, 8)]
    first = compiled.program.run([x])
    for number, array in enumerate(first):
        np.testing.assert_allclose(array, expected[number], rtol=1e-6)
        array[...] = -1
    for found, wanted in zip(compiled.program.run([x]), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_reshapes_inside_and_of_results_are_views(target):
    model = nn.Linear(8, 4)
    model.eval()
    module = lowering.lower(trace(model, tensor(np.zeros((2, 3, 8), np.float32))), target, "tuned")
    assert len(calls_of(module, "main")) == 1  # the matmul; its reshapes are views
    assert "R.reshape" in str(module["main"].script())


def test_other_weights_and_threads_of_a_merged_model(tmp_path, rng):
    model = make_mlp(32, 32, 32)
    x = rng.standard_normal((4, 32)).astype(np.float32)
    path = needle_tvm.compile(model, tensor(x)).export(tmp_path / "mlp")
    program = needle_runtime.load(path)
    before = program.run([x])[0].copy()
    program.set_params({n: 2 * v.numpy() for n, v in model.state_dict().items()})
    assert not np.array_equal(before, program.run([x])[0])


def pair(x):
    doubled = te.compute(x.shape, lambda *i: x(*i) * te.const(2.0, "float32"))
    return [doubled, te.compute(x.shape, lambda *i: x(*i) * te.const(3.0, "float32"))]


def several(builder, values):
    both = builder.emit_te(pair, values[-1])
    return builder.emit(relax.TupleGetItem(both, 1))


def hosted(builder, values):
    return builder.emit(relax.op.call_dps_packed("f", relax.Tuple([values[-1]]), values[-1].ty))


SMALL = (4, 8)


@pytest.mark.parametrize("between", [several, hosted], ids=["two results", "an external function"])
def test_what_is_no_kernel_of_one_result_ends_a_run(target, between):
    steps = [scale(2.0), scale(0.5), between, scale(2.0), scale(0.5)]
    merged = merge_kernels(cpu.schedule(chain(steps, SMALL), target), target)
    called = calls_of(merged, "main")
    assert sum(name.startswith("region") for name in called) == 2
    assert len(called) == (3 if between is several else 2)
    check_well_formed(merged)


def test_what_is_left_of_a_run_is_what_others_read(target):
    """A view of what is older than the run stands before it; a view of its result behind it."""
    steps = [scale(2.0), reshaped(32), several, scale(3.0), scale(2.0), reshaped(8, 4)]
    merged = merge_kernels(cpu.schedule(chain(steps, SMALL), target), target)
    check_well_formed(merged)
    text = str(merged["main"].script())
    assert text.count("R.reshape") == 2


def test_a_module_without_a_run_stays(target):
    def check(module):
        assert merge_kernels(module, target).same_as(module)

    check(cpu.schedule(chain([scale(2.0)], SMALL), target))  # one kernel on one thread
    check(cpu.schedule(chain([several], SMALL), target))
