"""Modules split for LLVM: every function once, none apart from one that it calls, always alike."""

import itertools

import numpy as np

import needle_tvm
from needle import nn
from needle_tvm._tvm.names import tvm
from needle_tvm.lower import libraries, split_module
from needle_tvm.tir.functions import NODES, nodes_in
from tests.needle_tvm.conftest import tensor


def network(layers):
    """Convolutions of different widths, whose nests are functions of their own."""
    widths = [8 * (1 + n % 5) for n in range(layers + 1)]
    pairs = itertools.pairwise(widths)
    return nn.Sequential(*(m for a, b in pairs for m in (nn.Conv2d(a, b, 3), nn.ReLU()))).eval()


def lowered(monkeypatch, model, x):
    """The module from which LLVM generates a model's code, its parts, and the compiled model."""
    found = []

    def kept(module):
        found.append((module, split_module.split(module)))
        return found[-1][1]

    monkeypatch.setattr(libraries, "split", kept)
    compiled = needle_tvm.compile(model, x)
    return *found[0], compiled


def called(function):
    calls = nodes_in(function.body, NODES.call)
    return {each.op.name_hint for each in calls if isinstance(each.op, tvm.ir.GlobalVar)}


def test_a_large_module_is_several_that_call_only_their_own(monkeypatch, rng, tmp_path):
    model = network(12)
    x = tensor(rng.standard_normal((1, 8, 64, 64)).astype(np.float32))
    module, parts, compiled = lowered(monkeypatch, model, x)
    names = [{v.name_hint for v in part.functions} for part in parts]
    assert 1 < len(parts) <= split_module._PARTS
    assert sum(map(len, names)) == len(module.functions)
    assert set.union(*names) == {v.name_hint for v in module.functions}
    calls = [set.union(*map(called, part.functions.values())) for part in parts]
    assert any(calls)
    assert all(wanted <= own for wanted, own in zip(calls, names, strict=True))
    again = [{v.name_hint for v in part.functions} for part in split_module.split(module)]
    assert again == names

    np.testing.assert_allclose(compiled(x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)
    compiled.export(tmp_path / "model")
    loaded = needle_tvm.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded(x).numpy(), compiled(x).numpy())


def test_a_small_module_stays_whole(monkeypatch, rng):
    x = tensor(rng.standard_normal((2, 8)).astype(np.float32))
    module, parts, _ = lowered(monkeypatch, nn.Linear(8, 4).eval(), x)
    assert len(parts) == 1 and parts[0].same_as(module)
