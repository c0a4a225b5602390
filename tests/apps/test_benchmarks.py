"""The mechanics of a benchmark run; the figures are not checked."""

import json
import os
import subprocess
import sys

import pytest

from bench.cpu.__main__ import main
from tests import ROOT

pytestmark = pytest.mark.slow


def run(cache_dir, *arguments, name="cpu"):
    return subprocess.run(
        [sys.executable, "-m", f"bench.{name}", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "NEEDLE_CACHE_DIR": str(cache_dir)},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_short_run(cache_dir, tmp_path):
    quick = ("--rounds", 2, "--block-seconds", 0.02, "--out", tmp_path)
    done = run(cache_dir, "--models", "mlp", "--peers", "torch", "onnxruntime", *quick)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "cpu.json").read_text())
    (case,) = result["cases"]
    names = [entry["name"] for entry in case["contestants"]]
    assert names[:2] == ["needle eager", "needle tuned"]
    assert set(names[2:]) | set(result["peers_missing"]) >= {"PyTorch eager", "ONNX Runtime"}
    times = {entry["name"]: entry["blocks"] for entry in case["contestants"]}
    ratio = case["ratios"]["needle tuned"]["needle eager"]
    pairs = zip(times["needle eager"], times["needle tuned"], strict=True)
    by_round = sorted(eager / tuned for eager, tuned in pairs)
    assert by_round[0] <= ratio["lower"] <= ratio["median"] <= ratio["upper"] <= by_round[-1]
    assert all(entry["error"] < 1e-5 for entry in case["contestants"])
    assert case.get("fastest") in (*names[2:], None)
    assert (tmp_path / "cpu.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "cpu.md").read_text()
    for name in names:
        assert f"| {name} |" in page
    assert case["case"] in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rounds", "0"],
        ["--block-seconds", "nan"],
        ["--treads"],
        ["--models", "gpt"],
        ["--batches", "0"],
        ["--peers", "torhc"],
        ["--trials", "-1"],
        ["--out", "/dev/null/x"],
    ],
)
def test_bad_arguments_are_one_line(cache_dir, capsys, monkeypatch, arguments):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(cache_dir))
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert arguments[0] in line or arguments[-1] in line


def test_a_bad_argument_ends_the_command(cache_dir):
    done = run(cache_dir, "--rounds", "0")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--rounds" in line


@pytest.mark.peer
def test_a_step_takes_no_more_memory_than_it_should(cache_dir, tmp_path):
    """At most 1.3 times PyTorch's peak. Peaks are counted, so the test does not depend on time."""
    pytest.importorskip("torch")
    models, contestants = ("vae", "lstm", "gpt"), ("needle eager", "PyTorch eager")
    done = run(
        *(cache_dir, *models, "--memory", "--contestants", *contestants, "--out", tmp_path),
        name="training_steps",
    )
    assert done.returncode == 0, done.stderr
    cases = json.loads((tmp_path / "training_memory.json").read_text())["memory"]
    assert [case["case"] for case in cases] == list(models)
    for case in cases:
        peaks = case["bytes"]
        assert peaks["needle eager"] <= 1.3 * peaks["PyTorch eager"], case
