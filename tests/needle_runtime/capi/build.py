"""Programs built as users build them, and the library built with sanitizers."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.needle_runtime.capi.library import prefix

EXAMPLES, PROGRAMS = ROOT / "runtime" / "examples", Path(__file__).parent
STEP = sorted((PROGRAMS.parent / "kept").iterdir())[-1] / "step"  # of the last released version
WARNINGS = "-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"
# What the sanitizers say ends the process: reports of leaks, too.
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:"
    f"suppressions={PROGRAMS / 'tsan_suppressions.txt'}",
}


def package_folder(name: str) -> Path:
    """The folder of a Python package, which is not imported."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def ran(command: Any, *, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command; with `check`, its exit code must be 0."""
    chosen = {"capture_output": True, "text": True, "timeout": 600, **options}
    done = subprocess.run([*map(str, command)], **chosen)
    assert not check or done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done


def cmake(source: Path, folder: Path, *definitions: str) -> Path:
    """Configure and build a CMake project in `folder`; return the folder. Skips without CMake or
    a compiler."""
    for tool in ("cmake", "c++", "cc"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    ran(["cmake", "-S", source, "-B", folder, *(f"-D{each}" for each in definitions)])
    ran(["cmake", "--build", folder, "--parallel", "2"])
    return folder


def flags(sanitizers: str) -> str:
    """The compiler's flags for user programs."""
    return f"{WARNINGS} -g -fsanitize={sanitizers}" if sanitizers else WARNINGS


def programs(source: Path, folder: Path, where: Path, sanitizers: str = "") -> Path:
    """Build the programs of a folder against an installation of libneedle_runtime."""
    chosen = flags(sanitizers)
    return cmake(
        source,
        folder,
        f"CMAKE_PREFIX_PATH={where}",
        f"CMAKE_C_FLAGS={chosen}",
        f"CMAKE_CXX_FLAGS={chosen}",
        "CMAKE_BUILD_TYPE=RelWithDebInfo",
    )


def sanitized_library(folder: Path, sanitizers: str) -> Path:
    """Build libneedle_runtime with sanitizers and install it, with TVM's libraries beside it;
    return the prefix."""
    ffi = package_folder("tvm_ffi")
    build = cmake(
        ROOT / "runtime" / "src" / "capi",
        folder / "library",
        f"NEEDLE_SANITIZE={sanitizers}",
        f"NEEDLE_TVM_FFI={ffi}",
        "CMAKE_BUILD_TYPE=RelWithDebInfo",
    )
    ran(["cmake", "--install", build, "--prefix", folder / "prefix"])
    installed = folder / "prefix" / "needle_runtime"
    (installed / "lib" / "libtvm_ffi.so").symlink_to(ffi / "lib" / "libtvm_ffi.so")
    (installed / "lib" / "libtvm_runtime.so").symlink_to(prefix() / "lib" / "libtvm_runtime.so")
    return installed


def environment(**variables: str) -> dict[str, str]:
    """This process's variables and the sanitizers' options."""
    return {**os.environ, **SANITIZER_OPTIONS, **variables}
