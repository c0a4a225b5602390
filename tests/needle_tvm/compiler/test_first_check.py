"""Newly compiled code is compared with the model before the user gets it."""

import json
import os
import platform
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import needle as ndl
import needle_runtime
import needle_tvm
from needle import nn, ops
from needle.op import REGISTRY, Elementwise, register
from needle_runtime.artifact.manifest import read_manifest
from needle_runtime.errors import InputError
from needle_runtime.random_inputs import random_inputs
from needle_tvm import MismatchError
from needle_tvm.errors import ToolchainError
from tests.needle_tvm.conftest import make_mlp, tensor

STAGES = ("noopt", "fused", "tuned")


@pytest.fixture
def wrong_cube():
    """A user's op x ** 3 that compiles to x * x."""

    @register
    class WrongCube(Elementwise):
        """y = x ** 3."""

        def reference(self, x):
            return x * x * x

        def compute(self, x):
            return x * x * x

        def gradient(self, out_grad, node):
            (x,) = node.inputs
            return out_grad * x * x * 3

        def emit_te(self, k, x):
            return k.topi.multiply(x, x)

    yield WrongCube()
    del REGISTRY["wrong_cube"]


def test_one_wrong_result_of_several_is_refused(wrong_cube):
    x = tensor(np.full((4, 5), 3, "float32"))
    for results in (lambda x: (x + 1, wrong_cube(x)), lambda x: (wrong_cube(x), x + 1)):
        with pytest.raises(MismatchError, match="wrong_cube"):
            needle_tvm.compile(results, x, stage="noopt")


@pytest.mark.parametrize("stage", STAGES)
def test_a_wrong_rule_is_refused_by_name_and_nothing_is_cached(
    stage, wrong_cube, tmp_path, monkeypatch
):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path))
    x = tensor(np.full((4, 5), 3, "float32"))

    class Model(nn.Module):
        def forward(self, x):
            return ops.exp(wrong_cube(x) / 100)

    model = Model()
    model.eval()
    for _ in range(2):  # twice, as the first attempt must leave nothing in the cache
        with pytest.raises(MismatchError, match=rf"{stage}.*wrong_cube.*check=False") as raised:
            needle_tvm.compile(model, x, stage=stage)
        assert ("stage='noopt' has wrong_cube wrong, too" in str(raised.value)) is (
            stage != "noopt"
        )
        assert not list(tmp_path.rglob("manifest.json"))
    compiled = needle_tvm.compile(model, x, stage=stage, check=False)
    assert compiled(x).numpy()[0, 0] == pytest.approx(np.exp(0.09), rel=1e-6)
    assert compiled.manifest["checked"] is False
    with pytest.raises(MismatchError):  # an unchecked entry does not pass for a checked one
        needle_tvm.compile(model, x, stage=stage)


def test_the_manifest_says_that_it_passed(rng):
    x = tensor(rng.standard_normal((3, 8)).astype("float32"))
    model = make_mlp(8, 9, 2)
    assert needle_tvm.compile(model, x).manifest["checked"] is True
    again = needle_tvm.compile(model, x)
    assert again.from_cache and again.manifest["checked"] is True


def test_what_was_not_checked_is_compiled_and_checked_when_asked(rng, tmp_path, monkeypatch):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path))
    x = tensor(rng.standard_normal((3, 8)).astype("float32"))
    model = make_mlp(8, 9, 2)
    assert not needle_tvm.compile(model, x, check=False).from_cache
    assert needle_tvm.compile(model, x, check=False).from_cache
    checked = needle_tvm.compile(model, x)
    assert not checked.from_cache and checked.manifest["checked"] is True
    assert needle_tvm.compile(model, x, check=False).from_cache


def test_code_for_another_processor_is_not_checked(rng):
    x = tensor(rng.standard_normal((3, 8)).astype("float32"))
    target = {"kind": "llvm", "mcpu": "diamondrapids"}  # not the processor of this machine
    compiled = needle_tvm.compile(make_mlp(8, 9, 2), x, target=target)
    assert compiled.manifest["checked"] is False
    assert needle_tvm.compile(make_mlp(8, 9, 2), x, target=target).manifest["checked"] is False


@pytest.mark.skipif(platform.machine() == "aarch64", reason="the compiler here links such code")
def test_what_cannot_be_linked_here_is_said_in_a_line(rng, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    x = tensor(rng.standard_normal((3, 8)).astype("float32"))
    with pytest.raises(ToolchainError, match=r"apt install g[+]{2}-aarch64-linux-gnu") as raised:
        needle_tvm.compile(make_mlp(8, 9, 2), x, target="graviton2")
    assert "\n" not in str(raised.value)


def test_an_exported_artifact_says_whether_it_was_checked(rng, tmp_path):
    x = tensor(rng.standard_normal((3, 8)).astype("float32"))
    for check in (True, False):
        folder = tmp_path / str(check)
        needle_tvm.compile(make_mlp(8, 9, 2), x, check=check, recompile=True).export(folder)
        assert read_manifest(folder)["checked"] is check
        shown = subprocess.run(
            [sys.executable, "-m", "needle_tvm", "inspect", str(folder)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert ("with nothing: not checked" in shown) is not check


@pytest.mark.parametrize("stage", STAGES)
def test_nan_and_infinities_stand_where_the_model_has_them(stage):
    x = np.array([[-1, 0, 4, np.nan, np.inf, -np.inf]], "float32")
    compiled = needle_tvm.compile(lambda x: (ops.log(x), x / x), tensor(x), stage=stage)
    with np.errstate(all="ignore"):
        expected = np.log(x), x / x
    for found, value in zip(compiled(tensor(x)), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), value, rtol=1e-5)


def test_a_tie_is_no_mismatch():
    """Sums in another order decide which of two equal elements is the largest."""
    x = np.random.default_rng(0).standard_normal((1, 50, 300)).astype("float32")
    both = tensor(np.concatenate([x, x[:, :, ::-1]]))  # sums of the same numbers

    def f(x):
        return ops.argmax(ops.summation(ops.exp(x), axes=2), axis=0)

    compiled = needle_tvm.compile(f, both)
    assert np.any(compiled(both).numpy() != f(both).numpy())


def test_indices_are_checked_where_the_code_is_called(tmp_path):
    table = nn.Parameter(np.arange(40, dtype="float32").reshape(10, 4))

    def f(i, j):
        return ops.take(table, ops.reshape(i, (4,)), 0), ops.one_hot(j, 3)

    i, j = np.array([[0, 9], [-10, 3]]), np.array([0, 2], "int32")
    for stage in STAGES:
        compiled = needle_tvm.compile(f, tensor(i), tensor(j), stage=stage)
        rows, hot = compiled(i, j)
        np.testing.assert_array_equal(rows.numpy(), table.numpy()[i.reshape(4)])
        np.testing.assert_array_equal(hot.numpy(), np.eye(3, dtype="float32")[j])
        for wrong in (10, -11):
            with pytest.raises(InputError, match=rf"'i'.*{wrong}.*-10\.\.9"):
                compiled(np.full((2, 2), wrong), j)
        with pytest.raises(InputError, match=r"'j'.*-1.*0\.\.2"):
            compiled(i, np.array([0, -1], "int32"))
    compiled.export(tmp_path / "model")
    loaded = needle_runtime.load(tmp_path / "model")
    with pytest.raises(InputError, match=r"'i'.*10.*-10\.\.9"):
        loaded(np.full((2, 2), 10), j)
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert manifest["functions"]["main"]["inputs"][0]["range"] == [-10, 9]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32"])
def test_numbers_that_become_indices_are_checked_where_the_code_is_called(dtype):
    layer = nn.Embedding(4, 2)

    def f(i, j):
        rows, classes = (ops.cast(x, "int64") for x in (ops.reshape(i, (2,)), j))
        return layer(rows), ops.one_hot(classes, 3)

    def given(values):
        return tensor(np.array(values)).astype(dtype)

    compiled = needle_tvm.compile(f, given([[0, 3]]), given([2, 0]), stage="noopt")
    inside = [([[-4, 3]], [0, 2])]
    outside = [([[4, 0]], [0, 0]), ([[-5, 0]], [0, 0]), ([[0, 0]], [3, 0]), ([[0, 0]], [0, -1])]
    if dtype != "int32":  # floats are truncated towards zero
        inside += [([[-4.5, 3.5]], [-0.5, 2.5])]
        outside += [([[np.nan, 0]], [0, 0]), ([[0, 0]], [0, np.inf])]
    for values in inside:
        arguments = [*map(given, values)]
        for have, want in zip(compiled(*arguments), f(*arguments), strict=True):
            np.testing.assert_array_equal(have.numpy(), want.numpy())
    for values in outside:
        arguments = [*map(given, values)]
        with pytest.raises(IndexError):
            f(*arguments)
        with pytest.raises(InputError, match=r"has the index .*, which is not within"):
            compiled(*arguments)
    assert random_inputs(compiled.artifact)[0].max() <= 1  # they are valid ones


def test_an_index_that_only_part_of_is_used_may_be_anything_elsewhere():
    """Elements that a slice leaves out are not indices, so they must not be checked."""
    table = ndl.Tensor(np.arange(10, dtype="float32"))
    compiled = needle_tvm.compile(
        lambda i: ops.take(table, i[1:], 0), tensor(np.array([1, 2, 3])), stage="noopt"
    )
    np.testing.assert_array_equal(compiled(np.array([999, 2, 3])).numpy(), [2, 3])


@pytest.mark.slow
def test_a_helper_that_changes_is_noticed_in_a_new_process(tmp_path):
    """The cache key covers what `emit_te` reaches: functions, constants, methods of classes."""
    script = tmp_path / "own.py"
    source = textwrap.dedent("""
        import sys
        import numpy as np
        import needle as ndl, needle_tvm
        from needle.op import Elementwise, register
        import helper

        @register
        class Own(Elementwise):
            '''y = what the helper makes of x.'''

            def reference(self, x): return helper.factor() * x
            def compute(self, x): return x * helper.factor()
            def gradient(self, out_grad, node): return out_grad * helper.factor()
            def emit_te(self, k, x): return helper.Rule().made(k, x)

        x = ndl.Tensor(np.ones(3, "float32"), requires_grad=False)
        compiled = needle_tvm.compile(lambda x: Own()(x), x, check=False)
        print(compiled(x).numpy()[0], compiled.from_cache)
    """)
    helper = textwrap.dedent("""
        FACTOR = {factor}
        def factor(): return FACTOR
        class Rule:
            def made(self, k, x): return k.topi.multiply(x, k.tirx.const(float(factor()), x.dtype))
    """)
    script.write_text(source)

    def run(factor):
        (tmp_path / "helper.py").write_text(helper.format(factor=factor))
        env = {
            **os.environ,
            "NEEDLE_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, check=True, env=env
        )
        return done.stdout.split()

    assert run(2) == ["2.0", "False"]
    assert run(2) == ["2.0", "True"]
    assert run(5) == ["5.0", "False"]
