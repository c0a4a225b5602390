"""The packages' public surface: exports, imports, and no output on import."""

import ast
import re
import subprocess
import sys

import pytest

import needle
from needle.methods import _stub as methods_stub
from needle.ops import _stub as ops_stub
from tests import ROOT


def run(code):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )


def test_importing_imports_no_compiler_and_prints_nothing():
    """With TVM blocked everything can be imported, and nothing heavy is imported with it."""
    code = """
import importlib, pkgutil, sys
for name in ("tvm", "torch"):
    sys.modules[name] = None
import needle
for module in pkgutil.walk_packages(needle.__path__, "needle."):
    found = module.module_finder.find_spec(module.name)
    if found.origin.endswith(".py"):  # not the native modules, which load when used
        importlib.import_module(module.name)
assert not {"sklearn", "scipy", "safetensors"} & set(sys.modules)
"""
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "module",
    ["needle", "needle.ops", "needle.nn", "needle.init", "needle.optim", "needle.data"],
)
def test_every_export_exists(module):
    package = sys.modules[module]
    assert len(package.__all__) == len(set(package.__all__))
    for name in package.__all__:
        assert hasattr(package, name), name


def test_type_checkers_see_the_ops_that_there_are():
    for stub in (ops_stub, methods_stub):
        assert stub.STUB.read_text() == stub.text(), "run `make format`"


def test_the_public_surface():
    for name in (
        "Tensor TensorTuple cpu cuda cpu_numpy all_devices default_device ops nn init optim data "
        "autograd backend_ndarray no_grad manual_seed save load from_dlpack"
    ).split():
        assert name in needle.__all__ and hasattr(needle, name)


def test_both_distributions_have_one_version():
    for file in ("pyproject.toml", "runtime/pyproject.toml"):
        found = re.search(r'^version = "(.*)"', (ROOT / file).read_text(), re.M)
        assert found and found[1] == needle.__version__
    needs = re.findall(r'"needle-runtime.*?==(.*?)"', (ROOT / "pyproject.toml").read_text())
    assert set(needs) == {needle.__version__}


@pytest.mark.parametrize(
    "package", ["needle", "needle_tvm", "runtime/needle_runtime", "kernel_lab"]
)
def test_type_checkers_read_the_packages(package):
    assert (ROOT / package / "py.typed").is_file()


def test_no_file_is_long_and_none_shadows_the_standard_library():
    for path in (ROOT / "needle").rglob("*.py"):
        assert len(path.read_text().splitlines()) < 450, path
        private = path.stem.startswith("_")
        assert private or path.stem not in sys.stdlib_module_names, path


def test_tests_do_without_pytorch():
    """`make test` installs no peers: a test that needs one skips, by `pytest.importorskip`."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for line in ast.parse(path.read_text()).body:
            names = [name.name for name in getattr(line, "names", ())]
            module = getattr(line, "module", None) or ""
            assert not any(name.partition(".")[0] == "torch" for name in [*names, module]), path


def test_the_wheel_installs_two_packages():
    """The lab belongs to the checkout; an editable install has it."""
    reading = pytest.importorskip("scikit_build_core.settings.skbuild_read_settings")
    file = ROOT / "pyproject.toml"
    found = {
        state: reading.SettingsReader.from_file(file, {}, state=state).settings.wheel.packages
        for state in ("wheel", "editable")
    }
    assert found["wheel"] == ["needle", "needle_tvm"]
    assert found["editable"] == ["needle", "needle_tvm", "kernel_lab"]
