"""Writes a table of the licences of a bundle's libraries, and the licences' texts."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from needle_runtime._tvm.versions import own_library_folders


@dataclass(frozen=True)
class _Project:
    """A project whose libraries a bundle may contain; `libraries` has prefixes of their names.
    `texts` has the names of the licence's files in the installed Python package `distribution`, or
    patterns below /usr/share if `distribution` is None."""

    libraries: tuple[str, ...]
    licence: str
    sources: str
    distribution: str | None
    texts: tuple[str, ...]


_SHARE = Path("/usr/share")
_PROJECTS = {
    "needle-runtime": _Project(
        ("libneedle_",), "Apache-2.0", "the repository of needle", "needle-runtime", ("LICENSE",)
    ),
    "apache-tvm": _Project(
        ("libtvm_runtime",), "Apache-2.0", "https://github.com/apache/tvm", None, ()
    ),
    "apache-tvm-ffi": _Project(
        ("libtvm_ffi",),
        "Apache-2.0",
        "https://github.com/apache/tvm-ffi",
        "apache-tvm-ffi",
        ("LICENSE", "NOTICE"),
    ),
    "gcc": _Project(
        ("libstdc++", "libgcc_s", "libatomic", "libgomp"),
        "GPL-3.0-or-later WITH GCC-exception-3.1",
        "https://gcc.gnu.org, or the distribution that the libraries were copied from",
        None,
        (
            "doc/libstdc++6/copyright",
            "doc/libstdc++6-*-cross/copyright",
            "common-licenses/GPL-3",
            "licenses/libgcc/COPYING*",
        ),
    ),
    "libsodium": _Project(
        ("libsodium",),
        "ISC",
        "https://github.com/jedisct1/libsodium",
        None,
        ("doc/libsodium*/copyright", "licenses/libsodium/LICENSE*"),
    ),
}


def write_licences(folder: Path, libraries: dict[str, Path]) -> None:
    """Write a table of the libraries' licences, and those licence texts that this machine has."""
    folder.mkdir()
    rows = []
    for name, file in sorted(libraries.items()):
        known = [key for key, each in _PROJECTS.items() if name.startswith(each.libraries)]
        if not known:
            rows.append(f"{name}: copied from {file}; its licence is unknown here")
            continue
        project = _PROJECTS[known[0]]
        rows.append(f"{name}: {known[0]}, {project.licence}; sources: {project.sources}")
        for text in _texts(known[0], project):
            place = folder / known[0] / text.name
            place.parent.mkdir(exist_ok=True)
            shutil.copyfile(text, place)
    (folder / "README.txt").write_text("\n".join(rows) + "\n")


def _texts(name: str, project: _Project) -> list[Path]:
    if name == "apache-tvm":
        return [text for folder in own_library_folders() for text in (folder / "tvm").glob("*")]
    if project.distribution is None:
        return [each for pattern in project.texts for each in sorted(_SHARE.glob(pattern))]
    try:
        files = metadata.distribution(project.distribution).files or []
    except metadata.PackageNotFoundError:
        return []
    found = [Path(str(each.locate())) for each in files if each.name in project.texts]
    return [each for each in found if "licenses" in each.parts and each.is_file()]
