"""The script that counts which of the expected names needle has."""

import json

import pytest

from apps import surface
from apps.surface_examples import SECTIONS


@pytest.mark.slow
def test_no_name_is_absent_or_wrong(tmp_path, capsys):
    assert surface.main(["--out", str(tmp_path / "names.json")]) == 0
    results = json.loads((tmp_path / "names.json").read_text())
    assert len(results) == sum(map(len, SECTIONS.values()))
    assert not [r["name"] for r in results if r["status"] == surface.ABSENT]
    assert "Elementwise" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("section", "example", "status", "reason"),
    [
        ("Tensor", "x + y", surface.COMPILED, ""),
        ("nn.functional", "F.log_softmax(x)", surface.COMPILED, ""),
        ("Layers", "nn.Linear(4, 2) : x", surface.COMPILED, ""),
        ("Tensor", "x.tolist()", surface.REFUSED, "values are not known while tracing"),
        ("Shape", "ndl.no_such_name(x)", surface.ABSENT, "no_such_name"),
        ("Shape", "ndl.ones(2).other_name(x)", surface.WRONG, "other_name"),
        ("Shape", "ndl.reshape(x, (5, 5))", surface.WRONG, "ShapeError"),
        ("Optimizers", "step(optim.SGD(weights, lr=0.1))", surface.EAGER, ""),
        ("Optimizers", "step(optim.SGD(weights, lr=0.0))", surface.WRONG, "no weight"),
        # The second call of the function gives other values than the first one.
        ("Tensor", "x * len(scope.append(0) or scope)", surface.WRONG, "other values"),
    ],
)
def test_what_becomes_of_a_name(monkeypatch, section, example, status, reason):
    monkeypatch.setattr(surface.ndl, "counted", [], raising=False)
    found = surface.examine(section, "no_such_name", example.replace("scope", "ndl.counted"))
    assert found.status == status, found.reason
    assert reason in found.reason


def test_an_alias_is_told_from_a_name():
    assert surface.is_alias("log_softmax", "nn.functional.log_softmax(x)") is False
    assert surface.is_alias("logsoftmax", "F.logsoftmax(x)") is True
    assert surface.is_alias("no", "x + y") is False
