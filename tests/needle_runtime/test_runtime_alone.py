"""An artifact needs only needle_runtime, NumPy and tvm-ffi to run. TVM may be installed, too.

The processes here see a folder with only these packages, without their metadata, and with
typing_extensions, which tvm-ffi needs.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import needle_runtime
import needle_tvm
from needle_runtime._tvm import versions
from needle_runtime.artifact import Artifact
from needle_runtime.errors import ArtifactError
from needle_tvm.cache import CACHE_VARIABLE
from tests.needle_tvm.conftest import make_mlp, tensor

PACKAGES = ("numpy", "tvm_ffi", "typing_extensions")

# The finder refuses other modules that the interpreter can find in spite of its options.
BEGIN = """
import sys
sys.path.insert(0, {site!r})
ALLOWED = {{*sys.stdlib_module_names, "numpy", "tvm_ffi", "needle_runtime", "typing_extensions"}}

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
    for part in needle_runtime.__path__:  # in an editable install, sources and libraries are apart
        shutil.copytree(part, folder / "needle_runtime", dirs_exist_ok=True)
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


USED = """
from importlib import metadata
from pathlib import Path
import numpy as np
import needle_runtime
assert np.isfinite(needle_runtime.load(sys.argv[1])(np.ones((2, 8), np.float32))).all()
lines = [line for line in open("/proc/self/maps") if "libtvm_runtime.so" in line]
(used,) = {line.split()[-1] for line in lines}
assert used == str(Path(sys.argv[2]).resolve()), used
"""


def test_another_tvm_is_not_used(site, exported, tmp_path):
    """A TVM of the pinned version is, so that the compiler may be imported later."""
    own = site / "needle_runtime" / "lib" / "libtvm_runtime.so"
    both = tmp_path / "both"
    shutil.copytree(site, both, symlinks=True)
    (both / "tvm" / "lib").mkdir(parents=True)
    shutil.copy(own, both / "tvm" / "lib")
    for version in ("0.0.1", versions.TVM):
        (both / "tvm" / "_version.py").write_text(f"__version__ = version = '{version}'\n")
        package = "tvm" if version == versions.TVM else "needle_runtime"
        wanted = both / package / "lib" / own.name
        done = alone(both, USED, exported / "float32", wanted)
        assert (done.returncode, done.stderr) == (0, "")


BOTH = """
import sys
import numpy as np
import needle_runtime

def run():
    return needle_runtime.load(sys.argv[1])(np.ones((2, 8), np.float32))

first = run() if sys.argv[2] == "runtime" else None
import tvm
from tvm import te
a = te.placeholder((4,), name="a")
module = tvm.compile(te.create_prim_func([a, te.compute((4,), lambda i: a[i] + 1.0)]), "llvm")
given, found = tvm.runtime.tensor(np.ones(4, "float32")), tvm.runtime.empty((4,), "float32")
module["main"](given, found)
assert (found.numpy() == 2).all()
assert first is None or (run() == first).all()
lines = [line for line in open("/proc/self/maps") if "libtvm_runtime.so" in line]
assert len({line.split()[-1] for line in lines}) == 1
"""


@pytest.mark.parametrize("first", ["runtime", "compiler"])
def test_the_compiler_may_be_imported_before_or_after(exported, first):
    command = [sys.executable, "-c", BOTH, str(exported / "float32"), first]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


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
        r"'bfloat16' arrays need .* ml_dtypes .*: pip install 'needle-runtime\[bfloat16\]'\n",
        done.stdout,
    )


COMMAND = """
from needle_runtime.__main__ import main
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
    ],
)
def test_what_needs_another_package_says_which(site, exported, command, package, tmp_path):
    places = {"model": exported / "float32", "out": tmp_path}
    done = alone(site, COMMAND, *[part.format(**places) for part in command])
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert "needle_runtime: error: " in done.stderr and f"pip install {package}" in done.stderr


def test_versions_are_told_without_metadata(site, monkeypatch):
    known = versions.pair()
    monkeypatch.setattr(metadata, "version", not_there)
    monkeypatch.setattr(versions, "installed", versions.installed.__wrapped__)
    assert versions.pair() == known
    needle_tvm._tvm.versions.check_pins()


def not_there(name):
    raise metadata.PackageNotFoundError(name)


def test_a_version_that_is_not_told_is_said(exported, monkeypatch):
    found = versions.installed
    monkeypatch.setattr(versions, "installed", lambda n: None if "ffi" in n else found(n))
    with pytest.raises(
        ArtifactError, match=r"built with tvm_ffi [\d.a-z]+, which is not installed here or"
    ):
        Artifact.open(exported / "float32").check_versions()


def test_halves_need_no_package_to_be_tolerated():
    from needle_runtime.artifact.tolerance import relative_tolerance

    for dtype in ("float16", "float32", "float64", "bfloat16"):
        expected = 8.0 * float(ml_dtypes.finfo(dtype).eps) * 4 * 3
        assert relative_tolerance(dtype, 16, 3) == expected
    assert relative_tolerance("int32", 16) == relative_tolerance("bool", 16) == 0
