"""The installed TVM is the one this project is written for, and it works."""

import re
import subprocess
import sys

import pytest

import needle_runtime
import needle_tvm
from needle_runtime.errors import InstallError
from needle_tvm._tvm import versions
from tests import ROOT


def test_the_installed_pair_is_the_pinned_one():
    versions.check_pins()


def test_pyproject_pins_the_same_pair():
    for file in ("pyproject.toml", "runtime/pyproject.toml"):
        text = (ROOT / file).read_text()  # tomllib is newer than Python 3.10
        found = set(re.findall(r'"apache-tvm(-ffi)?==(.*)"', text))
        assert found == {("", versions.TVM), ("-ffi", versions.FFI)}


@pytest.mark.parametrize(
    ("name", "found"),
    [("apache-tvm", "0.26.0"), ("apache-tvm-ffi", "0.1.15"), ("apache-tvm-ffi", None)],
)
def test_another_pair_is_refused_by_name(monkeypatch, name, found):
    installed = versions.installed
    monkeypatch.setattr(versions, "installed", lambda n: found if n == name else installed(n))
    with pytest.raises(InstallError, match=rf"{name} is {found or 'not installed'}.*pip install"):
        versions.check_pins()


def test_the_pair_can_save_a_module():
    """With a wrong pair of versions this call segfaults, as would writing any tuning record."""
    code = (
        "from needle_tvm._tvm.names import te, tvm\n"
        "a = te.placeholder((4,), name='a')\n"
        "f = te.create_prim_func([a, te.compute((4,), lambda i: a[i] + 1.0)])\n"
        "module = tvm.IRModule({'main': f})\n"
        "text = tvm.ir.save_json(module)\n"
        "tvm.ir.assert_structural_equal(tvm.ir.load_json(text), module)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, (
        "saving a TVM module failed: apache-tvm and apache-tvm-ffi do not belong together; "
        f"{versions.INSTALL_HINT}\n{run.stderr}"
    )


def test_needle_does_not_import_tvm():
    code = (
        "import sys\n"
        "for name in ('tvm', 'tvm_ffi'):\n"
        "    sys.modules[name] = None\n"
        "import needle, needle.nn, needle.optim, needle.data, needle.trace\n"
        "import needle_tvm, needle_tvm.runtime, needle_tvm.cache\n"
        "loaded = {'needle_tvm.compiler.compiler', 'needle_tvm._tvm.names'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_the_cache_imports_no_needle():
    code = (
        "import sys\n"
        "for name in ('needle', 'tvm'):\n"
        "    sys.modules[name] = None\n"
        "import needle_tvm.cache\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_needle_tvm_has_the_names_of_the_runtime():
    assert needle_tvm.runtime.__all__ == needle_runtime.__all__
    for name in needle_runtime.__all__:
        assert getattr(needle_tvm.runtime, name) is getattr(needle_runtime, name)
    for module in (needle_runtime.errors, needle_tvm.errors):
        classes = {name for name, value in vars(module).items() if isinstance(value, type)}
        assert classes <= set(needle_tvm.errors.__all__)
