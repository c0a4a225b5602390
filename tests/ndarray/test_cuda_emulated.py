"""The CUDA module on hosts without a GPU: its sources, built for emulated devices, pass the tests
of arrays and ops.

The build is kept in build/emulated, so that only the first run waits for the compiler.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "emulated"

# What runs on the emulated devices, and what of it does not: what is about CPU kernels or threads,
# and what is large.
SAMPLE = (
    "tests/ndarray/test_cuda.py",
    "tests/ndarray/test_nd_convolution.py",
    "tests/ndarray/test_nd_counters.py",
    "tests/ndarray/test_nd_elementwise.py",
    "tests/ndarray/test_nd_halves.py",
    "tests/ndarray/test_nd_indexing.py",
    "tests/ndarray/test_nd_layers.py",
    "tests/ndarray/test_nd_matmul.py",
    "tests/ndarray/test_nd_reduce.py",
    "tests/test_ops.py",
    "tests/test_optim.py",
)
LEFT_OUT = ("instruction_set", "by_each_kernel", "threads", "exported_and_documented")


def _tool(name):
    """A program of this environment or of the path."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def _run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, **options)
    assert done.returncode == 0, (
        f"{' '.join(command)}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    )
    return done.stdout


@pytest.fixture(scope="module")
def module():
    cmake, ninja = _tool("cmake"), _tool("ninja")
    if not (ROOT / "src" / "cuda").is_dir():
        pytest.skip("the sources are not here")
    if cmake is None or shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("cmake or a C++ compiler is missing")
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    if (BUILD / "CMakeCache.txt").exists():
        generator = []  # the one it has
    _run(
        cmake, "-S", ".", "-B", str(BUILD), *generator, "-DNEEDLE_CUDA=EMULATED",
        f"-DPython_EXECUTABLE={sys.executable}",
    )  # fmt: skip
    _run(cmake, "--build", str(BUILD), "--target", "_cuda", "-j2")
    (built,) = (BUILD / "src" / "cuda").glob("_cuda.*.so")
    return built


def test_the_sample_passes_on_emulated_devices(module):
    out = _run(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--device", "cuda",
        "--emulated-cuda", str(module), "-m", "not slow and not peer and not gpu",
        "-k", " and ".join(f"not {name}" for name in LEFT_OUT), *SAMPLE,
        env={**os.environ, "NEEDLE_CASES": "25", "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    passed = int(out.split(" passed")[0].split()[-1].lstrip("="))
    assert passed > 250 and "there is no CUDA device" not in out


def test_nobody_else_gets_the_emulated_module():
    """A GPU that is not there stays away, whatever tests have built."""
    assert not list((ROOT / "needle").rglob("_cuda*emulated*"))
    code = "import needle; print(needle.cuda().enabled()); needle.cuda().kernels"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    if done.stdout.strip() == "True":
        pytest.skip("there is a GPU here")
    assert done.stdout.strip() == "False" and "CUDA" in done.stderr.splitlines()[-1]
