"""A rule, a pass or TVM that fails on a model gives one sentence that names it, not TVM's page."""

import dataclasses

import pytest

import needle_tvm
from needle_tvm.errors import CompilationError
from needle_tvm.kernels import rule
from needle_tvm.kernels.dense.cpu import DENSE
from needle_tvm.lower import build, pipeline
from tests.needle_tvm.conftest import make_mlp, tensor


@pytest.fixture
def x(rng):
    return tensor(rng.standard_normal((8, 64)).astype("float32"))


def test_a_rule_that_fails_is_named_with_its_function(monkeypatch, x):
    def bad(sch, block, target, knobs):
        sch.vectorize(sch.get_loops(block)[-1])  # a reduction

    rules = {key: each for key, each in rule._RULES.items() if each.name != "dense"}
    monkeypatch.setattr(rule, "_RULES", rules)
    rule.annotated(DENSE)(bad)
    model = make_mlp(64, 32)
    with pytest.raises(
        CompilationError, match=r"fused_dense\w*: schedule rule 'dense' failed"
    ) as it:
        needle_tvm.compile(model, x)
    text = str(it.value)
    assert "\n" not in text and len(text) < 600 and "ScheduleError" in text
    assert type(it.value.__cause__).__name__ == "ScheduleError"
    assert "disable=['dense']" in text
    needle_tvm.compile(model, x, disable=["dense"])


def test_a_pass_that_fails_is_named(monkeypatch, x):
    def sink_permutes(module, target):
        raise ValueError("no such axis")

    tuned = pipeline.PIPELINES["llvm"]["tuned"]
    broken = dataclasses.replace(tuned, graph=(sink_permutes,))
    monkeypatch.setitem(pipeline.PIPELINES["llvm"], "tuned", broken)
    with pytest.raises(CompilationError, match=r"pass 'sink_permutes' failed.*no such axis"):
        needle_tvm.compile(make_mlp(64, 32), x)


def test_code_that_tvm_cannot_generate_is_said_so(monkeypatch, x):
    def failing(*args):
        raise RuntimeError("no such instruction\nand a page about it")

    monkeypatch.setattr(build, "build_objects", failing)
    with pytest.raises(CompilationError, match="code generation failed") as it:
        needle_tvm.compile(make_mlp(64, 32), x)
    assert "a page" not in str(it.value)
