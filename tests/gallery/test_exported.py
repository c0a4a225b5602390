"""The lessons' models as ONNX: exported after a few steps of training, they mean the same to ONNX
Runtime and to needle that reads the file again."""

import runpy
import sys

import numpy as np
import pytest

import needle as ndl
from needle.testing import assert_close
from needle.trace.graph import flatten_outputs
from tests import ROOT
from tests.gallery.test_gallery import RUNS
from tests.needle.onnx.exporting import loaded, run

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.mark.slow
@pytest.mark.parametrize("lesson", RUNS, ids=" ".join)
def test_a_lesson_is_exported(lesson, load, monkeypatch, tmp_path):
    made = []

    def finish(_, model, inputs, *__, **___):
        made.append((model.eval(), [np.asarray(x) for x in inputs]))

    monkeypatch.setattr(load("common").Lesson, "finish", finish)
    script, *choices = lesson
    path = ROOT / "gallery" / f"{script}.py"
    argv = [str(path), *choices, "--steps", "2", "--quiet", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", argv)
    runpy.run_path(str(path), run_name="__main__")
    assert made
    for model, inputs in made:
        file = tmp_path / "model.onnx"
        ndl.onnx.export(model, tuple(inputs), file)
        with ndl.no_grad():
            _, expected = flatten_outputs(model(*map(ndl.Tensor, inputs)))
        for results in (run(file, inputs), loaded(file, inputs)):
            for got, (name, want) in zip(results, expected, strict=True):
                assert_close(got, want.numpy(), rtol=2e-5, scale=1, what=name)
