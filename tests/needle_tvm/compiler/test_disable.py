"""Passes and schedule rules left out by name: the rest computes the same, or says why it cannot."""

from itertools import product

import numpy as np
import pytest

from needle import Tensor, nn
from needle.testing import assert_close

pytest.importorskip("tvm", reason="needs the [tvm] extra")

from needle_tvm import cache
from needle_tvm._tvm.names import te, topi
from needle_tvm.compiler.compiler import compile
from needle_tvm.errors import StageError
from needle_tvm.kernels import cpu
from needle_tvm.lower import pipeline
from needle_tvm.stages import STAGES
from needle_tvm.target.spec import resolve

TARGET = resolve("cpu", 2).to_tvm()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def model():
    layers = (nn.Conv(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(125, 7))
    return nn.Sequential(*layers).eval()


@pytest.fixture
def x():
    return Tensor(np.random.default_rng(0).standard_normal((2, 3, 5, 5), dtype=np.float32))


def test_every_pass_and_rule_of_a_stage_has_a_switch():
    for stage, kind in product(STAGES, pipeline.PIPELINES):
        names = pipeline.switches(stage, kind)
        assert len(set(names)) == len(names) and all(name.isidentifier() for name in names)
    assert {*cpu.names(), "fold_scale", "FuseOps", "schedule"} <= set(pipeline.switches("tuned"))
    assert "schedule" not in pipeline.switches("fused")


def test_nothing_left_out_is_the_pipeline_itself():
    for stage in STAGES:
        assert pipeline.without(TARGET, stage, ()) is pipeline.of(TARGET, stage)


@pytest.mark.parametrize("stage", STAGES)
def test_a_pass_goes_wherever_it_stands(stage):
    left = pipeline.without(TARGET, stage, ["CanonicalizeBindings"]).graph
    assert {apply.__name__ for apply in left} == {
        apply.__name__ for apply in pipeline.of(TARGET, stage).graph
    } - {"CanonicalizeBindings"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["schedule", "fold_scale", "pack_weights", "FuseOps", *cpu.names()],
)
def test_what_is_left_computes_the_same(model, x, name):
    whole, found = compile(model, x), compile(model, x, disable=[name])
    expected = model(x).numpy()
    assert_close(found(x).numpy(), expected, 125 * 27, scale=float(np.abs(expected).max()))
    assert whole.manifest["key"]["disable"] == [] and found.manifest["key"]["disable"] == [name]


@pytest.mark.parametrize(
    ("name", "shape", "result"),
    [
        ("partial_results", (8, 512), lambda x: topi.sum(x, 1)),
        ("columns", (512, 64), lambda x: topi.sum(x, 0)),
        (
            "windows",
            (1, 8, 56, 56),
            lambda x: topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max"),
        ),
        ("whole_vectors", (8, 509), lambda x: topi.add(x, x)),
    ],
)
def test_the_default_rule_has_switches_for_its_parts(name, shape, result):
    x = te.placeholder(shape, "float32", "x")
    function = te.create_prim_func([x, result(x)])
    whole = cpu.schedule_function(function, TARGET)
    for other in cpu.names():
        left = cpu.schedule_function(function, TARGET, without=[other])
        assert (whole.script() == left.script()) == (other != name), other


def test_what_is_left_out_is_part_of_the_key(model, x):
    compile(model, x)
    assert not compile(model, x, disable=["fold_scale"]).from_cache
    assert compile(model, x, disable=["fold_scale"]).from_cache
    common = {"graph": "g", "target": {}, "stage": "tuned", "search": {}}
    keys = [cache.key(**common, disable=names) for names in ((), ("a",), ("a", "b"), ("b", "a"))]
    assert len({cache.entry(key) for key in keys}) == 3


@pytest.mark.parametrize("stage", STAGES)
def test_an_unknown_name_is_refused(model, x, stage):
    with pytest.raises(StageError, match=f"'fold_scales': stage '{stage}' has only .*own_outputs"):
        compile(model, x, stage=stage, disable=["fold_scales"])


@pytest.mark.parametrize("budget", [{"trials": 3}, {"minutes": 1}])
def test_a_search_leaves_nothing_out(model, x, budget):
    with pytest.raises(StageError, match=r"disable=.*a search uses all"):
        compile(model, x, disable=["dense"], **budget)
