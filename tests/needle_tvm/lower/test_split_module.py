"""Modules split for LLVM: every function once, what it calls in reach, always alike."""

import itertools

import numpy as np
import pytest

import needle_tvm
from needle import nn, ops
from needle.trace import trace
from needle_tvm._tvm.names import tvm
from needle_tvm.frontend import lowering
from needle_tvm.lower import build, libraries, split_module
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import NODES, nodes_in
from tests.needle_tvm.conftest import tensor


def network(layers):
    """Convolutions of different widths, whose nests are functions of their own."""
    widths = [8 * (1 + n % 5) for n in range(layers + 1)]
    pairs = itertools.pairwise(widths)
    return nn.Sequential(*(m for a, b in pairs for m in (nn.Conv2d(a, b, 3), nn.ReLU()))).eval()


def lowered(monkeypatch, model, x):
    """The module that is lowered for a model, its parts, the names of what runs once, and the
    compiled model."""
    found = []

    def kept(module, once):
        found.append((module, split_module.split(module, once), set(once)))
        return found[-1][1]

    monkeypatch.setattr(libraries, "split", kept)
    compiled = needle_tvm.compile(model, x)
    return *found[0], compiled


def functions(part):
    return {variable.name_hint: function for variable, function in part.module.functions.items()}


def called(function):
    calls = nodes_in(function.body, NODES.call)
    return {each.op.name_hint for each in calls if isinstance(each.op, tvm.ir.GlobalVar)}


def symbols_called(function):
    calls = nodes_in(function.body, NODES.call)
    externs = [c for c in calls if getattr(c.op, "name", "") == "tirx.call_extern"]
    return {str(each.args[0].value) for each in externs} - {"needle_one_by_one"}


def test_a_large_module_is_several_linked_by_symbols(monkeypatch, rng, tmp_path):
    model = network(12)
    x = tensor(rng.standard_normal((1, 8, 64, 64)).astype(np.float32))
    module, parts, once, compiled = lowered(monkeypatch, model, x)
    named = [functions(part) for part in parts]
    assert 2 < len(parts) <= split_module._PARTS + 1
    assert sum(map(len, named)) == len(module.functions)
    assert set.union(*map(set, named)) == {v.name_hint for v in module.functions}
    every = {name: function for part in named for name, function in part.items()}
    assert not any(map(called, every.values()))
    wanted = set.union(*map(symbols_called, every.values()))
    have = {str(f.attrs["needle.symbol"]) for f in every.values() if "needle.symbol" in f.attrs}
    assert wanted and wanted == have
    again = [set(functions(part)) for part in split_module.split(module, once)]
    assert again == [set(part) for part in named]

    np.testing.assert_allclose(compiled(x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)
    compiled.export(tmp_path / "model")
    loaded = needle_tvm.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded(x).numpy(), compiled(x).numpy())


def test_only_small_kernels_that_run_once_are_not_optimised(monkeypatch, rng):
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 64, 3), nn.Conv2d(64, 64, 3)]
    x = tensor(rng.standard_normal((1, 3, 12, 12)).astype(np.float32))
    _, parts, once, _ = lowered(monkeypatch, nn.Sequential(*layers).eval(), x)
    (*others, small) = parts
    assert [part.optimized for part in parts] == [True] * len(others) + [False]
    assert set(functions(small)) < once  # 64 x 64 x 9 weights are many
    rest = {name for part in others for name in functions(part)}
    assert once & rest and not rest <= once

    def iterations(body):
        size = 1
        for loop in nodes_in(body, NODES.loop):
            size *= int(loop.extent)
        return size

    assert all(iterations(each.body) <= split_module._SMALL for each in functions(small).values())


FLOATS = ("float16", "bfloat16", "float32", "float64")
# A result is rounded to its dtype in other places: two roundings of a number below 3.
BOUNDS = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-6}


@pytest.mark.parametrize("shape", [(), (1,), (7, 13), (3, 0)])
@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint8", "int32", "int64"])
def test_kernels_that_are_not_optimised_are_right(monkeypatch, rng, dtype, shape):
    class Prepared(nn.Module):
        def __init__(self):
            super().__init__()
            numbers = tensor((rng.random(shape) * 5 + 1).astype("float32")).astype(dtype)
            if dtype in FLOATS:
                self.numbers = nn.Parameter(numbers)
            else:
                self.register_buffer("numbers", numbers)

        def forward(self, x):
            a = self.numbers
            floats = [ops.tanh(a), ops.log(a), ops.sqrt(a), ops.sin(a), ops.sigmoid(a)]
            ints = [a // 3, a % 4, a * a - 7, ops.maximum(a, 4), a.astype("float32") / 3]
            return tuple(
                each.astype("float32") + x for each in (floats if dtype in FLOATS else ints)
            )

    model, x = Prepared().eval(), tensor(np.float32(0))
    _, parts, _, compiled = lowered(monkeypatch, model, x)
    assert any(not part.optimized for part in parts) or 0 in shape
    for found, wanted in zip(compiled(x), model(x), strict=True):
        bound = BOUNDS.get(dtype, 1e-6)
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=bound, atol=bound)


def test_functions_that_call_each_other_stay_together_in_memory(monkeypatch, rng):
    """Where modules are not linked into a library, tasks are called without a symbol."""
    found = []

    def kept(module, once):
        found.append(split_module.split(module, once))
        return found[-1]

    monkeypatch.setattr(libraries, "split", kept)
    x = tensor(rng.standard_normal((1, 8, 64, 64)).astype(np.float32))
    target = resolve("cpu").to_tvm()
    module = build.schedule(lowering.lower(trace(network(12), x), target, "tuned"), target, "tuned")
    libraries.build_executable(module, target)
    ((*parts,),) = found
    assert len(parts) > 1
    assert any(called(each) for part in parts for each in functions(part).values())
    for part in parts:
        assert set.union(*map(called, functions(part).values())) <= set(functions(part))


def test_a_small_module_stays_whole(monkeypatch, rng):
    x = tensor(rng.standard_normal((2, 8)).astype(np.float32))
    module, parts, _, _ = lowered(monkeypatch, nn.Linear(8, 4).eval(), x)
    (part,) = parts
    assert part.optimized and set(functions(part)) == {v.name_hint for v in module.functions}
