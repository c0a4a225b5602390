"""The TVM version that this runtime needs, and installed versions. This module imports neither TVM
nor tvm_ffi."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path

# The two are pinned together: TVM's wheel accepts any newer tvm-ffi, but with ffi 0.1.15
# `tvm.ir.save_json`, every record commit and every meta_schedule mutator crash with a segfault.
TVM = "0.27.0.post1"
FFI = "0.1.14.post1"

# The versions of TVM and tvm-ffi whose code this runtime runs: the pinned pair, and the pairs of
# the last two minor versions of needle-runtime (docs/compatibility.md). runtime/src/capi reads
# these lines.
RUNS = {
    ("0.27.0.post1", "0.1.14.post1"),
}
# The first needle-runtime that runs artifacts of this version. Increase it with every change that
# an older runtime does not understand.
NEEDS = "0.1"

FFI_HINT = f"pip install apache-tvm-ffi=={FFI}"
INSTALL_HINT = f"pip install apache-tvm=={TVM} apache-tvm-ffi=={FFI}"

UNKNOWN = "unknown"  # for a package that is installed but has no version

# Packages with a file that has their version. Reading the file takes a tenth of the time that it
# takes to import importlib.metadata, and it works without metadata.
_PACKAGES = {
    "needle-runtime": "needle_runtime",
    "apache-tvm": "tvm",
    "apache-tvm-ffi": "tvm_ffi",
}
_VERSION = re.compile(r"^__version__ = version = '([^']+)'", re.MULTILINE)


@functools.cache
def installed(distribution: str) -> str | None:
    """Return the version of an installed `distribution`; None if there is none.

    For packages with a version file, this also works if they were unpacked without metadata. No
    package is imported.
    """
    for folder in _folders(_PACKAGES.get(distribution)):
        with contextlib.suppress(OSError, ValueError):
            if found := _VERSION.search((folder / "_version.py").read_text()):
                return found.group(1)
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _folders(package: str | None) -> list[Path]:
    """Return the folders of a package without importing it; an editable install has two."""
    if package == "needle_runtime":
        return [Path(folder) for folder in sys.modules[package].__path__]
    spec = PathFinder.find_spec(package) if package else None
    return [Path(each) for each in (spec and spec.submodule_search_locations) or ()]


def tvm_library_folder() -> Path | None:
    """Return the folder of TVM's shared libraries without importing TVM; None if it is missing."""
    libraries = (folder / "lib" for folder in _folders("tvm"))
    return next((each for each in libraries if each.is_dir()), None)


def ffi_library_folder() -> Path | None:
    """Return the folder of tvm-ffi's shared library without importing tvm-ffi; None if there is
    none."""
    return next((folder / "lib" for folder in _folders("tvm_ffi")), None)


def own_library_folders() -> list[Path]:
    """Return the folders that may have the shared libraries of this package."""
    return [folder / "lib" for folder in _folders("needle_runtime")]


def runtime_library_folder() -> Path | None:
    """Return the folder of the TVM runtime library to load; None if there is none.

    If the installed TVM has the required version, this is its folder. The compiler and this package
    then share one library: a second copy in the process would register everything twice. Otherwise
    it is the folder in this package.
    """
    folders = own_library_folders()
    theirs = tvm_library_folder()
    if theirs is not None and installed("apache-tvm") in (TVM, None):
        folders.insert(0, theirs)
    return next((each for each in folders if (each / "libtvm_runtime.so").is_file()), None)


def pair() -> dict[str, str]:
    """Return the versions of TVM's runtime and of tvm-ffi that are in use."""
    # If another TVM was imported earlier, its runtime library is in use.
    imported = installed("apache-tvm") if "tvm" in sys.modules else None
    return {
        "tvm": imported or TVM,
        "tvm_ffi": installed("apache-tvm-ffi") or UNKNOWN,
    }


def runs(wanted: tuple[str, str]) -> bool:
    """Return whether the runtime in use can run code for a pair of TVM and tvm-ffi versions."""
    here = tuple(pair().values())
    return wanted == here or (here == (TVM, FFI) and wanted in RUNS)
