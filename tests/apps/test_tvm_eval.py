"""The evaluation end to end: result, reload, JSON, own models, interruption."""

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import needle_tvm
from apps import evaluation
from needle_tvm.tune.status import Status
from tests import ROOT
from tests.waiting import interrupt, until

STAGES = ["noopt", "fused", "tuned"]
QUICK = ["-m", "mlp", "--batch", "2", "--rounds", "1"]


@pytest.mark.parametrize("folder", [ROOT, pytest.param(ROOT / "apps", marks=pytest.mark.slow)])
def test_evaluation_from_anywhere(run_app, tmp_path, folder):
    done = run_app("tvm_eval.py", *QUICK, "--out", tmp_path, "--json", "-", cwd=folder)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)  # one object and nothing else
    assert result["ok"] is True
    assert list(result["stages"]) == STAGES
    names = [entry["name"] for entry in result["timing"]["contestants"]]
    assert names == ["needle eager", *STAGES]
    for entry in result["timing"]["contestants"]:
        assert entry["lower_quartile"] <= entry["median"] <= entry["upper_quartile"]
        assert entry["calls"] >= 1
    assert result["inputs"] == [{"shape": [2, 512], "dtype": "float32"}]
    assert result["parameters"] == 5 * (512 * 512 + 512)
    for stage in result["stages"].values():
        assert stage["parity"]["ok"]
        assert 0 <= stage["parity"]["max_absolute"] < 1e-3
    assert json.loads((tmp_path / "mlp-cpu.json").read_text()) == result
    assert (tmp_path / "mlp-cpu.png").read_bytes().startswith(b"\x89PNG")
    for word in ("needle eager", *STAGES, "wrote"):  # with --json - the table goes to stderr
        assert word in done.stderr


@pytest.mark.slow
def test_the_second_run_compiles_nothing(run_app, tmp_path):
    def stages(*more):
        done = run_app("tvm_eval.py", *QUICK, "--out", tmp_path, "--json", "-", "-q", *more)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return json.loads(done.stdout)["stages"]

    stages()
    reloaded = stages()
    assert all(stage["from_cache"] for stage in reloaded.values())
    again = stages("-r")
    assert not any(stage["from_cache"] for stage in again.values())


@pytest.mark.slow
def test_stages_and_ir(run_app, tmp_path):
    done = run_app(
        *("tvm_eval.py", *QUICK, "--stages", "tuned,noopt", "--out", tmp_path / "out"),
        *("--dump-ir", tmp_path / "ir", "--json", tmp_path / "deep" / "result.json"),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "deep" / "result.json").read_text())
    assert list(result["stages"]) == ["noopt", "tuned"]
    dumped = sorted(path.name for path in (tmp_path / "ir").iterdir())
    assert dumped == ["noopt.tvmscript", "tuned.tvmscript"]
    assert all("def main" in path.read_text() for path in (tmp_path / "ir").iterdir())


@pytest.mark.slow
def test_a_model_of_your_own(run_app, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        textwrap.dedent(
            """
            import numpy as np
            from needle import nn

            class Two(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.a, self.b = nn.Linear(5, 3), nn.Linear(4, 3)

                def forward(self, x, y):
                    return self.a(x) + self.b(y), self.a(x)

            def make(batch=2):
                return Two(), (np.ones((batch, 5), np.float32), np.ones((batch, 4), np.float32))
            """
        )
    )
    out = tmp_path / "out"
    done = run_app(
        *("tvm_eval.py", "-m", f"{path}:make", "--batch", "3", "--rounds", "1", "--out", out)
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((out / "mine-cpu.json").read_text())
    assert [x["shape"] for x in result["inputs"]] == [[3, 5], [3, 4]]
    assert result["ok"] is True


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("moment", ["compiling", "timing"])
def test_an_interrupt_leaves_nothing_behind(tmp_path, moment):
    environment = {
        **os.environ,
        "NEEDLE_CACHE_DIR": str(tmp_path / "cache"),
        "MARKER": str(tmp_path),
    }
    process = subprocess.Popen(
        [sys.executable, "apps/tvm_eval.py", *QUICK, "--out", str(tmp_path / "out")],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if moment in line:
                break
        assert moment in said[-1], said
        time.sleep(0.3)
        _, stderr = interrupt(process)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, stderr
    # TVM warns of a builder that the interrupt leaves open, at the process's end.
    said = [line for line in stderr.splitlines() if "remaining blocks" not in line]
    assert said[-1] == "tvm_eval.py: error: interrupted"
    assert "Traceback" not in stderr
    assert not (tmp_path / "out").exists()
    # What removes the files of a process that ended too early takes up to 2 s (scratch.reaped).
    assert until(lambda: not _processes_with(f"MARKER={tmp_path}"))
    for manifest in (tmp_path / "cache").rglob("manifest.json"):
        assert not re.search(r"tmp|partial", manifest.parent.name)


def _processes_with(setting):
    """Processes whose environment holds `setting`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if setting.encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_narrow_products(run_app, tmp_path):
    options = ("--stages", "noopt,tuned", "--rounds", "1", "--out", tmp_path)
    done = run_app("tvm_eval.py", "-m", "mlp", "--dtype", "bfloat16", *options)
    assert done.returncode == 0 and "products of bfloat16" in done.stderr + done.stdout
    result = json.loads((tmp_path / "mlp-cpu-bfloat16.json").read_text())
    exact, narrow = (result["stages"][stage]["parity"] for stage in ("noopt", "tuned"))
    assert result["dtype"] == "bfloat16" and result["ok"]
    assert narrow["max_relative"] > 100 * exact["max_relative"]
    assert narrow["tolerance"] > exact["tolerance"]
    assert [each["name"] for each in result["timing"]["contestants"]][1:] == ["noopt", "tuned"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--products", "cublas"), "--products cublas needs a GPU: add -d cuda"),
        (("--products", "measured", "-d", "cuda", "--stages", "noopt"), "is for stage 'tuned'"),
        (("--dtype", "tf32"), "--dtype tf32 needs a GPU: add -d cuda"),
        (("--dtype", "float16", "--stages", "noopt"), "is for the stages after 'noopt'"),
    ],
)
def test_products_that_no_stage_has_are_refused_before_anything_is_compiled(
    options, line, run_app, tmp_path
):
    done = run_app("tvm_eval.py", "-m", "mlp", *options, "--out", tmp_path)
    assert done.returncode == 2 and line in done.stderr
    assert "compiling" not in done.stderr and not any(tmp_path.iterdir())


def test_a_searchs_status_passes_through_as_it_is(monkeypatch):
    """The command line shows it as a table, so it must arrive as data and not as a line of text."""
    status, seen = Status({}, 1, 2, 3.0), []

    def compile(*inputs, progress, **options):
        for said in ("searching", status, "tuned: done"):
            progress(said)
        return SimpleNamespace(from_cache=False)

    monkeypatch.setattr(needle_tvm, "compile", compile)
    request = evaluation.Request("mlp", stages=("fused", "tuned"))
    subject = evaluation.build_subject(request)
    evaluation.compile_stages(subject, request, lambda done, total, text: seen.append((done, text)))
    assert [text for _, text in seen if text is status] == [status, status]
    assert [(done, text) for done, text in seen if text is not status] == [
        (0, "fused: looking in the cache"),
        (0, "fused: searching"),
        (0, "fused: tuned: done"),
        (1, "tuned: looking in the cache"),
        (1, "tuned: searching"),
        (1, "tuned: done"),
    ]


@pytest.mark.slow
def test_an_onnx_file_is_evaluated_beside_onnx_runtime(run_app, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from tests.needle.onnx.mutation import dense

    path = tmp_path / "dense.onnx"
    path.write_bytes(dense().SerializeToString())
    options = ["--batch", "3", "--rounds", "1", "--stages", "tuned", "--peers", "--json", "-"]
    done = run_app("tvm_eval.py", "-m", path, *options, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ok"]
    assert result["inputs"] == [{"shape": [3, 8], "dtype": "float32"}]
    assert not result["peers_missing"]
    names = [entry["name"] for entry in result["timing"]["contestants"]]
    assert names == ["needle eager", "tuned", "ONNX Runtime"]
