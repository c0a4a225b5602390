"""The benchmark of single layers; the figures are not checked."""

import json

import pytest

pytest.importorskip("torch")

from bench import layers, torch_layers

pytestmark = pytest.mark.slow

SHORT = ["--rounds", "2", "--block-seconds", "0.01"]


def test_a_layer_beside_its_peers(tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    options = [*SHORT, "--out", str(tmp_path), "--peers", "onnxruntime"]
    assert layers.main(["average pool", *options]) == 0
    report = json.loads((tmp_path / "layers.json").read_text())
    (case,) = report["cases"]
    assert [entry["name"] for entry in case["contestants"]] == [
        *("needle tuned", "needle tuned, code"),
        *("ONNX Runtime", "ONNX Runtime, code"),
    ]
    assert list(case["calls"]) == ["needle tuned", "ONNX Runtime"]
    # A sum of four numbers and a division by four.
    assert all(entry["error"] < 1e-6 for entry in case["contestants"])
    assert case["fastest"] == "ONNX Runtime"
    assert "average pool" in (tmp_path / "layers.md").read_text()
    assert "average pool" in capsys.readouterr().out


def test_a_name_that_no_layer_has_is_refused(tmp_path, capsys):
    assert layers.main(["no such layer", *SHORT, "--out", str(tmp_path)]) == 2
    assert "no such layer" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_every_layer_computes_something():
    for name, make in torch_layers.LAYERS.items():
        module, inputs = make()
        assert module.eval()(*inputs).numel() > 0, name
