"""The mechanics of a benchmark run; its figures mean nothing here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(cache_dir, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.mlp", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "NEEDLE_CACHE_DIR": str(cache_dir)},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_short_run(cache_dir, tmp_path):
    done = run(cache_dir, "--rounds", 2, "--block-seconds", 0.02, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "mlp.json").read_text())
    (case,) = result["cases"]
    names = [entry["name"] for entry in case["contestants"]]
    assert names[:2] == ["needle eager", "needle tuned"]
    assert set(names[2:]) | set(result["peers_missing"]) >= {"PyTorch eager", "ONNX Runtime"}
    times = {entry["name"]: entry["blocks"] for entry in case["contestants"]}
    ratio = case["ratios"]["needle tuned"]["needle eager"]
    pairs = zip(times["needle eager"], times["needle tuned"], strict=True)
    by_round = sorted(eager / tuned for eager, tuned in pairs)
    assert by_round[0] <= ratio["lower"] <= ratio["median"] <= ratio["upper"] <= by_round[-1]
    assert (tmp_path / "mlp.png").read_bytes().startswith(b"\x89PNG")
    for name in names:
        assert name in done.stdout


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--block-seconds", "nan"], ["--treads"]])
def test_bad_arguments_are_one_line(cache_dir, arguments):
    done = run(cache_dir, *arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert arguments[0] in line
