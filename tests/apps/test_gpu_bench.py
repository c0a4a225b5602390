"""`make gpu-test` and `make gpu-bench` without a GPU: refusals, budgets, results."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tvm", reason="the benchmarks need the [tvm] extra")

from bench.gpu import __main__ as gpu
from bench.gpu import host, sections
from kernel_lab import build, registry
from needle_tvm.process import child

pytestmark = pytest.mark.slow

H200 = host.Gpu("NVIDIA H200", "580.1", "sm_90")


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder, the only one on PATH, with stubs for nvcc, cmake and a GPU."""
    program(tmp_path, "nvidia-smi", "echo 'NVIDIA H200, 580.1, 9.0'; echo 'Second, 1, 8.0'")
    program(tmp_path, "nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
    program(tmp_path, "cmake", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("command", ["test", "bench"])
@pytest.mark.parametrize("driver", [None, "echo 'No devices were found'; exit 6"])
def test_without_a_gpu_each_is_one_line(command, driver, tmp_path):
    if driver:
        program(tmp_path, "nvidia-smi", driver)
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu", command],
        cwd=host.ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"gpu-{command}: there is no GPU here: ")
    assert ("No devices were found" if driver else "no nvidia-smi") in done.stderr


def test_before_anything_is_set_up_the_standard_library_is_enough():
    others = ("numpy", "rich", "tvm", "needle", "needle_tvm", "apps", "pytest")
    text = f"import sys, bench.gpu.__main__; print([n for n in {others} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=host.ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["bench", "--rounds", "0"], "--rounds: '0' is not a whole number of at least 1"),
        (["bench", "--seconds", "inf"], "--seconds: 'inf' is not a number of seconds above 0"),
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


def test_a_folder_that_cannot_be_written_is_said_before_anything_runs(fake, tmp_path, capsys):
    file = tmp_path / "file"
    file.touch()
    fake.out = file / "results"
    assert fake.run() == 1
    assert capsys.readouterr().err.startswith(f"gpu-bench: --out {file}/results/")
    assert not fake.asked


def test_results_go_where_the_host_takes_them_from(monkeypatch):
    monkeypatch.delenv("OUT", raising=False)
    assert gpu.make_parser().parse_args(["bench"]).out == Path("docs/results")
    monkeypatch.setenv("OUT", "/out")
    assert gpu.make_parser().parse_args(["bench"]).out == Path("/out")


def test_the_first_gpu_is_found(tools):
    assert host.find_gpu() == H200
    assert H200.slug == "h200"
    assert host.Gpu("NVIDIA GeForce RTX 4090", "1", "sm_89").slug == "geforce-rtx-4090"


def test_a_missing_compiler_or_module_is_said(tools, monkeypatch):
    monkeypatch.setattr(host, "SETUP", tools / "setup.sh")
    host.need_tools("test")
    found = host.importlib.util.find_spec
    monkeypatch.setattr(
        host.importlib.util, "find_spec", lambda name: None if name == "tvm" else found(name)
    )
    with pytest.raises(host.Refusal, match="no module tvm: install the project"):
        host.need_tools("bench")
    (tools / "setup.sh").touch()
    host.need_tools("bench")  # the bundle brings TVM
    (tools / "nvcc").unlink()
    host.need_tools("bench")  # the bundle may bring nvcc, too
    (tools / "cmake").unlink()
    with pytest.raises(host.Refusal, match="no cmake"):
        host.need_tools("bench")
    monkeypatch.setenv(host.STARTED, "1")
    with pytest.raises(host.Refusal, match="no nvcc"):
        host.need_tools("bench")


def test_the_bundle_is_set_up_once_and_the_command_goes_on(tmp_path):
    """The real script sources the bundle's setup.sh and then starts itself again."""
    root = tmp_path / "root"
    (root / "bench" / "gpu").mkdir(parents=True)
    (root / ".gpu").mkdir()
    for package in ("bench", "bench/gpu"):
        (root / package / "__init__.py").touch()
    (root / "bench" / "gpu" / "__main__.py").write_text(
        "import os, sys\nprint('again', sys.argv[1:], os.environ['NEEDLE_GPU_STARTED'])\n"
    )
    (root / ".gpu" / "setup.sh").write_text("export BUNDLE=here\necho set up\n")
    text = (
        "import importlib.util\nfrom bench.gpu import host\nfrom pathlib import Path\n"
        f"host.ROOT = Path({str(root)!r})\nhost.SETUP = host.ROOT / '.gpu' / 'setup.sh'\n"
        "importlib.util.find_spec = lambda name: None\n"
        "host.set_up(['bench', '--only', 'a b'], 7.5)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=host.ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set up\nagain ['bench', '--only', 'a b'] 7.5\n"


def test_a_bundle_is_unpacked_once(tmp_path):
    """setup.sh, with a stub for TVM, makes the module importable and does not unpack it again."""
    stub = tmp_path / "tvm" / "__init__.py"
    stub.parent.mkdir()
    stub.write_text(
        "import types\n__version__ = 'stub'\n"
        "def cuda(index): return types.SimpleNamespace(exist=0)\n"
    )
    (tmp_path / ".gpu").mkdir()
    subprocess.run(["tar", "-cJf", ".gpu/tvm.tar.xz", "tvm"], cwd=tmp_path, check=True)
    shutil.rmtree(stub.parent)
    shutil.copy(host.ROOT / "bench" / "gpu" / "setup.sh", tmp_path / ".gpu")
    libraries = tmp_path / "packages" / "nvidia" / "cu13" / "lib"
    libraries.mkdir(parents=True)
    (libraries / "libcudart.so.13").touch()
    command = (
        'set -e; . .gpu/setup.sh; echo "$LD_LIBRARY_PATH"; touch "$site/mark"; . .gpu/setup.sh'
    )
    done = subprocess.run(
        ["bash", "-c", f'{command}; ls "$site"'],
        cwd=tmp_path,
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TMPDIR": str(tmp_path),
            "PYTHONPATH": str(tmp_path / "packages"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, folders, second, *left = done.stdout.splitlines()
    assert first == second == "tvm stub cuda device: 0"
    assert str(libraries) in folders.split(":")
    assert sorted(left) == ["complete", "mark", "tvm"]
    broken = tmp_path / ".gpu" / "tvm.tar.xz"
    broken.write_bytes(broken.read_bytes()[:50])
    shutil.rmtree(tmp_path / "needle-gpu-site")
    done = subprocess.run(
        ["bash", "-c", ". .gpu/setup.sh && echo went on"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "went on" not in done.stdout


# Running the sections

CASE = {"case": "a case", "contestants": [], "ratios": {}, "failed": {}}


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """`bench` with a stub build and stub sections that only record that they were called."""
    asked, answers, building = [], {}, []

    class Section(contextlib.AbstractContextManager):
        def __init__(self, name, service, setup, *, timeout):
            asked.append(name)
            assert service == "bench.gpu.sections:serve" and setup["name"] == name
            assert 0 < timeout <= 300
            self._answer = answers.get(name, {"cases": [CASE], "tables": [], "failed": {}})

        def receive(self, step):
            if isinstance(self._answer, Exception):
                raise self._answer
            return self._answer

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(child, "Child", Section)
    monkeypatch.setattr(host, "build", building.append)
    monkeypatch.setattr(host, "find_gpu", lambda: H200)
    monkeypatch.setattr(host, "need_tools", lambda command: None)

    class Fake:
        out = tmp_path / "results"

        def run(self, *arguments):
            asked.clear()
            building.clear()
            return gpu.main(["bench", "--out", str(self.out), *arguments])

        @property
        def result(self):
            (path,) = self.out.glob("*-gpu-h200.json")
            return json.loads(path.read_text())

        @property
        def page(self):
            (path,) = self.out.glob("*-gpu-h200.md")
            return path.read_text()

    found = Fake()
    found.asked, found.answers, found.building = asked, answers, building
    return found


def test_sections_run_in_order_and_what_fails_is_told(fake, capsys):
    fake.answers["gemm-4096"] = child.ChildError("gemm-4096: no such kernel", "", "gemm-4096")
    assert fake.run() == 0
    assert fake.building == ["sm_90"] and fake.asked == list(sections.SECTIONS)
    found = fake.result
    assert set(found["sections"]) == set(sections.SECTIONS) - {"gemm-4096"}
    assert found["not_measured"] == {"gemm-4096": "no such kernel"}
    assert found["machine"]["processor"] == "NVIDIA H200 (sm_90), driver 580.1"
    for text in (fake.page, capsys.readouterr().out):
        assert "not measured: gemm-4096: no such kernel" in text


def test_what_an_earlier_call_measured_is_kept_and_the_rest_measured(fake, capsys):
    fake.answers["steps"] = child.ChildError("not done")
    assert fake.run("--only", "training", "steps", "search-mlp") == 0
    (path,) = fake.out.glob("*.json")
    assert fake.run("--resume", str(path), "--only", "training", "steps", "gemm-4096") == 0
    assert fake.asked == ["gemm-4096", "steps"]
    expected = {"training-8", "training-256", "search-mlp", "gemm-4096"}
    assert set(fake.result["sections"]) == expected
    # Nothing of other versions is mixed in.
    other = {**fake.result, "versions": {**fake.result["versions"], "NumPy": "0.1"}}
    path.write_text(json.dumps(other))
    assert fake.run("--resume", str(path)) == 1
    assert "--resume" in (err := capsys.readouterr().err) and "NumPy 0.1" in err
    assert fake.run("--resume", str(path.with_name("nosuch"))) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_what_there_is_no_time_for_is_told(fake):
    assert fake.run("--seconds", "10") == 1
    assert not fake.asked and not fake.result["sections"]
    assert list(fake.result["not_measured"]) == list(sections.SECTIONS)
    assert set(fake.result["not_measured"].values()) == {"no time was left"}


def test_without_its_modules_nothing_is_measured(fake, monkeypatch, capsys):
    def refuse(architecture):
        raise host.Refusal("needle's native modules cannot be built: ptxas died")

    monkeypatch.setattr(host, "build", refuse)
    assert fake.run("--only", "search") == 1
    assert "cannot be built: ptxas died" in capsys.readouterr().err
    assert not fake.asked


def test_a_build_that_fails_is_one_line(monkeypatch, tmp_path):
    program(tmp_path, "cmake", "echo -- fine; echo 'x.cc:1: error: no such thing' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(host.Refusal, match=r"cannot be built: x\.cc:1: error: no such thing$"):
        host.build("sm_90")


def test_the_page_has_the_times_and_the_tables_of_all_sections(fake, capsys):
    quartiles = {"median": 2.0, "lower": 1.5, "upper": 2.5}
    times = {"median": 1e-3, "lower_quartile": 1e-3, "upper_quartile": 2e-3}
    case = {
        "case": "mlp, batch 8, tf32",
        "contestants": [
            {"name": "needle tuned", "error": 1e-4, **times},
            {"name": "PyTorch eager", "error": None, **times},
        ],
        "ratios": {"needle tuned": {"PyTorch eager": quartiles}},
        "failed": {},
        "fastest": "PyTorch eager",
    }
    told = {"needle tuned or cuBLAS": "no cuBLAS"}
    fake.answers["mlp-8-tf32"] = {"cases": [case], "tables": [], "failed": told}
    table = ["10 steps", [["step", "bytes"], ["0", "17"]]]
    fake.answers["steps"] = {"cases": [], "tables": [table], "failed": {}}
    assert fake.run("--only", "steps", "mlp-8-tf32", "--rounds", "2") == 0
    for line in (
        f'`make gpu-bench ARGS="--out {fake.out} --only steps mlp-8-tf32 --rounds 2"`',
        "left out: mlp-8-tf32, needle tuned or cuBLAS: no cuBLAS",
        "| mlp, batch 8, tf32 | PyTorch eager | 1.00 ms | 2.00 (1.50-2.50) |",
        "| mlp, batch 8, tf32 | needle tuned | 1.00 ms | 1.00-2.00 ms |  | 1.0e-04 |",
        "| mlp, batch 8, tf32 | PyTorch eager | 1.00 ms | 1.00-2.00 ms | 2.00 (1.50-2.50) |"
        " unbounded |",
        "## 10 steps",
        "| 0 | 17 |",
    ):
        assert any(each.startswith(line) for each in fake.page.splitlines()), line
    assert "NVIDIA H200 (sm_90)" in fake.page
    (picture,) = fake.out.glob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "10 steps" in capsys.readouterr().out


def test_all_ladders_have_a_section_and_names_choose_in_order():
    lab = {s.arguments[0] for s in sections.SECTIONS.values() if s.group == "lab"}
    assert lab >= {name for name, device in registry.LADDERS if device == "cuda"}
    assert list(sections.chosen(["lab-gemm", "search-mlp"])) == ["search-mlp", "lab-gemm"]
    assert list(sections.chosen(["steps"])) == ["steps"]
    assert list(sections.chosen(None)) == list(sections.SECTIONS)


def test_a_section_without_a_gpu_is_a_reason(monkeypatch, fake):
    if build.why_no_gpu() is None:
        pytest.skip("there is a GPU here")
    monkeypatch.undo()
    setup = {"name": "lab-vector_add", "rounds": 1, "rehearse": False}
    with (
        pytest.raises(child.ChildError, match="no CUDA device was found"),
        child.Child("it", "bench.gpu.sections:serve", setup, timeout=100) as section,
    ):
        section.receive("section")


def test_a_rehearsal_runs_on_the_processor(tmp_path, capfd):
    arguments = ["--rehearse", "--only", "steps", "--out", str(tmp_path)]
    assert gpu.main(["bench", *arguments]) == 0, capfd.readouterr().err
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())["sections"]["steps"]["steps"]["samples"]
    first, last = found[0], found[-1]
    assert len(found) == 11
    assert first["allocated"] == last["allocated"] > 0 and last["loss"] > 0
    assert "these figures mean nothing" in path.with_suffix(".md").read_text()
