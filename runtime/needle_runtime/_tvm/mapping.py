"""Makes private copies of a library's bytes, and gives them names that the loader can open.

If the loader has already loaded a library under a name, it returns that library even if another
file has the name now. So no name is used twice. A copy in memory needs no disk and leaves nothing
behind if the process is killed. Files on disk are for systems without memfd or /proc.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from needle_runtime.errors import ArtifactError

_Result = TypeVar("_Result")

_FOLDERS = ("/dev/shm", "/var/tmp", "/tmp")  # tried after the folder for temporary files


def with_copy(code: bytes, load: Callable[[str], _Result]) -> _Result:
    """Return `load(name)`, where `name` is a file with the bytes `code` that exists only during the
    call.

    Raises ArtifactError if code cannot be loaded from any place; its message lists all places.
    """
    refused = []
    for copy, where in _places():
        name = ""
        try:
            with copy(code) as name:
                return load(name)
        except OSError as error:
            refused.append(f"{where} ({error.strerror or error})")
        except RuntimeError as error:  # raised by the loader, which repeats the name
            reason = str(error).strip().splitlines()[0]
            refused.append(f"{where} ({reason.rpartition(f'{name}: ')[2]})")
    raise ArtifactError(
        f"compiled code cannot be loaded here: not from {', nor from '.join(refused)}; set TMPDIR "
        "to a folder that can be written to and is not mounted noexec"
    )


_Copy = Callable[[bytes], AbstractContextManager[str]]


def _places() -> Iterator[tuple[_Copy, str]]:
    """Yield functions that make a copy, the best first, each with the place's name for an error."""
    yield _in_memory, "memory"
    import tempfile  # rarely needed, and slow to import

    folders = []
    with suppress(OSError):  # no folder for temporary files is writable
        folders.append(tempfile.gettempdir())
    for folder in dict.fromkeys([*folders, *_FOLDERS]):
        yield _in_folder(folder), folder


@contextmanager
def _in_memory(code: bytes) -> Iterator[str]:
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no files in memory")
    descriptor = os.memfd_create("needle-load")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(code)
        # Descriptor numbers are reused, but names must not be. Each part of `unique` is one of
        # two ways to write a slash.
        number = int.from_bytes(os.urandom(8), "big")
        unique = "".join("/./" if bit == "1" else "//" for bit in f"{number:064b}")
        name = f"/proc/self{unique}fd/{descriptor}"
        if not os.path.exists(name):
            raise OSError("/proc is missing")
        yield name
    finally:
        os.close(descriptor)


def _in_folder(folder: str) -> _Copy:
    @contextmanager
    def copy(code: bytes) -> Iterator[str]:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="needle-load-", dir=folder) as private:
            path = Path(private) / f"{Path(private).name}.so"
            path.write_bytes(code)
            yield str(path)

    return copy
