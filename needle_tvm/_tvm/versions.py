"""The TVM version that needle requires, and installed versions. This module imports neither TVM nor
needle."""

from __future__ import annotations

import functools
import hashlib
import re
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from needle_tvm.errors import InstallError

# The pair is pinned together: TVM's wheel admits any newer tvm-ffi, and with ffi 0.1.15
# `tvm.ir.save_json`, every record commit and every meta_schedule mutator end in a segfault.
TVM = "0.27.0.post1"
FFI = "0.1.14.post1"

INSTALL_HINT = f"pip install apache-tvm=={TVM} apache-tvm-ffi=={FFI}"


UNKNOWN = "unknown"  # for a package that is installed but has no version

_PACKAGES = {"apache-tvm": "tvm", "apache-tvm-ffi": "tvm_ffi"}  # these also have a version file
_VERSION = re.compile(r"^__version__ = version = '([^']+)'", re.MULTILINE)


@functools.cache
def installed(distribution: str) -> str | None:
    """Return the version of an installed `distribution`; None if there is none.

    TVM and tvm-ffi have a version even if they are unpacked without metadata. Imports neither.
    """
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        folder = _folder(_PACKAGES.get(distribution))
    try:
        found = _VERSION.search((folder / "_version.py").read_text()) if folder else None
    except (OSError, ValueError):
        found = None
    return found.group(1) if found else None


def check_pins() -> None:
    """Raise InstallError unless the installed TVM and tvm-ffi are the pair this project pins."""
    for name, wanted in (("apache-tvm", TVM), ("apache-tvm-ffi", FFI)):
        found = installed(name)
        if found is None and name == "apache-tvm" and _folder("tvm") is not None:
            continue  # unpacked, without a version
        if found != wanted:
            raise InstallError(
                f"{name} is {found or 'not installed'}, but needle_tvm needs {wanted} "
                f"(other pairs crash the tuner): {INSTALL_HINT}"
            )


def _folder(package: str | None) -> Path | None:
    """Return the folder of a package, found without importing it."""
    spec = PathFinder.find_spec(package) if package else None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def tvm_library_folder() -> Path | None:
    """Return the folder of TVM's shared libraries, found without importing TVM; None if missing."""
    folder = _folder("tvm")
    return folder / "lib" if folder is not None and (folder / "lib").is_dir() else None


@functools.cache
def compiler_identity() -> str:
    """Return the identity of the TVM compiler. LLVM is linked into it, so this covers LLVM too.

    It is the SHA-256 that the wheel records for the library, with the file's size and time, which
    change if another build takes its place.
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
    """Return a SHA-256 of the sources of needle and needle_tvm: an edit is another compiler."""
    digest = hashlib.sha256()
    here = Path(__file__).parents[1]
    for root in (here.with_name("needle"), here):  # always installed together
        for path in sorted(p for end in ("py", "cc", "h") for p in root.rglob(f"*.{end}")):
            name = f"{root.name}/{path.relative_to(root)}"
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def pair() -> dict[str, str]:
    """Return the installed versions of TVM and tvm-ffi, which a loaded artifact must match."""
    return {
        "tvm": installed("apache-tvm") or TVM,
        "tvm_ffi": installed("apache-tvm-ffi") or UNKNOWN,
    }


def stamp() -> dict[str, str]:
    """Return the versions that determine generated code, for cache keys and manifests."""
    return {
        "needle": installed("needle-dl") or "source",
        "sources": source_digest(),
        **pair(),
        "compiler": compiler_identity(),
    }


def provenance() -> dict[str, str]:
    """Return `stamp` without the parts specific to this installation: two machines with the same
    packages write the same manifest, although the times of their compiler files differ."""
    library = _compiler_library()
    size = library.stat().st_size if library is not None else 0
    return {**stamp(), "compiler": f"{_recorded_compiler()}-{size}"}
