"""The installed compiler: its identity, and the check that it is the version needle requires. This
module imports neither TVM nor needle."""

from __future__ import annotations

import functools
import hashlib
from importlib import metadata
from pathlib import Path

import needle_runtime
from needle_runtime._tvm.versions import (
    FFI,
    INSTALL_HINT,
    TVM,
    installed,
    pair,
    tvm_library_folder,
)
from needle_runtime.errors import InstallError


def check_pins() -> None:
    """Raise InstallError unless the installed TVM and tvm-ffi are the pair this project pins."""
    for name, wanted in (("apache-tvm", TVM), ("apache-tvm-ffi", FFI)):
        found = installed(name)
        if found is None and name == "apache-tvm" and tvm_library_folder() is not None:
            continue  # an unpacked copy without a version
        if found != wanted:
            raise InstallError(
                f"{name} is {found or 'not installed'}, but needle_tvm needs {wanted} "
                f"(other pairs crash the tuner): {INSTALL_HINT}"
            )


@functools.cache
def compiler_identity() -> str:
    """Return the identity of the TVM compiler. LLVM is linked into it, so this covers LLVM too.

    It is the SHA-256 that the wheel records for the library, with the file's size and time, which
    change if another build replaces the library.
    """
    recorded = _recorded_compiler()
    library = _compiler_library()
    if library is None:
        return recorded or "none"
    stat = library.stat()
    return f"{recorded}-{stat.st_size}-{stat.st_mtime_ns}"


@functools.cache  # the wheel's record has thousands of lines
def _recorded_compiler() -> str:
    """Return the SHA-256 that the wheel records for TVM's compiler library; "" without a wheel."""
    if installed("apache-tvm") is not None:
        for file in metadata.files("apache-tvm") or []:
            if file.name == "libtvm_compiler.so" and file.hash is not None:
                return file.hash.value
    return ""


def _compiler_library() -> Path | None:
    folder = tvm_library_folder()
    library = folder / "libtvm_compiler.so" if folder is not None else None
    return library if library is not None and library.is_file() else None


@functools.cache
def source_digest() -> str:
    """Return a SHA-256 of the sources of all three packages: any edit may change generated code."""
    digest = hashlib.sha256()
    here = Path(__file__).parents[1]
    runtime = Path(needle_runtime.__file__).parent
    for root in (here.with_name("needle"), here, runtime):  # needle is installed beside needle_tvm
        for path in sorted(p for end in ("py", "cc", "h") for p in root.rglob(f"*.{end}")):
            name = f"{root.name}/{path.relative_to(root)}"
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def stamp() -> dict[str, str]:
    """Return the versions that determine generated code, for cache keys and manifests."""
    return {
        "needle": installed("needle-dl") or "source",
        "sources": source_digest(),
        **pair(),
        "compiler": compiler_identity(),
    }


def provenance() -> dict[str, str]:
    """Return `stamp` without the parts specific to this installation. Two machines with the same
    packages thus write the same manifest, although the times of their compiler files differ."""
    library = _compiler_library()
    size = library.stat().st_size if library is not None else 0
    return {**stamp(), "compiler": f"{_recorded_compiler()}-{size}"}
