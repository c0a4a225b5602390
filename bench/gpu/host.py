"""The host: its GPU, tools and versions, and the build of needle's modules for it.

Standard library only.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "gpu"
SETUP = ROOT / ".gpu" / "setup.sh"
STARTED = "NEEDLE_GPU_STARTED"  # when the first process began; set when .gpu/setup.sh is sourced

_TITLES = {
    "NumPy": "numpy",
    "PyTorch": "torch",
    "Triton": "triton",
    "cuBLAS": "nvidia-cublas",
    "cuDNN": "nvidia-cudnn-cu13",
    "TVM": "apache-tvm",
}


class Refusal(Exception):
    """The reason why nothing can be done here, in one line."""


@dataclass(frozen=True)
class Gpu:
    """The first GPU, as nvidia-smi describes it."""

    name: str
    driver: str
    architecture: str

    @property
    def slug(self) -> str:
        """The GPU's name as part of a file name: "h200"."""
        words = "".join(c if c.isalnum() else " " for c in self.name.lower()).split()
        return "-".join(word for word in words if word != "nvidia") or "gpu"


REHEARSAL = Gpu("no GPU, a rehearsal on the processor", "none", "none")


def find_gpu() -> Gpu:
    """The first GPU. Raises Refusal if there is none."""
    if shutil.which("nvidia-smi") is None:
        raise Refusal("there is no GPU here: no nvidia-smi on the PATH")
    query = "--query-gpu=name,driver_version,compute_cap"
    done = told(["nvidia-smi", query, "--format=csv,noheader"])
    lines = done.stdout.strip().splitlines()
    fields = [field.strip() for field in lines[0].split(",")] if lines else []
    if done.returncode or len(fields) != 3:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise Refusal(f"there is no GPU here: nvidia-smi says: {said[:200]}")
    return Gpu(fields[0], fields[1], "sm_" + fields[2].replace(".", ""))


def need_tools(command: str) -> None:
    """Raise Refusal if nvcc, cmake or a module is missing that .gpu/setup.sh will not bring."""
    if shutil.which("nvcc") is None and not can_set_up():
        raise Refusal("there is no nvcc on the PATH, which compiles code for the GPU")
    if shutil.which("cmake") is None:
        raise Refusal("there is no cmake on the PATH, which builds needle's native modules")
    modules = ["numpy", "ml_dtypes", "rich", "safetensors"]
    if command == "test":
        modules += ["pytest", "hypothesis"]
    if not can_set_up():
        modules = ["tvm", *modules, "platformdirs"]
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise Refusal(
            f"{sys.executable} has no module {', '.join(missing)}: install the project with its"
            " [tvm] and [test] extras, or unpack TVM's offline bundle as .gpu/"
        )


def can_set_up() -> bool:
    """Whether TVM's bundle is there and this run has not unpacked it."""
    return SETUP.is_file() and STARTED not in os.environ


def set_up(arguments: Sequence[str], started: float) -> None:
    """Start this program anew with .gpu/setup.sh sourced, if TVM is missing and the bundle
    there."""
    if importlib.util.find_spec("tvm") is not None or not can_set_up():
        return
    os.environ[STARTED] = str(started)
    script = '. .gpu/setup.sh && exec "$0" -m bench.gpu "$@"'
    os.chdir(ROOT)
    sys.stdout.flush()
    os.execvp("bash", ["bash", "-c", script, sys.executable, *arguments])


def versions() -> dict[str, str]:
    """The versions that the figures depend on."""
    found = {
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }
    for title, distribution in _TITLES.items():
        try:
            found[title] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            found[title] = "not installed"
    release = [
        line for line in told(["nvcc", "--version"]).stdout.splitlines() if "release" in line
    ]
    found["nvcc"] = release[0].split("release", 1)[1].strip() if release else "unknown"
    return found


def told(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command; exit code 1 if it cannot be run or takes a minute."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def build(architecture: str) -> None:
    """Build needle's native modules for a GPU into the source tree, as far as they are not built.

    Raises Refusal if that fails.
    """
    print(f"building needle's modules for {architecture}", flush=True)
    start = time.time()
    options = [
        "-DNEEDLE_CUDA=ON",
        f"-DCMAKE_CUDA_ARCHITECTURES={architecture.removeprefix('sm_')}-real",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    if shutil.which("ninja") and not (BUILD / "CMakeCache.txt").exists():
        options += ["-G", "Ninja"]  # a host need not have make
    for command in (
        ["cmake", "-S", ".", "-B", str(BUILD), *options],
        ["cmake", "--build", str(BUILD), "-j", str(len(os.sched_getaffinity(0)))],
        ["cmake", "--install", str(BUILD), "--prefix", "."],
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stdout + done.stderr).splitlines()
            wrong = [line for line in lines if "error" in line.lower()]
            reason = " ".join(" ".join((wrong or lines)[-12:]).split())[-600:]
            raise Refusal(f"needle's native modules cannot be built: {reason}")
    print(f"built in {time.time() - start:.0f} s", flush=True)
