"""An artifact needs only NumPy, tvm-ffi and TVM's runtime library to run.

The processes here see a folder with only these packages, without their metadata, and with
typing_extensions, which tvm-ffi needs.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import needle_tvm
from needle_runtime._tvm import versions
from needle_runtime.artifact import Artifact
from needle_runtime.errors import ArtifactError
from needle_tvm.cache import CACHE_VARIABLE
from tests.needle_tvm.conftest import make_mlp, tensor

PACKAGES = ("numpy", "tvm", "tvm_ffi", "needle_tvm", "typing_extensions")

# The finder refuses other modules that the interpreter can find in spite of its options.
BEGIN = """
import sys
sys.path.insert(0, {site!r})
ALLOWED = {{*sys.stdlib_module_names, "numpy", "tvm_ffi", "needle_tvm", "typing_extensions"}}

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with only these packages, to import from."""
    folder = tmp_path_factory.mktemp("site")
    for name in PACKAGES:
        origin = Path(importlib.util.find_spec(name).origin)
        place = origin.parent if origin.name == "__init__.py" else origin
        (folder / place.name).symlink_to(place)
        libraries = place.with_name(f"{place.name}.libs")  # libraries that a wheel bundles
        if libraries.is_dir():
            (folder / libraries.name).symlink_to(libraries)
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    for dtype in ("float32", "bfloat16"):
        x = tensor(np.ones((2, 8)).astype(dtype))
        needle_tvm.compile(make_mlp(8, 4, dtype=dtype), x, stage="fused").export(folder / dtype)
    return folder


def alone(site, code, *arguments):
    command = [sys.executable, "-I", "-S", "-c", BEGIN.format(site=str(site)) + code, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != CACHE_VARIABLE}
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=60, env=environment
    )


def test_a_float32_model_runs(site, exported):
    code = """
import numpy as np
import needle_runtime
program = needle_runtime.load(sys.argv[1])
assert program(np.ones((2, 8), np.float32)).shape == (2, 4)
zeros = {spec["name"]: np.zeros(spec["shape"], spec["dtype"]) for spec in program.params}
program.set_params(zeros)
assert not program(np.ones((2, 8), np.float32)).any()
assert needle_runtime.self_test(needle_runtime.load(sys.argv[1])).passed
"""
    done = alone(site, code, exported / "float32")
    assert (done.returncode, done.stderr) == (0, "")


def test_bfloat16_says_what_it_needs(site, exported):
    code = """
import needle_runtime
from needle_runtime.errors import InstallError
try:
    needle_runtime.load(sys.argv[1])
except InstallError as error:
    print(error)
"""
    done = alone(site, code, exported / "bfloat16")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(
        r"'bfloat16' arrays need .* ml_dtypes .*: pip install ml_dtypes\n", done.stdout
    )


COMMAND = """
from needle_tvm.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "command", [["inspect"], ["verify"], ["run", "--random", "--out", "y.npz"], ["profile"]]
)
def test_the_commands_run(site, exported, command, tmp_path):
    command = [tmp_path / part if part == "y.npz" else part for part in command]
    done = alone(site, COMMAND, command[0], exported / "float32", *command[1:])
    assert (done.returncode, done.stderr) == (0, "") and done.stdout


@pytest.mark.parametrize(
    ("command", "package"),
    [
        (["run", "{model}", "--random", "--out", "{out}/y.safetensors"], "safetensors"),
        (["run", "{model}", "{model}/params.safetensors"], "safetensors"),
        (["records", "list"], "platformdirs"),
    ],
)
def test_what_needs_another_package_says_which(site, exported, command, package, tmp_path):
    places = {"model": exported / "float32", "out": tmp_path}
    done = alone(site, COMMAND, *[part.format(**places) for part in command])
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert "needle_tvm: error: " in done.stderr and f"pip install {package}" in done.stderr


def test_versions_are_told_without_metadata(site, monkeypatch):
    known = versions.pair()
    monkeypatch.setattr(versions.metadata, "version", not_there)
    monkeypatch.setattr(versions, "installed", versions.installed.__wrapped__)
    assert versions.pair() == known
    versions.check_pins()


def not_there(name):
    raise versions.metadata.PackageNotFoundError(name)


def test_a_version_that_is_not_told_is_said(exported, monkeypatch):
    found = versions.installed
    monkeypatch.setattr(versions, "installed", lambda n: None if "ffi" in n else found(n))
    with pytest.raises(
        ArtifactError, match=r"built with tvm_ffi [\d.a-z]+; here it is missing, or"
    ):
        Artifact.open(exported / "float32").check_versions()


def test_halves_need_no_package_to_be_tolerated():
    from needle_runtime.artifact.tolerance import relative_tolerance

    for dtype in ("float16", "float32", "float64", "bfloat16"):
        expected = 8.0 * float(ml_dtypes.finfo(dtype).eps) * 4 * 3
        assert relative_tolerance(dtype, 16, 3) == expected
    assert relative_tolerance("int32", 16) == relative_tolerance("bool", 16) == 0
