"""`bench.shipping`: tables of given numbers, environments, drivers, and a run in small."""

import importlib.metadata
import json
import shutil
import sys
import zipfile

import numpy as np
import pytest

pytest.importorskip("tvm", reason="needs the [tvm] extra")

import needle_runtime
from apps import peers
from bench import contests
from bench.shipping import __main__ as shipping
from bench.shipping import cpp, environments, models, starts, summary
from bench.shipping.models import AOTINDUCTOR, NAMES, ONNXRUNTIME, OURS
from needle_runtime.errors import UsageError
from needle_runtime.process.child import ChildError
from needle_runtime.process.timing import Result

CALL = f"C++ call, {models.TINY}"


@pytest.fixture
def report():
    """A report of made-up numbers, in which needle takes 1, the others 2 and 3, the direct call
    half; ONNX Runtime's headers were not there."""
    sizes = dict(zip(NAMES, (10_000_000, 20_000_000, 30_000_000), strict=True))

    def case(title, **seconds):
        results = [Result(name, [], [each] * 3) for name, each in seconds.items()]
        return contests.case_of(title, results, 3)

    cases = [
        case(starts.IMPORT, **dict(zip(NAMES, (0.04, 0.08, 0.12), strict=True))),
        case(CALL, **{OURS: 1e-6, AOTINDUCTOR: 3e-6, cpp.DIRECT: 0.5e-6}),
    ]
    drivers = {
        name: {"libraries": sizes[name], "memory": sizes[name]} for name in (OURS, AOTINDUCTOR)
    }
    return {
        "machine": {"processor": "a processor", "threads": 2},
        "date": "2026-01-01",
        "environments": {
            name: {"bytes": size, "distributions": {f"{name} 1.0": size}}
            for name, size in sizes.items()
        },
        "memory": sizes,
        "numpy": 0.1,
        "cases": cases,
        "cpp": {**drivers, cpp.DIRECT: drivers[OURS]},
    }


def test_the_table_has_a_column_for_each_runtime(report):
    headings, *rows = summary.rows(report)
    found = {row[0]: row[1:] for row in rows}
    assert headings[1:] == list(NAMES)
    assert all(len(row) == len(headings) for row in rows)
    assert found["environment besides NumPy"] == ["10.0 MB", "20.0 MB", "30.0 MB"]
    assert found["libraries of C++"] == ["10.0 MB", summary.NOT_MEASURED, "30.0 MB"]
    assert found[starts.IMPORT][0] == "40.0 ms (40.0-40.0 ms)"
    assert found[CALL][1] == summary.NOT_MEASURED
    assert found[f"{CALL}, minus a direct call"] == ["0.50 (0.50 to 0.50) µs", "", ""]


def test_the_table_of_distributions(report):
    _, first, *others = summary.environment_rows(report)
    assert first == [OURS, f"{OURS} 1.0", "10.0 MB"] and len(others) == 2


def test_the_picture(report, tmp_path):
    summary.draw(report, tmp_path / "shipping.png")
    assert (tmp_path / "shipping.png").stat().st_size > 10_000


def test_the_fastest_peer_is_no_direct_call(report):
    assert report["cases"][1]["fastest"] == AOTINDUCTOR


def distribution(folder, name, size, *requires):
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
    (info / "METADATA").write_text("\n".join(lines + [f"Requires-Dist: {r}" for r in requires]))
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_bytes(b"#" * size)
    (info / "RECORD").write_text(f"{name}/__init__.py,,\n")


def test_the_sizes_are_those_of_all_that_is_needed_but_numpy(tmp_path):
    distribution(tmp_path, "numpy", 10)
    distribution(tmp_path, "one", 20, "numpy>=2", 'absent; python_version < "3"', "two")
    distribution(tmp_path, "two", 30, "one", 'absent; extra == "more"')
    distribution(tmp_path, "unneeded", 40)
    assert environments._sizes("one", tmp_path) == {"one 1.0": 20, "two 1.0": 30}
    with pytest.raises(UsageError, match="one needs two, which is not installed"):
        shutil.rmtree(tmp_path / "two-1.0.dist-info")
        environments._sizes("one", tmp_path)


def test_the_wheel_is_the_newest_for_this_python(tmp_path):
    with pytest.raises(UsageError, match="has no wheel of needle-runtime for cp"):
        environments.wheel_of(tmp_path, tmp_path)
    tag = "cp{}{}".format(*sys.version_info)
    for name in (f"needle_runtime-1-{tag}-{tag}-any.whl", "needle_runtime-1-cp27-cp27-any.whl"):
        with zipfile.ZipFile(tmp_path / name, "w"):
            pass
    assert environments.wheel_of(tmp_path, tmp_path).name == f"needle_runtime-1-{tag}-{tag}-any.whl"


def test_a_command_that_fails_is_named():
    with pytest.raises(ChildError, match="the tool failed with exit code 3") as error:
        environments.output_of("the tool", [sys.executable, "-c", "print(1); exit(3)"])
    assert error.value.child == "the tool"


def test_a_driver_that_fails_says_why(tmp_path):
    program = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with pytest.raises(ChildError, match="ours: the driver failed: no such model"):
        cpp.Driver("ours", program, 1, tmp_path)


def test_without_a_compiler_the_notes_say_so(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    notes = []
    assert (
        shipping.compile_drivers({}, shipping.make_parser().parse_args([]), tmp_path, notes) == {}
    )
    assert notes == ["C++ not measured: no compiler (set CXX)"]


def installed_here(wheel, folder):
    """Make the environment of needle-runtime from the files of this checkout, without a wheel."""
    found = environments.from_installed("apache-tvm-ffi", folder)
    for part in needle_runtime.__path__:  # two folders in an editable install
        shutil.copytree(part, found.packages / "needle_runtime", dirs_exist_ok=True)
    info = importlib.metadata.distribution("needle-runtime")._path
    shutil.copytree(info, found.packages / info.name)
    return found


@pytest.mark.slow
@pytest.mark.peer
def test_a_run(tmp_path, monkeypatch):
    """One round beside ONNX Runtime; Inductor takes too long to compile."""
    if peers.PEERS["onnxruntime"].missing or cpp.compiler() is None:
        pytest.skip("needs ONNX Runtime and a C++ compiler")
    monkeypatch.setattr(environments, "wheel_of", lambda folder, scratch: None)
    monkeypatch.setattr(environments, "from_wheel", installed_here)
    arguments = ["--rounds", "1", "--block-seconds", "0.01", "--models", models.TINY]
    arguments += ["--peers", "onnxruntime", "--threads", "1", "--out", str(tmp_path)]
    assert shipping.main(arguments) == 0
    report = json.loads((tmp_path / "shipping.json").read_text())
    cases = {case["case"]: case for case in report["cases"]}
    python = {OURS, ONNXRUNTIME}
    for title in (starts.IMPORT, starts.FIRST, f"Python call, {models.TINY}"):
        entries = cases[title]["contestants"]
        assert {entry["name"] for entry in entries} == python
        assert all(np.isfinite(entry["median"]) and entry["median"] > 0 for entry in entries)
    assert {entry["name"] for entry in cases[CALL]["contestants"]} == {OURS, cpp.DIRECT}
    assert {OURS} == cases[CALL]["calls"].keys()
    assert all(each["libraries"] > 1_000_000 for each in report["cpp"].values())
    assert report["memory"].keys() == python
    assert f"{ONNXRUNTIME} in C++ not measured" in (tmp_path / "shipping.md").read_text()
