"""The CUDA sources, built for emulated devices, pass the tests of arrays and ops without a GPU.

The build is kept in build/emulated, so that only the first run waits for the compiler.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.gpu_suite import DEVICE_TESTS, LEFT_OUT

BUILD = ROOT / "build" / "emulated"


def _tool(name):
    """The path of a program in this environment or on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def _run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, **options)
    assert done.returncode == 0, (
        f"{' '.join(command)}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    )
    return done.stdout


def _build(folder, *options):
    """Build the CUDA module with these CMake options."""
    cmake, ninja = _tool("cmake"), _tool("ninja")
    if not (ROOT / "src" / "cuda").is_dir():
        pytest.skip("the sources are not here")
    if cmake is None or shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("cmake or a C++ compiler is missing")
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    if (folder / "CMakeCache.txt").exists():
        generator = []  # keep the folder's generator
    python = f"-DPython_EXECUTABLE={sys.executable}"
    _run(cmake, "-S", ".", "-B", str(folder), *generator, *options, python)
    _run(cmake, "--build", str(folder), "--target", "_cuda", "-j2")
    (built,) = (folder / "src" / "cuda").glob("_cuda.*.so")
    return built


@pytest.fixture(scope="module")
def module():
    return _build(BUILD, "-DNEEDLE_CUDA=EMULATED")


@pytest.mark.slow
def test_nvcc_compiles_the_module_and_it_asks_for_a_gpu():
    """Build for one architecture, as each costs the same time again. Importing needs no driver."""
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc")
    built = _build(
        BUILD.with_name("cuda"), "-DNEEDLE_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=80-real"
    )
    code = (
        "import importlib.util as u; "
        f"s = u.spec_from_file_location('_cuda', {str(built)!r}); "
        "m = u.module_from_spec(s); s.loader.exec_module(m); print(m.device_count())"
    )
    assert int(_run(sys.executable, "-c", code)) >= 0


@pytest.mark.slow
def test_the_sample_passes_on_emulated_devices(module):
    out = _run(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--device", "cuda",
        "--emulated-cuda", str(module), "-m", "not slow and not long and not peer and not gpu",
        "-k", " and ".join(f"not {name}" for name in LEFT_OUT), *DEVICE_TESTS,
        env={**os.environ, "NEEDLE_CASES": "25", "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    passed = int(out.split(" passed")[0].split()[-1].lstrip("="))
    assert passed > 250 and "there is no CUDA device" not in out


def test_nobody_else_gets_the_emulated_module():
    """Without a GPU, needle reports none, whatever tests have built."""
    assert not list((ROOT / "needle").rglob("_cuda*emulated*"))
    code = "import needle; print(needle.cuda().enabled()); needle.cuda().kernels"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    if done.stdout.strip() == "True":
        pytest.skip("there is a GPU here")
    assert done.stdout.strip() == "False" and "CUDA" in done.stderr.splitlines()[-1]
