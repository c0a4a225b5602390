"""Compiled models are reloaded when nothing changed, and never when anything did."""

import subprocess
import sys
import warnings

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import ops
from needle_runtime._tvm import versions as runtime_versions
from needle_runtime.artifact import layout
from needle_tvm import cache
from needle_tvm._tvm import versions
from needle_tvm.tune.options import Options
from tests.needle_tvm.conftest import make_mlp, tensor


@pytest.fixture
def x(rng):
    return tensor(rng.standard_normal((3, 8)).astype(np.float32))


@pytest.fixture(autouse=True)
def new_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))


def compile(model, *inputs, **options):
    return needle_tvm.compile(model, *inputs, **{"stage": "fused", **options})


def test_the_second_compilation_reloads(x):
    model = make_mlp(8, 4)
    first, second = compile(model, x), compile(model, x)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert first.path == second.path
    np.testing.assert_array_equal(first(x).numpy(), second(x).numpy())
    assert not compile(model, x, recompile=True).from_cache


def test_reloading_imports_no_compiler(x):
    code = (
        "import sys, numpy as np, needle as ndl, needle_tvm\n"
        "from needle import nn\n"
        "model = nn.Sequential(nn.Linear(8, 4)); model.eval()\n"
        "x = ndl.Tensor(np.ones((3, 8), np.float32))\n"
        "exe = needle_tvm.compile(model, x, stage='fused')\n"
        "np.testing.assert_allclose(exe(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-5)\n"
        "print(exe.from_cache, 'tvm' in sys.modules)\n"
    )
    answers = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert answers == [["False", "True"], ["True", "False"]]


def test_changed_weights_are_used_without_recompiling(x):
    for seed in (1, 2):
        ndl.manual_seed(seed)
        model = make_mlp(8, 4)
        executable = compile(model, x)
        np.testing.assert_allclose(executable(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-5)
        assert executable.from_cache == (seed == 2)
    state = {name: value.numpy() * 2 for name, value in model.state_dict().items()}
    model.load_state_dict({name: ndl.Tensor(value) for name, value in state.items()})
    executable.set_params(model.state_dict())
    np.testing.assert_allclose(executable(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-5)


def variant(name, x, monkeypatch):
    """The arguments of `compile` after a change of `name`."""
    model, inputs, options = make_mlp(8, 4), x, {}
    if name == "architecture":
        model = make_mlp(8, 5)
    elif name == "batch":
        inputs = tensor(np.zeros((4, 8), np.float32))
    elif name == "dtype":
        model, inputs = make_mlp(8, 4, dtype="float64"), tensor(np.zeros((3, 8)))
    elif name == "stage":
        options = {"stage": "tuned"}
    elif name == "target":
        options = {"target": {"kind": "llvm", "mcpu": "x86-64-v2"}}
    elif name == "threads":
        options = {"threads": 1}
    elif name == "an op's rule":
        rule = ops.elementwise.Relu.emit_te
        monkeypatch.setattr(
            ops.elementwise.Relu, "emit_te", lambda self, k, value: rule(self, k, value)
        )
    elif name == "host":
        monkeypatch.setattr(needle_tvm.target.spec.host, "identity", lambda: "another")
    else:
        source = "pair" if name in versions.pair() else "stamp"
        found = getattr(versions, source)()
        assert name in found
        for module in [versions, *([runtime_versions] if source == "pair" else [])]:
            monkeypatch.setattr(module, source, lambda: {**found, name: "another"})
    return model, inputs, options


CHANGES = ["architecture", "batch", "dtype", "stage", "target", "threads", "host", "an op's rule"]
# "compiler" identifies TVM's compiler library, into which LLVM is linked.
VERSIONS = ["needle", "sources", "tvm", "tvm_ffi", "compiler"]


@pytest.mark.parametrize("change", CHANGES + VERSIONS)
def test_a_stale_library_is_never_served(x, change, monkeypatch):
    model = make_mlp(8, 4)
    compile(model, x)
    assert compile(model, x).from_cache
    changed, inputs, options = variant(change, x, monkeypatch)
    assert not compile(changed, inputs, **options).from_cache


def test_the_stamp_holds_every_version(monkeypatch):
    stamp = versions.stamp()
    assert sorted(stamp) == sorted(VERSIONS)
    assert all(stamp.values())


def test_the_search_is_part_of_the_key():
    common = {"graph": "g", "target": {"kind": "llvm"}, "stage": "tuned"}
    searches = [Options(), Options(1), Options(2), Options(2, minutes=1), Options(2, seed=1)]
    entries = {cache.entry(cache.key(**common, search=each.cache_key())) for each in searches}
    assert len(entries) == len(searches)


@pytest.mark.parametrize("name", [layout.LIBRARY, layout.MANIFEST])
def test_a_damaged_entry_is_compiled_anew(x, name):
    model = make_mlp(8, 4)
    path = compile(model, x).path / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.warns(UserWarning, match=r"compiled again: .*damaged|compiled again: .*read"):
        assert not compile(model, x).from_cache
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compile(model, x).from_cache
