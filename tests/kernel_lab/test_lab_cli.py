"""The command line: its output, and one line for each mistake."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("tvm", reason="the lab needs the [tvm] extra")


def lab(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "kernel_lab", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NO_COLOR": "1", **environment},
    )


def test_list_names_every_rung_without_tvm():
    code = (
        "import sys; from kernel_lab.cli import main; main(['--list']); "
        "sys.exit(any(n in sys.modules for n in ('tvm', 'torch', 'needle')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for word in ("gemm", "conv1d", "cache_block", "window", "M=4096, N=128, mode=full"):
        assert word in done.stdout


def test_a_run_prints_a_table_and_gives_json_on_stdout():
    done = lab(
        *("gemm", "--size", "M=16,N=32,K=8", "--rungs", "naive,reorder"),
        *("--rounds", "1", "--json", "-"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [rung["name"] for rung in found["rungs"]] == ["naive", "reorder"]
    assert "x previous" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gemm", "--size", "M=0"], "M=0: must be at least 1"),
        (["gemm", "--size", "M=1e3"], "must be a whole number"),
        (["gemm", "--size", "512"], "must be like M=512"),
        (["gemm", "--size", "M=99999999999"], "elements"),
        (["gemm", "--rungs", "naive,fast"], "no rung 'fast'"),
        (["gemm", "-d", "tpu"], "invalid choice"),
        (["gemm", "--sweep", "M"], "must be like M="),
        (["gemm", "--sweep", "M=8,x"], "M=x: must be a whole number"),
        (["gemm", "--trials", "-1"], "below 0"),
        (["fft"], "unknown workload 'fft'"),
        ([], "name a workload"),
        (["gemm", "--json", f"{__file__}/x.json"], "is not a folder"),
    ],
)
def test_a_mistake_is_one_line(arguments, words):
    done = lab(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("python -m kernel_lab: error: ")


def test_a_gpu_ladder_without_a_gpu_is_one_line_and_untimed_runs():
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("there is a GPU here")
    done = lab("gemm", "-d", "cuda")
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr and done.stderr.count("\n") == 1
    assert "--untimed" in done.stderr and "--arch sm_75" in done.stderr
    rungs = ("--rungs", "naive,threads_2d", "--size", "M=64,N=64,K=16")
    done = lab("gemm", "-d", "cuda", "--untimed", *rungs)
    assert done.returncode == 0, done.stderr
    assert "unmeasured" in done.stdout and "threads_2d" in done.stdout
    assert "Static figures for sm_90" in done.stdout and "C 4, A 2, B 2" in done.stdout
    heading = done.stdout.splitlines()[1]
    assert heading.split() == ["kind", "time", "expected"]  # other columns would be empty


def test_a_missing_pytorch_is_said_and_the_rest_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'torch' else found(name, *rest)\n"
    )
    done = lab(
        *("vector_add", "--size", "N=100", "--rungs", "naive", "--rounds", "1", "--peers"),
        PYTHONPATH=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert "PyTorch left out: not installed: torch" in done.stdout


def test_importing_the_lab_is_cheap_and_silent():
    code = "import sys, kernel_lab; sys.exit(any(n in sys.modules for n in ('tvm', 'needle')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
