"""A small rehearsal of bundle, bench and page on this machine, with an emulated GPU.

A copy of the working tree and a second bundle, made for the emulated GPU of the tests, go into an
empty folder. There a Python without needle and TVM runs `bench`, as on a GPU host.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.gpu import bundle, page
from bench.gpu import run as bench
from bench.gpu.host import BUNDLE, ROOT, Refusal
from needle_runtime.process.scratch import scratch_folder

_PACKAGES = ("numpy>=2.0", "ml_dtypes>=0.5", "rich>=13", "safetensors>=0.8", "pytest>=8")
_SECONDS = 1800.0


def run(options: argparse.Namespace) -> int:
    """Rehearse; return the exit code of `bench`. The page goes to `out`."""
    from tests.needle_tvm import emulated_gpu

    out = options.out.resolve()
    with scratch_folder("needle-rehearsal-") as folder:
        tree = folder / "tree"
        copy_tree(tree)
        only = ["--only", *options.only] if options.only else []
        made = [sys.executable, "-m", "bench.gpu", "bundle", "--rehearsal", *only]
        made += ["--python", options.python, "--out", str(tree / BUNDLE.parent.name)]
        environment = {**os.environ, **emulated_gpu.environment()}
        environment["NEEDLE_CACHE_DIR"] = str(ROOT / "build" / "gpu" / "rehearsal-cache")
        if subprocess.run(made, cwd=ROOT, env=environment, check=False).returncode:
            raise Refusal("the bundle of the rehearsal could not be made")
        python = bare_python(options.python)
        given = ["-m", "bench.gpu", "bench", "--rounds", "2", "--seconds", str(_SECONDS), *only]
        site = (
            tree / emulated_gpu.HERE.relative_to(ROOT) / "site"
        )  # this path gives a process the emulated GPU
        clean = {name: os.environ.get(name, "") for name in ("PATH", "HOME")}
        clean |= {"PYTHONPATH": f"{site}:{tree}:{tree / 'runtime'}"}
        done = subprocess.run([python, *given], cwd=tree, env=clean, check=False)
        archives = list((tree / "out" / "gpu").glob("*.tar.xz"))
        if not archives:
            raise Refusal("bench wrote no archive")
        page.write(bench.read(archives[0]), out)
    return done.returncode


def copy_tree(tree: Path) -> None:
    """Copy the files that travel with the bundle."""
    for name in bundle.travelling():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)


def bare_python(version: str) -> str:
    """Return a Python with a GPU host's packages except PyTorch, without needle and TVM.

    Raises Refusal if it cannot be made.
    """
    place = ROOT / "build" / "gpu" / f"python-{version}"
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        what = f"no Python {version} with {', '.join(_PACKAGES)} can be made"
        bundle.do([bundle.find_python(version), "-m", "venv", "--clear", str(place)], what)
        bundle.do([str(python), "-m", "pip", "install", "-q", *_PACKAGES], what)
        (place / "complete").touch()
    return str(python)
