"""A symbolic kernel is tuned for each range of its sizes, and picks by size in its code."""

import itertools
import math

import numpy as np
import pytest

import needle_tvm
from needle import Dim, nn
from needle.trace import trace
from needle_tvm._tvm.names import PrimFunc, relax, tirx, tvm
from needle_tvm.frontend import lowering
from needle_tvm.kernels.search_interface import rules_of
from needle_tvm.lower import build
from needle_tvm.lower.variant import Variant
from needle_tvm.runtime.memory import aligned_copy
from needle_tvm.tir.extents import BOUNDS, bounds_of, note_bounds, symbols_of
from needle_tvm.tir.functions import prim_funcs
from needle_tvm.tune import library, session, whole_model
from needle_tvm.tune.ranges import SIZES, at_sizes, joined, ranges
from needle_tvm.tune.records.rows import Trial
from needle_tvm.tune.records.store import Store
from tests.needle_tvm.conftest import make_mlp, tensor
from tests.needle_tvm.symbolic import HOST, module_of, normal, variable

N = Dim("n", max=64)
RULES = rules_of(HOST)


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))


def kernel(*most, least=1):
    """One symbolic layer of 24 terms, unscheduled, with an axis of rows for each of `most`."""
    names = [f"n{number}" for number in range(len(most))]
    x = [variable(name) for name in names]
    bounds = {"least": dict.fromkeys(names, least), "most": dict(zip(names, most, strict=True))}

    def layer(emit, x, w):
        return emit(relax.op.matmul(x, w))

    module = module_of(layer, (*x, 24), (24, 40), params=1, **bounds)
    module = note_bounds(build.lower_module(module, HOST, Variant(stage="tuned")))
    (found,) = [each for each in prim_funcs(module).values() if symbols_of(each)]
    return found


def panels(function):
    """A weight (24, 40) in panels, as wide as this processor's vectors make them."""
    return normal(*map(int, function.params[1].shape))


def unpacked(w):
    """The weight (24, 40) of its panels."""
    return w.transpose(1, 0, 2).reshape(24, -1)[:, :40]


@pytest.mark.parametrize(
    ("most", "least"), [((64,), 1), ((1,), 1), ((16,), 1), ((17,), 2), ((90,), 40), ((9, 7), 1)]
)
def test_every_size_is_in_one_range_and_within_its_bounds(most, least):
    function = kernel(*most, least=least)
    found = ranges(function)
    ends = [each.end or math.inf for each in found]
    assert ends == sorted(set(ends))
    for sizes in itertools.product(*(range(least, high + 1) for high in most)):
        part = next(each for each in found if math.prod(sizes) <= (each.end or math.inf))
        bounds = bounds_of(part.function).values()
        assert all(low <= size <= high for size, (low, high) in zip(sizes, bounds, strict=True))
    for part in found:
        bounds = bounds_of(part.function).values()
        assert all(low <= n <= high for n, (low, high) in zip(part.sizes, bounds, strict=True))


def test_what_has_one_size_has_no_ranges():
    for function in prim_funcs(lowered(make_mlp(32, 48), batch=4)).values():
        assert ranges(function) == [] and at_sizes(function) is function


def lowered(model, batch, dims=None):
    x = tensor(np.zeros((batch, 32), np.float32))
    return lowering.lower(trace(model, x, dims=dims), HOST, "tuned")


def written(function: PrimFunc, path):
    path = path / f"{len(list(path.iterdir()))}.so"
    # as the search calls candidates, on arrays that are aligned to vectors
    library.write(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), HOST, path)
    code = library.load(path)["main"]

    def call(*inputs, shape):
        out = aligned_copy(np.full(shape, np.nan, "float32"))
        code(*map(aligned_copy, inputs), out)
        return out

    return call


def test_the_function_at_its_sizes_is_the_function(tmp_path):
    for part in ranges(kernel(64)):
        fixed = at_sizes(part.function)
        assert not symbols_of(fixed) and not {SIZES, BOUNDS} & set(dict(fixed.attrs))
        (rows,) = part.sizes
        x, w = normal(rows, 24), panels(fixed)
        scheduled = RULES.schedule_function(part.function, HOST)
        found = [written(code, tmp_path)(x, w, shape=(rows, 40)) for code in (fixed, scheduled)]
        weights = unpacked(w)
        expected = x.astype("float64") @ weights
        bound = 4 * 24 * np.finfo("float32").eps * np.abs(expected).max()
        for out in found:
            np.testing.assert_allclose(out, expected, atol=bound)


@pytest.mark.slow
def test_choices_are_right_at_every_size_of_their_range_and_joined_at_all(tmp_path):
    function = kernel(40)
    w = panels(function)
    weights = unpacked(w).astype("float64")

    def check(code, rows):
        x = normal(rows, 24)
        out = code(x, w, shape=(rows, 40))
        expected = x @ weights
        bound = 4 * 24 * np.finfo("float32").eps * np.abs(expected).max()
        np.testing.assert_allclose(out, expected, atol=bound)

    made = []
    for part in ranges(function):
        choices = list(RULES.choices(part.function, HOST))
        schedules = [RULES.realised(each.mod, HOST)["main"] for each in choices]
        made.append(
            (part, schedules[-1] if schedules else RULES.schedule_function(part.function, HOST))
        )
        assert len(schedules) >= (0 if part.end == 1 else 2)
        ((low, high),) = bounds_of(part.function).values()
        for schedule in schedules[:3]:
            code = written(schedule, tmp_path)
            for rows in {low, (low + high) // 2, high}:
                check(code, rows)
    code = written(joined(function, made), tmp_path)
    for rows in range(1, 41):
        check(code, rows)


@pytest.mark.parametrize("axes", [1, 2])
def test_a_range_gets_what_was_chosen_for_it(axes, monkeypatch, rng):
    """The search is replaced by one that takes a candidate for few rows, and the rule otherwise."""
    model = make_mlp(32, 48)
    dims = [Dim(f"n{axis}", max=[64, 5][axis]) for axis in range(axes)]
    asked = []

    def found(tasks, rules, *args, written, **options):
        notes = {}
        for name, (plain, _) in tasks.items():
            asked.append(name)
            few = len(asked) == 2
            choice = list(RULES.choices(plain["main"], HOST))[-1].mod if few else None
            text = tvm.ir.save_json(RULES.realised(choice, HOST)) if few else None
            assert not symbols_of(written[name]["main"])
            assert all(map(tirx.is_buffer_var, plain["main"].params))
            chosen = "search" if few else "rule"
            notes[name] = {"task": name, "chosen": chosen, "candidate": text, "reason": ""}
        return notes

    monkeypatch.setattr(session, "search", found)
    monkeypatch.setattr(whole_model, "compare", lambda *args: {"kept": "tuned"})
    extents = [4] * axes
    x = tensor(rng.standard_normal((*extents, 32)).astype(np.float32))
    compiled = needle_tvm.compile(model, x, dims={0: dict(enumerate(dims))}, trials=1)
    notes = compiled.manifest["tuning"]
    assert [note["chosen"] for note in notes] == ["rule", "search", "rule"]
    middles = [["n0=1", "n0=6", "n0=33"], ["n0=1, n1=1", "n0=3, n1=2", "n0=25, n1=3"]][axes - 1]
    assert [name.partition("[")[2] for name in asked] == [f"{each}]" for each in middles]
    for rows in (1, 2, 6, 16, 17, 33, 64):
        for others in [()] if axes == 1 else [(1,), (2,), (5,)]:
            x = tensor(rng.standard_normal((rows, *others, 32)).astype(np.float32))
            np.testing.assert_allclose(compiled(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_search_with_dims_end_to_end(rng, in_this_process):
    """Trials are recorded, serve a second search, and the result is right at all sizes."""
    model = nn.Sequential(nn.Linear(32, 48), nn.ReLU()).eval()
    x = tensor(rng.standard_normal((4, 32)).astype(np.float32))
    options = {"dims": {0: {0: N}}, "trials": 3, "progress": None}
    compiled = needle_tvm.compile(model, x, **options)
    notes = compiled.manifest["tuning"]
    assert [note["task"].partition("[")[2] for note in notes] == ["n=1]", "n=6]", "n=33]"]
    assert sum(note["trials"] for note in notes) == 3
    for rows in (1, 2, 16, 17, 64):
        x = tensor(rng.standard_normal((rows, 32)).astype(np.float32))
        np.testing.assert_allclose(compiled(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-5)
    timed = compiled.manifest.get("whole_model")
    if any(note["chosen"] == "search" for note in notes):
        assert [each["sizes"]["n"] for each in timed["at_sizes"]] == [1, 33, 64]
    needle_tvm.compile(model, x, **options, recompile=True)
    with Store() as store:
        assert len(store.all(Trial)) == 3, "the second search found what the first one recorded"
