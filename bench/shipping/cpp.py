"""Calls from C++: a driver for each runtime, compiled here and run in its own process."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from apps.contestants import CODE, check_agreement
from bench import contests
from bench.shipping.environments import Environment, output_of
from bench.shipping.models import AOTINDUCTOR, ONNXRUNTIME, OURS, TINY, Shipped
from needle_runtime.process import timing
from needle_runtime.process.threads import thread_environment
from needle_tvm import terminal

DIRECT = OURS + CODE  # the library's function, called directly
_SOURCES = Path(__file__).with_name("drivers")
_NAMES = {
    OURS: "needle",
    DIRECT: "direct",
    ONNXRUNTIME: "onnxruntime",
    AOTINDUCTOR: "aotinductor",
}
_FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra")
_WARM_UP = 0.3  # seconds


def compiler() -> str | None:
    """Return the C++ compiler's path: CXX, or g++; None if there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


def compile_driver(
    name: str,
    environments: Mapping[str, Environment],
    folder: Path,
    onnxruntime_include: Path | None,
) -> Path:
    """Compile the driver of a runtime, or of DIRECT, against the files of its environment; return
    the program. Raises ChildError if the compiler fails."""
    source = _SOURCES / f"{_NAMES[name]}.cc"
    packages = environments[environment_of(name)].packages
    includes, folders, libraries = _parts(name, packages, folder, onnxruntime_include)
    program = folder / f"{source.stem}-driver"
    command = [compiler(), *_FLAGS, source, "-o", program]
    command += [part for include in includes for part in ("-isystem", include)]
    command += [part for each in folders for part in (f"-L{each}", f"-Wl,-rpath,{each}")]
    output_of(f"the compiler of {source.name}", [*command, *libraries, "-ldl"])
    return program


def environment_of(name: str) -> str:
    """Return the runtime whose environment a driver is compiled and run in."""
    return name.removesuffix(CODE)


def _parts(
    name: str, packages: Path, folder: Path, onnxruntime_include: Path | None
) -> tuple[Sequence[Path], Sequence[Path], Sequence[str]]:
    """Return the folders of headers, the folders of libraries, and the libraries of a driver."""
    if name == OURS:
        package = packages / "needle_runtime"
        return [package / "include"], [package / "lib"], ["-lneedle_runtime"]
    if name == DIRECT:
        ffi = packages / "tvm_ffi"
        libraries = [ffi / "lib", packages / "needle_runtime/lib"]
        return [ffi / "include"], libraries, ["-ltvm_ffi"]
    if name == ONNXRUNTIME:
        # The wheel has the library only under its full version, but programs look for its soname.
        library = next((packages / "onnxruntime/capi").resolve().glob("libonnxruntime.so.*"))
        link = folder / "libonnxruntime.so.1"
        link.unlink(missing_ok=True)
        link.symlink_to(library)
        return [onnxruntime_include or folder], [folder], [str(link)]
    torch = packages / "torch"
    includes = [torch / "include", torch / "include/torch/csrc/api/include"]
    return includes, [torch / "lib"], ["-ltorch", "-ltorch_cpu", "-lc10"]


class Driver:
    """A driver's process. `answer` is its first answer, `libraries` the bytes of the shared
    libraries that it loaded from a folder of packages, and `memory` its largest resident size."""

    def __init__(self, name: str, command: Sequence[str], threads: int, packages: Path) -> None:
        self.name = name
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **thread_environment(threads)},
        )
        self.answer = np.array(self._line().split(), "float32")
        proc = Path(f"/proc/{self._process.pid}")
        mapped = {line.split(maxsplit=5)[-1] for line in (proc / "maps").read_text().splitlines()}
        links = [each for each in packages.iterdir() if each.is_symlink()]
        roots = {each.resolve() for each in (packages, *links)}
        self.libraries = sum(
            file.stat().st_size
            for file in map(Path, mapped)
            if ".so" in file.name and not roots.isdisjoint(file.parents)
        )
        status = (proc / "status").read_text().splitlines()
        (most,) = (line.split()[1] for line in status if line.startswith("VmHWM:"))
        self.memory = int(most) * 1024

    def seconds(self, calls: int) -> float:
        """Return the seconds that this number of calls takes."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{calls}\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, errors = self._process.communicate()
            raise timing.TimingError(f"{self.name}: the driver failed: {errors.strip()}")
        return line


def command(name: str, program: Path, model: Shipped, threads: int) -> list[str]:
    """Return the command of a driver for a model."""
    if name == DIRECT:
        weights = [f"layers.0.linear.{part}" for part in ("weight", "bias")]
        files = [model.files[OURS] / "lib.so", model.input, *map(model.numbers, weights)]
        return [str(part) for part in (program, *files)]
    return [str(part) for part in (program, model.files[name], model.input, threads)]


def measure(
    programs: Mapping[str, Path],
    environments: Mapping[str, Environment],
    model: Shipped,
    options: argparse.Namespace,
) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    """Compare the drivers' answers, then time their calls. Return the case and, for each driver,
    the bytes of its `libraries` and its `memory`. DIRECT runs only the tiny model."""
    title, threads = f"C++ call, {model.name}", options.threads
    with ExitStack() as stack:
        bar = stack.enter_context(terminal.progress())
        drivers = []
        for name, program in programs.items():
            if name == DIRECT and model.name != TINY:
                continue
            packages = environments[environment_of(name)].packages
            driver = Driver(name, command(name, program, model, threads), threads, packages)
            stack.callback(driver.close)
            drivers.append(driver)
        exact = [model.answer.ravel()]
        check_agreement(
            {"the model in float64": exact, **{each.name: [each.answer] for each in drivers}}
        )
        results = {each.name: timing.Result(each.name, [each.answer]) for each in drivers}
        estimates = {each.name: _warm_up(each) for each in drivers}
        for driver in contests.alternating(
            drivers, options.rounds, lambda number: bar(number, options.rounds, title)
        ):
            calls = max(1, round(options.block_seconds / estimates[driver.name]))
            driver.seconds(max(1, calls // 20))  # warms caches and threads as a loop of calls does
            result = results[driver.name]
            result.seconds.append(driver.seconds(calls) / calls)
            result.calls += calls
            estimates[driver.name] = result.seconds[-1]
        sizes = {
            each.name: {"libraries": each.libraries, "memory": each.memory} for each in drivers
        }
    case = contests.case_of(title, list(results.values()), options.rounds, exact)
    return case, sizes


def _warm_up(driver: Driver) -> float:
    """Call for a while; return the seconds per call."""
    calls, end = 1, time.monotonic() + _WARM_UP
    while True:
        seconds = driver.seconds(calls)
        if time.monotonic() > end:
            return seconds / calls
        calls = 2 * calls if seconds < _WARM_UP / 4 else calls
