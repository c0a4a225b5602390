"""`make gpu-test` and `make gpu-bench` where there is no GPU: refusals, budgets, results."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tvm", reason="the lab needs the [tvm] extra")

import kernel_lab.run
from benchmarks import gpu, gpu_report, gpu_steps
from kernel_lab import build, field, registry
from kernel_lab.errors import WrongResult
from kernel_lab.ladders import vector_add_cpu
from kernel_lab.run import Request
from kernel_lab.rung import Ladder
from needle_tvm.timing import TimingError

ROOT = Path(gpu.__file__).resolve().parent.parent
H200 = gpu.Gpu("NVIDIA H200", "580.1", "sm_90")


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder that is the whole PATH, with a GPU and nvcc in it."""
    program(tmp_path, "nvidia-smi", "echo 'NVIDIA H200, 580.1, 9.0'; echo 'Second, 1, 8.0'")
    program(tmp_path, "nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("command", ["test", "bench"])
@pytest.mark.parametrize("driver", [None, "echo 'No devices were found'; exit 6"])
def test_without_a_gpu_each_is_one_line(command, driver, tmp_path):
    if driver:
        program(tmp_path, "nvidia-smi", driver)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", command],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"gpu-{command}: there is no GPU here: ")
    assert ("No devices were found" if driver else "no nvidia-smi") in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["bench", "--rounds", "0"], "--rounds: '0' is not a whole number of at least 1"),
        (["bench", "--only", "nosuch"], "invalid choice: 'nosuch'"),
        (["bench", "--nosuch"], "unrecognized arguments: --nosuch"),
        (["nosuch"], "invalid choice: 'nosuch'"),
    ],
)
def test_a_bad_argument_is_one_line(arguments, told, capsys):
    with pytest.raises(SystemExit) as ended:
        gpu.main(arguments)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_said_before_anything_runs(tools, capsys):
    file = tools / "file"
    file.touch()
    assert gpu.main(["bench", "--out", str(file / "results")]) == 1
    assert capsys.readouterr().err.startswith(f"gpu-bench: --out {file}/results: ")


def test_the_first_gpu_is_found(tools):
    assert gpu.find_gpu() == H200
    assert H200.slug == "h200"
    assert gpu.Gpu("NVIDIA GeForce RTX 4090", "1", "sm_89").slug == "geforce-rtx-4090"


def test_a_missing_compiler_or_module_is_said(tools, monkeypatch):
    monkeypatch.setattr(gpu, "SETUP", tools / "setup.sh")
    gpu.need_tools("test")
    found = gpu.importlib.util.find_spec
    monkeypatch.setattr(
        gpu.importlib.util, "find_spec", lambda name: None if name == "tvm" else found(name)
    )
    with pytest.raises(gpu.Refusal, match="no module tvm: install the project"):
        gpu.need_tools("bench")
    (tools / "setup.sh").touch()
    gpu.need_tools("bench")  # TVM comes by the bundle
    (tools / "nvcc").unlink()
    gpu.need_tools("bench")  # nvcc may, too
    monkeypatch.setenv(gpu.STARTED, "1")
    with pytest.raises(gpu.Refusal, match="no nvcc"):
        gpu.need_tools("bench")


def test_the_bundle_is_set_up_once_and_the_command_goes_on(tmp_path, monkeypatch):
    """The real script sources a bundle that brings a module and is then itself again."""
    root = tmp_path / "root"
    (root / "benchmarks").mkdir(parents=True)
    (root / ".gpu").mkdir()
    (root / "benchmarks" / "__init__.py").touch()
    (root / "benchmarks" / "gpu.py").write_text(
        "import os, sys\nprint('again', sys.argv[1:], os.environ['NEEDLE_GPU_STARTED'] > '1')\n"
    )
    (root / ".gpu" / "setup.sh").write_text("export BUNDLE=here\necho set up\n")
    text = (
        "import importlib.util\nfrom benchmarks import gpu\nfrom pathlib import Path\n"
        f"gpu.ROOT = Path({str(root)!r})\ngpu.SETUP = gpu.ROOT / '.gpu' / 'setup.sh'\n"
        "importlib.util.find_spec = lambda name: None\n"
        "gpu.set_up(['bench', '--only', 'a b'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set up\nagain ['bench', '--only', 'a b'] True\n"


def test_ladders_share_the_time_and_what_is_left_goes_on():
    now, seen, kept = [0.0], [], {}
    takes = {"a": 10.0, "b": 300.0, "c": 30.0, "d": 1.0}

    def run(name, seconds):
        seen.append((name, round(seconds)))
        now[0] += min(takes[name], seconds)
        return "too slow" if takes[name] > seconds else {"name": name}

    shares = {"a": 2, "b": 1, "c": 1, "d": 1}
    gpu.in_turn(shares, 100.0, run, kept.__setitem__, clock=lambda: now[0])
    assert seen == [("a", 60), ("b", 45), ("c", 34)]
    assert kept["a"] == {"name": "a"} and kept["b"] == "too slow" and kept["c"] == {"name": "c"}
    assert kept["d"].startswith("15 s were left")


def test_all_gpu_ladders_have_a_share():
    there = {name for name, device in registry.LADDERS if device == "cuda"}
    assert set(gpu.LADDERS) - set(gpu.AT_SIZE) == there
    for name, size, first in gpu.AT_SIZE.values():
        ladder = registry.ladder(name, "cuda")
        assert ladder[first].claims(ladder.workload.size("cuda", size)) is None


def test_a_ladder_that_fails_or_takes_too_long_is_a_reason(capfd):
    if build.why_no_gpu() is None:
        pytest.skip("there is a GPU here")
    assert gpu.run_ladder("vector_add", 1, 100).startswith("no CUDA device was found")
    assert capfd.readouterr().err.count("\n") <= 2  # a line, no traceback
    assert gpu.run_ladder("vector_add", 1, 0.05) == "it was not done within the 0 s it was given"


@pytest.fixture
def pretended(monkeypatch):
    """The vector_add ladder of a GPU, with this processor in its place."""
    ladder = Ladder(vector_add_cpu.ladder.workload, "cuda")
    ladder.rungs += vector_add_cpu.ladder.rungs[:2]
    target = build.make_target("cpu")
    monkeypatch.setitem(registry.LADDERS, ("vector_add", "cuda"), ladder)
    monkeypatch.setattr(build, "why_no_gpu", lambda: None)
    monkeypatch.setattr(build, "gpu_architecture", lambda: "sm_90a")
    monkeypatch.setattr(build, "make_target", lambda device, arch=None: target)
    monkeypatch.setattr(field, "PLACE", "cpu")
    return ladder


def test_a_gpu_ladder_from_end_to_end_with_a_processor_in_its_place(
    pretended, monkeypatch, tmp_path
):
    """Everything but the GPU: compiled, checked, timed with its launches, written."""
    size = {"N": 4096}
    run = kernel_lab.run.run

    def small(request, progress=None):
        return run(Request(**{**vars(request), "size": size}), progress)

    monkeypatch.setattr(kernel_lab.run, "run", small)
    found = gpu.measure("vector_add", rounds=2)
    assert found["target"]["arch"] == "sm_90a" and found["left_out"] == {}
    assert found["versions"]["TVM"].startswith("0.")
    for entry in (*found["rungs"], *found["peers"]):
        assert len(entry["blocks"]) == 2 and entry["error"] <= entry["tolerance"]
        assert entry["launch_seconds"]["median"] > 0
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(gpu, "run_ladder", lambda name, rounds, seconds: json.loads(as_json))
    as_json = json.dumps(found)
    options = argparse.Namespace(
        out="results", rounds=2, only=["vector_add"], seconds=100.0, given="--rounds 2"
    )
    assert gpu.bench(options, H200, gpu.time.time()) == 0
    (page,) = (tmp_path / "results").glob("*-lab-h200.md")
    text = page.read_text()
    assert "NVIDIA H200 (sm_90), driver 580.1" in text and 'ARGS="--rounds 2"' in text
    assert f"TVM {found['versions']['TVM']}" in text and "NumPy" in text
    assert "## vector_add" in text and f"| {pretended.rungs[1].name} |" in text
    kept = json.loads(page.with_suffix(".json").read_text())
    assert kept["ladders"][0]["rungs"][0]["blocks"] == found["rungs"][0]["blocks"]


@pytest.mark.parametrize(
    "error",
    [WrongResult("vector_add: threads differs", "threads"), TimingError("threads, one launch: x")],
    ids=["wrong", "failed"],
)
def test_a_rung_that_is_wrong_or_fails_is_left_out_and_told(error, monkeypatch):
    asked = []

    class Result:
        def to_dict(self):
            return {"rungs": []}

    def run(request):
        asked.append(list(request.rungs))
        if "threads" in request.rungs:
            raise error
        return Result()

    monkeypatch.setattr(kernel_lab.run, "run", run)
    found = gpu.measure("vector_add", 1)
    assert found["left_out"] == {"threads": str(error)}
    assert "threads" in asked[0] and "threads" not in asked[1] and len(asked) == 2


def test_a_peer_that_fails_is_left_out_with_the_peers(monkeypatch):
    class Result:
        def to_dict(self):
            return {"rungs": []}

    def run(request):
        if request.peers:
            raise TimingError("PyTorch: out of memory")
        return Result()

    monkeypatch.setattr(kernel_lab.run, "run", run)
    assert gpu.measure("vector_add", 1)["left_out"] == {"PyTorch": "PyTorch: out of memory"}

    def never(request):
        raise TimingError("PyTorch: out of memory")

    monkeypatch.setattr(kernel_lab.run, "run", never)
    with pytest.raises(TimingError):
        gpu.measure("vector_add", 1)


def entry(name, kind="schedule", precision="float32", blocks=(2e-3, 4e-3), **others):
    quartiles = {"median": blocks[0], "lower": blocks[0], "upper": blocks[-1]} if blocks else None
    return {
        "name": name,
        "kind": kind,
        "precision": precision,
        "seconds": quartiles,
        "blocks": list(blocks),
        "launch_seconds": quartiles,
        "gigaflops": 1234.5,
        "speedup_naive": None,
        "speedup_previous": None,
        "surprising": False,
        "expected": [1, 2],
        "refused": None,
        "error": 1e-7,
        "tolerance": 1e-5,
        **others,
    }


def test_the_page_sets_like_beside_like_and_tells_what_is_missing():
    ladder = {
        "workload": "gemm",
        "title": "matrix product",
        "size": {"M": 8},
        "machine": {"processor": "Some CPU"},
        "rungs": [
            entry("naive", "naive"),
            entry("tensor", precision="float16", blocks=(1e-3, 1e-3)),
            entry("newest", blocks=(), refused="it needs sm_100"),
        ],
        "peers": [
            entry("PyTorch", "peer", blocks=(1e-3, 3e-3), expected=None),
            entry("PyTorch, TF32", "peer", precision="tf32", blocks=(5e-4, 5e-4), expected=None),
        ],
        "left_out": {"broken": "gemm: broken differs"},
        "peers_missing": {},
    }
    text = gpu_report.markdown(
        {
            "date": "2026-11-21T10:00:00+00:00",
            "gpu": {"name": "NVIDIA H200", "driver": "580.1", "architecture": "sm_90"},
            "command": "make gpu-bench",
            "rounds": 2,
            "versions": {"TVM": "0.27"},
            "ladders": [ladder],
            "not_measured": {"conv1d": "it was not done within the 9 s it was given"},
        }
    )
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    }
    over = gpu_report._HEADINGS.index("PyTorch's time / ours")
    assert rows["naive"][over] == "0.62"  # the median of 1/2 and 3/4
    assert rows["tensor"][over] == "0.50" and rows["tensor"][2] == "float16"
    assert rows["PyTorch"][over] == "" and "newest" not in rows
    assert "- conv1d: it was not done" in text
    assert "- gemm, newest: it needs sm_100" in text and "- gemm, broken: gemm: broken" in text


def test_reports_of_pytest_are_counted():
    report = '<testsuites><testsuite tests="7" failures="1" errors="1" skipped="2"/></testsuites>'
    assert gpu_steps.count_tests(report) == {"passed": 3, "failed": 2, "skipped": 2}


def step(title, tmp_path, body, share=1, **environment):
    path = tmp_path / f"test_{title}.py"
    path.write_text(body)
    arguments = (str(path), "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "-c", os.devnull)
    return gpu_steps.Step(title, arguments, share, environment=environment)


def test_steps_are_run_in_their_time_and_told(tmp_path, capfd):
    reads = "import os\ndef test_it(): assert os.environ['A'] == 'b'"
    sleeps = "import time\ndef test_it(): time.sleep(60)"
    found = [
        step("right", tmp_path, reads, A="b"),
        step("wrong", tmp_path, "def test_it(): assert False"),
        step("slow", tmp_path, sleeps),
        step("late", tmp_path, reads),
    ]
    times = iter([0.0, 0.0, 75.0, 95.0])
    code, told = gpu_steps.run_all(found, ["-q"], 100.0, clock=lambda: next(times))
    assert code == 1
    assert told[0] == "right: passed (1 passed, 0 failed, 0 skipped)"
    assert told[1] == "wrong: failed (exit 1) (0 passed, 1 failed, 0 skipped)"
    assert told[2].startswith("slow: not done within 1") and told[3].startswith("late: not run")
    assert gpu_steps.run_all(found[:1], [], 100.0, clock=lambda: 0.0)[0] == 0


def test_nothing_that_ran_is_a_failure(tmp_path):
    skips = "import pytest\n@pytest.mark.skip\ndef test_it(): pass"
    code, told = gpu_steps.run_all([step("skips", tmp_path, skips)], [], 100.0, clock=lambda: 0.0)
    assert code == 1 and told == ["skips: passed (0 passed, 0 failed, 1 skipped)"]


def test_every_step_names_what_is_there(monkeypatch):
    monkeypatch.setattr(gpu_steps.shutil, "which", lambda name: f"/bin/{name}")
    found = gpu_steps.steps(["tests/lab/test_gpu_ladders.py"])
    assert len({each.title for each in found}) == 6
    for each in found:
        paths = [word for word in each.arguments if word.startswith("tests/")]
        assert paths and all((gpu_steps.ROOT / path).exists() for path in paths)
