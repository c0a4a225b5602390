"""The host: its GPU, its versions, and its bundle.

The bundle (`bundle.py`) is an archive in `.gpu/` with the packages that this host lacks: TVM's
runtime libraries and tvm-ffi for its Python, needle's native modules, and the compiled contestants.
This module needs only the standard library.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import lzma
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from needle_runtime.target import gpu

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / ".gpu" / "bundle.tar.xz"
COMPILER = "compiler.tar.xz"  # the optional second bundle beside it, in numbered parts
UNPACKED = ROOT / "build" / "gpu" / "bundle"
LAST = ROOT / "build" / "gpu" / "last.tar.xz"  # a copy of the newest results on this machine
STARTED = "NEEDLE_GPU_STARTED"  # start time of the first process; set when the paths are set

# Folders and files of the archive.
MANIFEST = "bundle.json"
SITE = "site"  # packages
TREE = "tree"  # files for the source tree
CONTESTS = "contests"  # a folder for each contest

_TITLES = {
    "NumPy": "numpy",
    "PyTorch": "torch",
    "Triton": "triton",
    "cuBLAS": "nvidia-cublas",
    "cuDNN": "nvidia-cudnn-cu13",
    "TVM's ffi": "apache-tvm-ffi",
}


class Refusal(Exception):
    """The command cannot run here; the message is a one-line reason."""


@dataclass(frozen=True)
class Host:
    """This machine's first GPU, and its driver's version."""

    name: str
    arch: str
    driver: str

    @property
    def slug(self) -> str:
        """The GPU's name as part of a file name: "h200"."""
        words = "".join(c if c.isalnum() else " " for c in self.name.lower()).split()
        return "-".join(word for word in words if word != "nvidia") or "gpu"


def find_gpu() -> Host:
    """Return the first GPU. Raises Refusal if there is none."""
    found = gpu.gpus()
    if not found:
        raise Refusal(f"there is no GPU here: {gpu.why_none()}")
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    lines = run(query).stdout.split()
    return Host(found[0].name, found[0].arch, lines[0] if lines else "unknown")


def read_manifest() -> dict[str, Any]:
    """Unpack the bundle, if it is not unpacked yet, and return its manifest.

    Raises Refusal if the bundle is absent, damaged, or made for another Python.
    """
    if not BUNDLE.is_file():
        raise Refusal(f"{BUNDLE} is missing: make gpu-bundle writes it (docs/gpu.md)")
    parts = sorted(BUNDLE.parent.glob(f"{COMPILER}.*"))
    archives = {BUNDLE: BUNDLE.read_bytes()}
    if parts:
        archives[BUNDLE.with_name(COMPILER)] = b"".join(path.read_bytes() for path in parts)
    mark = UNPACKED / hashlib.sha256(b"".join(archives.values())).hexdigest()
    if not mark.is_file():
        shutil.rmtree(UNPACKED, ignore_errors=True)
        for path, data in archives.items():
            try:
                with tarfile.open(fileobj=io.BytesIO(data), mode="r:xz") as archive:
                    archive.extractall(UNPACKED, filter="data")
            except (OSError, EOFError, tarfile.TarError, lzma.LZMAError) as error:
                raise Refusal(f"{path} cannot be unpacked: {error}") from error
        mark.touch()
    manifest: dict[str, Any] = json.loads((UNPACKED / MANIFEST).read_text())
    here = platform.python_version_tuple()[:2]
    if manifest["python"].split(".")[:2] != list(here):
        raise Refusal(
            f"the bundle is for Python {manifest['python']}, but {sys.executable} is "
            f"{platform.python_version()}"
        )
    return manifest


def set_up(arguments: Sequence[str], started: float) -> None:
    """Restart this program with the bundle's paths, unless that is already done."""
    if STARTED in os.environ:
        return
    shutil.copytree(UNPACKED / TREE, ROOT, dirs_exist_ok=True)
    with contextlib.suppress(FileExistsError):  # needle's modules look there for the thread library
        (ROOT / "needle_runtime").symlink_to(Path("runtime", "needle_runtime"))
    os.environ[STARTED] = str(started)
    before = os.environ.get("PYTHONPATH")
    paths = [str(ROOT), str(UNPACKED / SITE), *([before] if before else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.chdir(ROOT)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "bench.gpu", *arguments])


def check_runs(host: Host, manifest: dict[str, Any]) -> None:
    """Raise Refusal if the bundle's code does not run on the GPU."""
    found = gpu.gpus()[0]
    if not gpu.runs(manifest["arch"], found):
        raise Refusal(f"the bundle is for {manifest['arch']}, but {host.name} is {host.arch}")


def versions() -> dict[str, str]:
    """Return the versions that the figures depend on."""
    installed = {
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }
    for title, distribution in _TITLES.items():
        try:
            installed[title] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            installed[title] = "not installed"
    return installed


def run(command: list[str], seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a command; the return code is 1 if it cannot run or exceeds `seconds`."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
