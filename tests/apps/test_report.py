"""An evaluation's table, JSON and chart."""

import io
import json
import re

import pytest
from rich.console import Console

from apps import report


def entry(name, median):
    ratio = 2e-4 / median
    spread = 0 if ratio == 1 else 0.1  # eager beside itself
    return {
        "name": name,
        "median": median,
        "lower_quartile": median * 0.9,
        "upper_quartile": median * 1.1,
        "ratio_to_eager": {
            "median": ratio,
            "lower": ratio * (1 - spread),
            "upper": ratio * (1 + spread),
        },
    }


@pytest.fixture
def result():
    parity = {"ok": True, "max_absolute": 1e-6, "max_relative": 2e-6}
    return {
        "model": "mlp",
        "device": "cpu",
        "date": "2026-01-02T03:04:05+00:00",
        "machine": {"processor": "a processor", "threads": 2},
        "inputs": [{"shape": [8, 512], "dtype": "float32"}],
        "stages": {
            "noopt": {"seconds_to_ready": 2.0, "from_cache": False, "parity": dict(parity)},
            "tuned": {"seconds_to_ready": 0.1, "from_cache": True, "parity": dict(parity)},
        },
        "timing": {
            "contestants": [
                entry("needle eager", 2e-4),
                entry("noopt", 1.38e-2),
                entry("tuned", 4.7e-5),
                entry("ONNX Runtime", 7e-5),
            ]
        },
        "peers_missing": {"PyTorch eager": ["torch"]},
        "ok": True,
    }


def table(result, width=80):
    text = io.StringIO()
    report.print_table(result, Console(file=text, width=width))
    return text.getvalue()


def test_the_table_fits_80_columns_and_says_it_all(result):
    text = table(result)
    rows = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    assert "47.0 µs" in rows["tuned"]
    assert "4.26 times faster" in rows["tuned"]
    assert "69 times slower" in rows["noopt"]
    assert not re.search("faster|slower|as fast", rows["needle eager"])
    assert "100 ms*" in rows["tuned"]
    assert "2.00 s" in rows["noopt"]
    assert "70.0 µs" in rows["ONNX Runtime"]
    assert "* from the cache, verified: 100 ms in all" in text
    assert "PyTorch eager left out: not installed: torch" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_ladder_says_what_each_step_does_and_gains(result):
    result["ladder"] = {"needle eager": "as written", "noopt": "loops", "tuned": "rules and more"}
    result["timing"]["contestants"][2]["ratio_to_previous"] = {
        "median": 293.6,
        "lower": 280.0,
        "upper": 300.0,
    }
    text = table(result)
    rows = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    assert re.search(r"noopt +loops +13.8 ms +69 times slower", rows["noopt"])
    assert re.search(
        r"tuned +rules and more +47.0 µs +4.26 times faster +294 times faster", rows["tuned"]
    )
    assert "as written" in rows["needle eager"]
    assert "70.0 µs" in rows["ONNX Runtime"] and "cache" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_mismatch_is_named(result):
    result["stages"]["tuned"]["parity"] |= {"ok": False, "diverges": "relu in layers.1"}
    del result["timing"]
    assert "MISMATCH: tuned differs from the eager model, first at relu in layers.1" in table(
        result
    )


def test_accuracies_get_a_column(result):
    result["digits"] = {"accuracy": {"needle eager": 0.975, "tuned": 0.5}, "identical": False}
    text = table(result, width=100)
    assert "97.50%" in text
    assert "do not all predict the same" in text


def test_json_is_strict(result):
    assert json.loads(report.to_json(result)) == result
    with pytest.raises(ValueError, match="JSON"):
        report.to_json({"x": float("nan")})


def test_writing_is_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "file"
    report.write_atomically(path, b"first")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(report.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        report.write_atomically(path, b"second")
    assert path.read_bytes() == b"first"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_the_chart_is_a_picture(result, tmp_path):
    report.draw_chart(result, tmp_path / "chart.png")
    content = (tmp_path / "chart.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") > 800  # width in pixels
