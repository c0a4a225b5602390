"""Find the shared libraries that an artifact's code and libneedle_runtime need."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from needle_runtime._tvm.versions import (
    ffi_library_folder,
    own_library_folders,
    runtime_library_folder,
)
from needle_runtime.bundle import elf
from needle_runtime.errors import InstallError, TargetError

RUNTIME, TVM = "libneedle_runtime.so", "libtvm_runtime.so"  # the first loads the second by name
SODIUM = ("libsodium.so.26", "libsodium.so.23")  # as in src/capi/signature.cc
# The libraries of glibc, which are not copied to a bundle.
_LIBC = re.compile(r"lib(c|m|dl|pthread|rt|util|resolv)\.so\.\d|ld-linux-[\w-]+\.so\.\d")
# Subfolders of the folder that a user names: a bundle, an installation, or unpacked wheels.
_PLACES = ("lib", "needle_runtime/lib", "tvm_ffi/lib", "tvm/lib")
_OURS = ("libneedle_", "libtvm_")  # the system's copies may have another version: never use them
_RTLD_DI_LINKMAP = 2


class Libraries:
    """Finds libraries for one `machine`: first in a folder that the user names or in this
    installation, then in the system or, for another architecture, by asking that architecture's C++
    compiler."""

    def __init__(self, machine: str, folder: Path | None) -> None:
        """`folder` has the runtime's libraries in `lib`, or in `needle_runtime/lib`, `tvm_ffi/lib`
        and `tvm/lib`; None stands for this installation. Raises TargetError if this installation is
        for another machine, or if libneedle_runtime.so is missing."""
        self.machine, self._here = machine, machine == platform.machine()
        if folder is None and not self._here:
            raise TargetError(
                f"this installation's libraries are for {platform.machine()}, not for {machine}: "
                f"give --runtime FOLDER, a folder with {RUNTIME}, {TVM} and libtvm_ffi.so for "
                f"{machine} (docs/cross-compiling.md says how to make it)"
            )
        if folder is None:
            found = (prefix() / "lib", runtime_library_folder(), ffi_library_folder())
            self._folders = [each for each in found if each is not None]
        else:
            self._folders = [folder / place for place in _PLACES]
        self.prefix = self.find(RUNTIME).parent.parent

    def find(self, name: str, user: str = "the bundle") -> Path:
        """Return the file of the library `name`, which `user` needs.

        Raises TargetError if there is none."""
        file = self.look(name)
        if file is None:
            searched = [str(each) for each in self._folders if each.is_dir()]
            if not name.startswith(_OURS):
                searched.append("the system" if self._here else f"{self.machine}-linux-gnu-g++")
            raise TargetError(
                f"{name} for {self.machine}, which {user} needs, was not found in "
                f"{', '.join(searched) or ', '.join(map(str, self._folders))}"
            )
        return file

    def look(self, name: str) -> Path | None:
        """Return the file of the library `name`; None if there is none."""
        for folder in self._folders:
            if (folder / name).is_file():
                return folder / name
        if name.startswith(_OURS):
            return None
        return _of_system(name) if self._here else _of_compiler(name, self.machine)

    def needed(self, first: Iterable[tuple[str, elf.Elf]]) -> dict[str, Path]:
        """Return, by name, the files of all libraries that those in `first` need, directly or
        indirectly.

        `first` has pairs of a name for errors and a library's needs. Raises TargetError if a
        library is missing, is for another machine or lacks a version of a symbol that another
        library needs.
        """
        files: dict[str, Path] = {}
        needs = dict(first)
        waiting = list(needs)
        while waiting:
            user = waiting.pop(0)
            for name in needs[user].needed:
                if name not in files and not is_libc(name):
                    files[name] = self.find(name, user)
                    needs[name] = self.read(files[name])
                    waiting.append(name)
        for user, library in needs.items():
            for name, versions in library.versions.items():
                lacking = sorted(versions - needs[name].defined) if name in files else []
                if lacking:
                    raise TargetError(
                        f"{files[name]}: has no {lacking[0]}, which {user} needs: it is too old"
                    )
        return files

    def read(self, path: Path) -> elf.Elf:
        """Return the needs of the library at `path`. Raises TargetError unless it is a library for
        `machine`."""
        try:
            found = elf.read(path.read_bytes())
        except ValueError as error:
            raise TargetError(f"{path}: cannot be read as a library ({error})") from None
        if found.machine != self.machine:
            raise TargetError(f"{path}: is for {found.machine}, not for {self.machine}")
        return found


def prefix() -> Path:
    """Return the folder in this installation with `include`, `lib` and the files for CMake.

    Raises InstallError if the native parts were not built.
    """
    for folder in own_library_folders():
        if (folder / RUNTIME).is_file():
            return folder.parent
    raise InstallError(f"{RUNTIME} was not found: pip install --force-reinstall needle-runtime")


def is_libc(name: str) -> bool:
    """Return whether a library belongs to glibc."""
    return _LIBC.fullmatch(name) is not None


def _of_system(name: str) -> Path | None:
    """Return the file that this machine's loader finds for a library's name; None if it finds
    none."""
    try:
        library = ctypes.CDLL(name)
    except OSError:
        return None
    entry = ctypes.POINTER(_LinkMap)()
    handle = ctypes.c_void_p(library._handle)
    if ctypes.CDLL(None).dlinfo(handle, _RTLD_DI_LINKMAP, ctypes.byref(entry)) != 0:
        return None
    return Path(entry.contents.name.decode())


def _of_compiler(name: str, machine: str) -> Path | None:
    """Return the file that the C++ compiler for another architecture finds for a library's name;
    None if there is none."""
    compiler = shutil.which(f"{machine}-linux-gnu-g++")
    if compiler is None:
        return None
    command = [compiler, f"-print-file-name={name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = Path(done.stdout.strip())
    return found.resolve() if found.is_absolute() else None


class _LinkMap(ctypes.Structure):
    """The first fields of struct link_map in <link.h>: a library's address and path."""

    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))
