"""Turns built modules into object files and shared libraries.

LLVM aborts the process if it cannot write a file. So LLVM writes to memory, and this module writes
the files and raises an exception if the disk is full.
"""

from __future__ import annotations

import os
import platform
import resource
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from needle_tvm.errors import ToolchainError

_SLACK = 64 << 10  # bytes of an object file besides its code


def cxx_compiler() -> str | None:
    """Return the command of this machine's C++ compiler, which also links; None if there is
    none."""
    from tvm.support import cc

    command: str | None = cc.get_cc()
    return command


def _linker(machine: str) -> str:
    """Return the command of a C++ compiler that links for `machine`, a triple ("": this machine).

    For another architecture, this is CXX if it compiles for that architecture. Otherwise it is the
    name that distributions use, such as aarch64-linux-gnu-g++. Raises ToolchainError if there is
    none.
    """
    architecture = machine.partition("-")[0]
    if architecture in ("", platform.machine()):
        if command := cxx_compiler():
            return command
        raise ToolchainError(
            "linking needs a C++ compiler, and there is none: install one (on Debian and Ubuntu: "
            "apt install g++), or set CXX to its command"
        )
    asked = os.environ.get("CXX", "")
    if asked and _target_of(asked).partition("-")[0] == architecture:
        return asked
    triple = f"{architecture}-linux-{'musl' if machine.endswith('-musl') else 'gnu'}"
    for name in (f"{triple}-g++", f"{triple}-gcc"):
        if shutil.which(name):
            return name
    raise ToolchainError(
        f"linking code for {machine} needs a C++ compiler for it, and there is no {triple}-g++: "
        f"install one (on Debian and Ubuntu: apt install g++-{triple.replace('_', '-')}), or set "
        "CXX to its command"
    )


def _target_of(compiler: str) -> str:
    """Return the triple for which a compiler's command generates code; "" if that is unknown."""
    try:
        command = [*shlex.split(compiler), "-dumpmachine"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except (OSError, ValueError):
        return ""
    return done.stdout.strip()


def object_code(module: Any, scratch: Path) -> bytes:
    """Return the object file of a module that LLVM has built.

    LLVM writes to a file in memory, through its path in /proc. Without /proc, it writes to
    `scratch`. Raises ToolchainError if there is no room.
    """
    descriptor = os.memfd_create("needle-object")
    try:
        path = f"/proc/self/fd/{descriptor}"
        if not os.path.exists(path):
            return _by_file(module, scratch)
        _check_limit(module)
        module.write_to_file(path, "o")
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


def _most_bytes(module: Any) -> int:
    """Return an upper bound on the size of a module's object file, from the length of its
    assembly."""
    return len(str(module.inspect_source("asm"))) + _SLACK


def _check_limit(module: Any) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit == resource.RLIM_INFINITY:
        return
    bound = _most_bytes(module)
    if bound > limit:
        raise ToolchainError(
            f"code generation: object files of up to {bound} bytes are needed, but this process "
            f"may write files of only {limit} bytes: raise the limit (ulimit -f)"
        )


def _by_file(module: Any, path: Path) -> bytes:
    """Let LLVM write the object file to `path`, after reserving disk space; return its bytes."""
    _check_limit(module)
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _most_bytes(module))
        module.write_to_file(str(path), "o")
        return path.read_bytes()
    except OSError as error:
        raise ToolchainError(f"{path}: code cannot be written ({error.strerror})") from error
    finally:
        path.unlink(missing_ok=True)


def compiled_parts(module: Any) -> list[Any]:
    """Return the parts of a built module that have machine code. If a program has no code of its
    own, because cuBLAS computes everything, TVM adds a part of empty C source, which is left
    out."""
    return [part for part in module._collect_dso_modules() if part.kind == "llvm"]


def link(
    objects: Sequence[Path], output: Path, options: Sequence[str] = (), *, machine: str = ""
) -> None:
    """Link object files (or assembly) into the shared library `output`, for this machine or for the
    triple `machine`.

    Raises ToolchainError, which names the tool, its command and its output.
    """
    compiler = _linker(machine)
    # With -Bsymbolic, a library calls its own functions, whatever else the process has loaded.
    command = [*shlex.split(compiler), "-shared", "-fPIC", "-Wl,-Bsymbolic", "-o", str(output)]
    command += [*map(str, objects), *options]
    run(command, f"link code for {machine or 'this machine'}")
    if not output.is_file():
        raise ToolchainError(f"{compiler} wrote no library: {shlex.join(command)}")


def run(command: Sequence[str], purpose: str) -> None:
    """Run a compiler's command; `purpose` is a phrase for errors, such as "link the library".

    Raises ToolchainError, which names the tool, its command and its output.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise ToolchainError(
            f"{command[0]} cannot {purpose}: running it failed ({error.strerror})"
        ) from error
    if done.returncode:
        words = " / ".join(f"{done.stderr}\n{done.stdout}".split("\n")[:8]).strip(" /")
        number = done.returncode
        how = f"exit code {number}" if number > 0 else f"signal {-number}"
        raise ToolchainError(
            f"{command[0]} failed to {purpose}: {words or 'no output'} ({how} of "
            f"`{shlex.join(command)}`)"
        )
