"""Measuring on a GPU host, without one: refusals, the order of contests, archives and pages."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm", reason="the benchmarks need the [tvm] extra")

from bench.gpu import __main__ as gpu
from bench.gpu import bundle, host, measure, page, plan, run, smoke
from kernel_lab import registry
from needle_runtime.process import child
from needle_runtime.target import gpu as gpus
from tests.needle_tvm import emulated_gpu

HERE = host.Host("NVIDIA H200", "sm_90", "580.1")
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
MANIFEST = {"small": False, "python": PYTHON, "arch": "sm_90"}


# Before anything is measured


@pytest.mark.parametrize("command", ["test", "bench"])
def test_without_a_gpu_each_is_one_line(command):
    if gpus.gpus():
        pytest.skip("there is a GPU here")
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu", command], cwd=host.ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"gpu-{command}: there is no GPU here: ")


def test_before_the_bundle_is_unpacked_the_standard_library_is_enough():
    others = ("numpy", "rich", "tvm", "tvm_ffi", "needle", "apps", "pytest")
    text = f"import sys, bench.gpu.__main__; print([n for n in {others} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=host.ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["bench", "--rounds", "0"], "--rounds: 0 is below 1"),
        (["bench", "--seconds", "inf"], "--seconds: inf is not a finite number above 0"),
        (["bench", "--nosuch"], "unrecognized arguments: --nosuch"),
        (["test", "--only", "nosuch"], "invalid choice: 'nosuch'"),
        (["nosuch"], "invalid choice: 'nosuch'"),
    ],
)
def test_a_bad_argument_is_one_line(arguments, told, capsys):
    with pytest.raises(SystemExit) as ended:
        gpu.main(arguments)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1


def test_an_unknown_contest_is_one_line(capsys):
    assert gpu.main(["bench", "--only", "nosuch"]) == 1
    err = capsys.readouterr().err
    assert "'nosuch' is not a contest or step: 1, 2, 3, 4, smoke, " in err and err.count("\n") == 1


def pack(folder, manifest):
    """A bundle of one file for the tree, and a manifest."""
    inside = folder / "inside"
    (inside / host.TREE / "needle").mkdir(parents=True)
    (inside / host.TREE / "needle" / "native.txt").write_text("native")
    (inside / host.SITE).mkdir()
    (inside / host.MANIFEST).write_text(json.dumps(manifest))
    bundle._pack(inside, folder / "bundle.tar.xz")
    return folder / "bundle.tar.xz"


@pytest.fixture
def unpacked(monkeypatch, tmp_path):
    """A folder in the place of the project's, and `pack` for it."""
    monkeypatch.setattr(host, "ROOT", tmp_path / "root")
    monkeypatch.setattr(host, "UNPACKED", tmp_path / "root" / "bundle")
    monkeypatch.setattr(host, "BUNDLE", tmp_path / "bundle.tar.xz")
    (tmp_path / "root").mkdir()
    return tmp_path


def test_a_bundle_is_unpacked_once_and_again_if_it_has_changed(unpacked):
    pack(unpacked, MANIFEST)
    assert host.read_manifest() == MANIFEST
    mark = host.UNPACKED / "mark"
    mark.touch()
    assert host.read_manifest() == MANIFEST and mark.exists()
    shutil.rmtree(unpacked / "inside")
    pack(unpacked, {**MANIFEST, "arch": "sm_80"})
    assert host.read_manifest()["arch"] == "sm_80" and not mark.exists()


def test_a_bundle_that_cannot_serve_is_refused(unpacked):
    with pytest.raises(host.Refusal, match="is missing: make gpu-bundle"):
        host.read_manifest()
    path = pack(unpacked, {**MANIFEST, "python": "3.7"})
    with pytest.raises(host.Refusal, match=r"the bundle is for Python 3\.7, but"):
        host.read_manifest()
    whole = path.read_bytes()
    for damaged in (whole[:100], b"", b"x" + whole[1:], whole[:200] + bytes(50) + whole[250:]):
        path.write_bytes(damaged)
        with pytest.raises(host.Refusal, match="cannot be unpacked"):
            host.read_manifest()


def test_code_for_another_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(gpus, "gpus", lambda: (emulated_gpu.GPU,))
    host.check_runs(HERE, MANIFEST)
    with pytest.raises(host.Refusal, match="the bundle is for sm_100, but NVIDIA H200 is sm_90"):
        host.check_runs(HERE, {**MANIFEST, "arch": "sm_100"})
    assert host.find_gpu() == host.Host("emulated", "sm_90", "unknown")
    assert host.Host("NVIDIA GeForce RTX 4090", "sm_89", "1").slug == "geforce-rtx-4090"


def test_the_command_starts_again_with_the_paths_of_the_bundle(unpacked):
    """The real function replaces the process by the program of the folder."""
    pack(unpacked, MANIFEST)
    package = unpacked / "root" / "bench" / "gpu"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import os, sys\nprint('again', sys.argv[1:], os.environ['NEEDLE_GPU_STARTED'])\n"
        "print(os.environ['PYTHONPATH'])\n"
    )
    text = (
        "from bench.gpu import host\nfrom pathlib import Path\n"
        f"host.ROOT = Path({str(unpacked / 'root')!r})\nhost.UNPACKED = host.ROOT / 'bundle'\n"
        f"host.BUNDLE = Path({str(unpacked / 'bundle.tar.xz')!r})\n"
        "host.read_manifest()\n"
        "host.set_up(['bench', '--only', 'a b'], 7.5)\n"
    )
    clean = {k: v for k, v in os.environ.items() if not k.endswith(("PYTHONPATH", "LIBRARY_PATH"))}
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=Path(gpu.__file__).parents[2],
        env=clean,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    again, path = done.stdout.splitlines()
    root = unpacked / "root"
    assert again == "again ['bench', '--only', 'a b'] 7.5"
    assert path.split(":") == [str(root), str(root / "bundle" / "site")]
    assert (root / "needle" / "native.txt").read_text() == "native"


# The bundle


def test_bundle_and_working_tree_fit_a_host():
    """A host takes 64 MiB: 60 MB are left to the working tree and to at most 30 MB of a bundle."""
    size = host.BUNDLE.stat().st_size if host.BUNDLE.is_file() else 30_000_000
    assert max(size, 30_000_000) + bundle.travelling_bytes() <= bundle.LIMIT == 60_000_000


def test_a_bundle_that_is_too_large_fails(monkeypatch, tmp_path, capsys):
    options = Namespace(out=tmp_path, compiler=True)
    monkeypatch.setattr(bundle, "_compiler", lambda folder: (folder / "x").write_bytes(b"x" * 99))
    assert bundle.run(options) == 0
    monkeypatch.setattr(bundle, "LIMIT", bundle.travelling_bytes())
    assert bundle.run(options) == 1
    assert "compiler.tar.xz.0 " in capsys.readouterr().out


def test_the_second_bundle_travels_in_parts(monkeypatch, unpacked):
    def fill(folder):
        (folder / host.SITE / "tvm").mkdir(parents=True)
        (folder / host.SITE / "tvm" / "compiler").write_bytes(os.urandom(5000))

    pack(unpacked, MANIFEST)
    monkeypatch.setattr(bundle, "_compiler", fill)
    monkeypatch.setattr(bundle, "_PART", 2000)
    assert bundle.run(Namespace(out=unpacked, compiler=True)) == 0
    parts = sorted(unpacked.glob("compiler.tar.xz.*"))
    assert len(parts) == 3
    assert host.read_manifest() == MANIFEST
    assert (host.UNPACKED / host.SITE / "tvm" / "compiler").stat().st_size == 5000
    parts[1].unlink()
    with pytest.raises(host.Refusal, match=r"compiler\.tar\.xz cannot be unpacked"):
        host.read_manifest()


def test_a_python_that_is_not_here_is_refused():
    found = host.run([bundle.find_python(PYTHON), "-V"])
    assert found.stdout.startswith(f"Python {PYTHON}")
    with pytest.raises(host.Refusal, match=r"there is no python3\.99 with headers here"):
        bundle.find_python("3.99")


# The plan


@pytest.mark.parametrize("small", [False, True])
def test_the_plan_is_in_order_and_has_every_ladder(small):
    found = plan.contests(small)
    steps = [contest.step for contest in found.values()]
    assert steps == sorted(steps) and set(steps) == {1, 2, 3, 4}
    ladders = [each for each in found.values() if each.kind == "ladder"]
    assert {each.subject["name"] for each in ladders} == {
        name for name, device in registry.LADDERS if device == "cuda"
    }
    for contest in ladders:  # every size and rung is one of the lab's
        ladder = registry.ladder(contest.subject["name"], "cuda")
        ladder.workload.size("cuda", contest.subject["size"])
        ladder.select(contest.subject["rungs"])
    for contest in found.values():
        json.dumps(dict(contest.subject))
        if contest.kind in ("model", "training"):
            subject = {k: v for k, v in contest.subject.items() if k != "peers"}
            assert measure.case_of(**subject).factory.startswith("apps.models.")


# The contests whose ladder a document has, and that document's number (docs/published-figures.md).
DOCUMENTS = {
    "lab-conv1d": "000",
    "lab-depthwise": "000",
    "lab-gemm": "002",
    "lab-gemm-2048": "001",
    "lab-separable": "004",
}


def test_the_documents_tables_are_at_their_sizes():
    found = plan.contests()
    for name, document in DOCUMENTS.items():
        figures = registry.workload(found[name].subject["name"]).published["cuda"]
        rungs = {figure.rung for figure in figures if figure.document == document} - {""}
        ladder = registry.ladder(found[name].subject["name"], "cuda")
        assert "naive" in rungs
        assert {r for r in rungs if "Py" not in r} <= {r.name for r in ladder.rungs}
    assert found["lab-gemm-2048"].subject["size"] == {"M": 2048, "N": 2048, "K": 2048}
    assert registry.workload("gemm").size("cuda") == {"M": 1024, "N": 512, "K": 2048}


def test_names_and_steps_choose_in_order():
    found = plan.contests()
    assert list(plan.chosen(["attention", "1"], found)) == ["smoke", "attention"]
    assert plan.chosen(None, found) == found
    assert {contest.step for contest in plan.chosen(["2"], found).values()} == {2}


# Running the contests


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """`run.run` with contests that only record that they were called."""
    asked, answers = [], {}

    class Contest:
        def __init__(self, name, service, setup, *, timeout):
            assert service == "bench.gpu.measure:serve" and setup["name"] == name
            assert 0 < timeout <= plan.contests()[name].seconds
            asked.append(name)
            self.answer = answers.get(name, {"cases": [], "tables": [], "failed": {}})

        def receive(self, step):
            if isinstance(self.answer, Exception):
                raise self.answer
            return dict(self.answer)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(child, "Child", Contest)
    monkeypatch.setattr(run, "LAST", tmp_path / "last.tar.xz")

    def call(*only, seconds=1e6, resume=None):
        asked.clear()
        options = Namespace(
            out=tmp_path / "out", resume=resume, only=only or None, rounds=2, given="--a b"
        )
        code = run.run(options, HERE, MANIFEST, run.time.time() + seconds)
        return code, run.read(run.LAST)

    call.asked, call.answers, call.folder = asked, answers, tmp_path
    return call


def test_contests_run_in_order_and_what_fails_is_told(bench, capsys):
    bench.answers["lab-gemm"] = child.ChildError("lab-gemm: no such kernel", "", "lab-gemm")
    code, found = bench("2", "attention")
    assert code == 0
    names = ["lab-conv1d", "lab-depthwise", "lab-gemm", "lab-gemm-2048", "attention"]
    assert bench.asked == names
    assert list(found["contests"]) == [name for name in names if name != "lab-gemm"]
    assert found["not_measured"] == {"lab-gemm": "no such kernel"}
    assert found["machine"]["processor"] == "NVIDIA H200 (sm_90), driver 580.1"
    assert "not measured: lab-gemm: no such kernel" in capsys.readouterr().out
    (archive,) = (bench.folder / "out").iterdir()
    assert archive.name.endswith("-gpu-h200.tar.xz")


def test_what_there_is_no_time_for_is_told(bench):
    code, found = bench("3", seconds=5)
    assert code == 1 and not bench.asked
    assert set(found["not_measured"].values()) == {"no time was left"}


def test_an_earlier_archive_is_gone_on_with(bench):
    bench("lab-conv1d")
    code, found = bench("2", resume=run.LAST)
    assert code == 0 and bench.asked == ["lab-depthwise", "lab-gemm", "lab-gemm-2048"]
    assert len(found["contests"]) == 4
    assert bench("2", resume=run.LAST)[0] == 0 and not bench.asked  # nothing is left to do
    other = bench.folder / "other.tar.xz"
    run.write({**found, "versions": {**found["versions"], "NumPy": "0.1"}}, other)
    with pytest.raises(host.Refusal, match=r"NumPy differs there: 0\.1"):
        bench("2", resume=other)
    run.write({**found, "versions": {**found["versions"], "system": "another kernel"}}, other)
    assert bench("2", resume=other)[0] == 0
    for name, data in {"nosuch": None, "empty": b"", "text": b"no archive"}.items():
        if data is not None:
            (bench.folder / name).write_bytes(data)
        with pytest.raises(host.Refusal, match="cannot read results of make gpu-bench"):
            bench("2", resume=bench.folder / name)


def test_an_archive_that_cannot_be_written_is_said_before_anything_runs(bench):
    (bench.folder / "out").touch()
    with pytest.raises(host.Refusal, match="cannot be written"):
        bench("2")
    assert not bench.asked


def test_a_wrong_smoke_test_is_a_failure(bench, monkeypatch):
    checks = [{"name": "arrays", "ok": False, "said": ["sum: off"]}]
    monkeypatch.setattr(smoke, "run", lambda contest, folder, say: {"checks": checks})
    code, found = bench("1")
    assert code == 1 and found["contests"]["smoke"]["checks"] == checks


def test_the_first_wrong_elements_are_told(tmp_path):
    want = np.linspace(1, 2, 40, dtype=np.float64).reshape(4, 10)
    expected = str(tmp_path / "expected.npz")
    np.savez(expected, y=want)
    right = want.astype(np.float32)
    assert smoke.compared(expected, right)["ok"]
    right[1, 2], right[3, 4] = 7, np.nan
    found = smoke.compared(expected, right)
    assert not found["ok"] and "2 of 40 elements differ" in found["said"][0]
    assert found["said"][1].startswith("[1, 2]: ") and "nan" in found["said"][2]
    assert "shape" in smoke.compared(expected, right[0])["said"][0]


# Pages


def spread(value):
    return {"median": value, "lower": value, "upper": value}


def test_a_page_has_what_was_measured_and_what_was_not(tmp_path):
    rows = [["", "time"], ["naive", "1.00 ms"], ["pad", "10.0 µs"], ["unroll", "refused"]]
    lab = {"lab": {"workload": "conv1d"}, "tables": [["conv1d, M=16384", rows]]}
    times = {"median": 1e-3, "lower_quartile": 1e-3, "upper_quartile": 2e-3, "error": 1e-4}
    case = {
        "case": "mlp, batch 8, tf32",
        "contestants": [
            {"name": "needle tuned", "device": spread(4e-4), **times},
            {"name": "PyTorch eager", **times},
        ],
        "ratios": {"needle tuned": {"PyTorch eager": spread(2.0)}},
        "fastest": "PyTorch eager",
    }
    result = run.new_result(
        Namespace(rounds=3, given="--only 2"), HERE, {**MANIFEST, "small": True}
    )
    result["not_measured"] = {"attention": "no time was left"}
    result["contests"] = {
        "smoke": {"checks": [{"name": "arrays", "ok": False, "said": ["sum: off"]}]},
        "lab-conv1d": {**lab, "failed": {"unroll": "too large"}},
        "mlp-8-tf32": {"cases": [case], "tables": [], "failed": {"needle tuned, cuBLAS": "none"}},
    }
    assert page.write(result, tmp_path) == 0
    (path,) = tmp_path.glob("*-gpu-h200.md")
    text = path.read_text()
    for line in (
        "**A small rehearsal on an emulated GPU: these figures mean nothing.**",
        '`make gpu-bench ARGS="--only 2"`',
        "| attention | all | no time was left |",
        "| mlp-8-tf32 | needle tuned, cuBLAS | none |",
        "| arrays | wrong |",
        "arrays: sum: off",
        "## conv1d, M=16384",
        "| pad | 10.0 µs |",
        "| unroll | refused |",
        "| mlp, batch 8, tf32 | needle tuned | 1.00 ms | 1.00-2.00 ms | 400 µs |",
    ):
        assert any(each.startswith(line) for each in text.splitlines()), (line, text)
    (drawn,) = tmp_path.glob("*-gpu-h200-models.png")
    assert drawn.name in text and drawn.read_bytes().startswith(b"\x89PNG")


# All of it, on an emulated GPU


@pytest.mark.long
def test_a_rehearsal_goes_from_the_bundle_to_the_page(tmp_path):
    """One contest of each kind; a Python 3.12 without needle and TVM measures them."""
    if emulated_gpu.compiler() is None:
        pytest.skip("no C++ compiler to compile the emulated GPU with")
    try:
        bundle.find_python("3.12")
    except host.Refusal as refusal:
        pytest.skip(str(refusal))
    names = ["smoke", "lab-vector_add", "mlp-8-tf32", "training-8"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu", "rehearse", "--out", str(tmp_path), "--only", *names],
        cwd=host.ROOT, capture_output=True, text=True, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (path,) = tmp_path.glob("*-gpu-emulated.md")
    text = path.read_text()
    rows = ("arrays", "needle eager", "needle noopt", "needle fused", "needle tuned")
    assert all(f"| {name} | right |" in text for name in rows)
    assert "| all |" not in text and "| refused |" not in text
    for row in ("| naive |", "| vector_loads |", "| mlp, batch 2, tf32 | needle tuned, cuBLAS |"):
        assert row in text
    assert "step with sgd | needle eager |" in text


def test_a_damaged_member_of_an_archive_is_refused(tmp_path):
    path = tmp_path / "a.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        archive.addfile(tarfile.TarInfo(run.RESULTS))  # empty
    with pytest.raises(host.Refusal, match="results of make gpu-bench"):
        run.read(path)
