"""An environment for each runtime, with only the packages that pip installs for it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from bench.shipping.models import AOTINDUCTOR, ONNXRUNTIME, OURS
from needle_runtime.errors import UsageError
from needle_runtime.process.child import ChildError, load_module

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = {OURS: "needle-runtime", ONNXRUNTIME: "onnxruntime", AOTINDUCTOR: "torch"}
NUMPY = "numpy"  # each environment has it, and its bytes are not counted


@dataclass(frozen=True)
class Environment:
    """A virtual environment; `bytes_of` maps the name and version of each of its distributions,
    except NumPy, to the size. `origin` says where its files come from."""

    python: Path
    bytes_of: dict[str, int]
    origin: str

    @property
    def packages(self) -> Path:
        """The folder of its packages."""
        return next(self.python.parents[1].glob("lib/python*/site-packages"))

    @property
    def bytes(self) -> int:
        """The bytes of all its distributions but NumPy."""
        return sum(self.bytes_of.values())


def from_wheel(wheel: Path, folder: Path) -> Environment:
    """Install a wheel of needle-runtime, and the packages that it needs, by pip."""
    output_of("venv", [sys.executable, "-m", "venv", folder])
    python = folder / "bin/python"
    output_of("pip", [python, "-m", "pip", "install", "--quiet", wheel])
    found = Environment(python, {}, f"pip install {wheel.name}")
    found.bytes_of.update(_sizes(DISTRIBUTIONS[OURS], found.packages))
    return found


def from_installed(name: str, folder: Path) -> Environment:
    """Link a distribution that is installed here, NumPy, and all packages that they need, into an
    environment. Sizes are those of the files in their RECORDs."""
    output_of("venv", [sys.executable, "-m", "venv", "--without-pip", folder])
    origin = "files of the packages installed here, by their RECORDs"
    found = Environment(folder / "bin/python", {}, origin)
    here = Path(sysconfig.get_path("purelib"))
    for each in (*_closure(name, here), *_closure(NUMPY, here)):
        for top in {path.parts[0] for path in each.files or ()} - {"..", "__pycache__"}:
            link = found.packages / top
            if not link.exists():
                link.symlink_to(here / top)
    found.bytes_of.update(_sizes(name, here))
    return found


def wheel_of(folder: Path | None, scratch: Path) -> Path:
    """Return the wheel of needle-runtime for this Python: the newest in `folder`, or a new one."""
    if folder is None:
        builder = load_module(ROOT / "packaging/wheels.py")
        built: Path = builder.build(DISTRIBUTIONS[OURS], Path(sys.executable), scratch)
        return built
    tag = "cp{}{}".format(*sys.version_info)
    wheels = folder.glob(f"needle_runtime-*-{tag}-*.whl")
    newest = max(wheels, key=lambda file: file.stat().st_mtime, default=None)
    if newest is None:
        raise UsageError(f"--wheels {folder}: has no wheel of needle-runtime for {tag}")
    return newest


def output_of(
    name: str, command: Sequence[object], environment: Mapping[str, str] | None = None
) -> str:
    """Run a command with further environment variables; return its output. Raises ChildError with
    the `name` if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise ChildError(f"{name} failed with exit code {done.returncode}", done.stderr, name)
    return done.stdout


def _sizes(name: str, packages: Path) -> dict[str, int]:
    return {
        f"{each.name} {each.version}": sum(
            file.stat().st_size
            for path in each.files or ()
            if (file := Path(str(each.locate_file(path)))).is_file()
        )
        for each in _closure(name, packages)
        if each.name != NUMPY
    }


def _closure(name: str, packages: Path) -> Iterator[importlib.metadata.Distribution]:
    """Yield a distribution and all distributions that it needs without extras."""
    installed = {
        _normal(each.name): each
        for each in importlib.metadata.distributions(path=[str(packages)])
        if each.name
    }
    waiting, seen = [_normal(name)], set[str]()
    while waiting:
        wanted = waiting.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        if wanted not in installed:
            raise UsageError(f"{name} needs {wanted}, which is not installed in {packages}")
        yield installed[wanted]
        for line in installed[wanted].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(_normal(requirement.name))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
