"""Write a bundle: an artifact, the C and C++ interface, and every library but libc."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from needle_runtime._tvm.versions import UNKNOWN, installed
from needle_runtime.artifact import Artifact
from needle_runtime.artifact.layout import LIBRARY, MANIFEST, SIGNATURE
from needle_runtime.artifact.replacing import replaceable, undisturbed
from needle_runtime.bundle import elf
from needle_runtime.bundle.libraries import RUNTIME, SODIUM, TVM, Libraries
from needle_runtime.bundle.licences import write_licences
from needle_runtime.errors import ArtifactError, TargetError, UsageError
from needle_runtime.process import atomic
from needle_runtime.process.paths import StrPath, as_path

MARK = "bundle.json"  # a file that only bundles have
FORMAT = 1


@dataclass(frozen=True)
class Bundle:
    """The contents of a bundle: its files with their sizes, the oldest glibc with which each
    library runs, whether the model is signed, and whether there is libsodium, which checks
    signatures."""

    path: Path
    machine: str
    files: dict[str, int]
    glibc: dict[str, elf.Version]
    signed: bool
    sodium: bool

    @property
    def least_glibc(self) -> tuple[str, elf.Version]:
        """The library that needs the newest glibc, and that version."""
        return max(self.glibc.items(), key=lambda pair: pair[1])


def bundle(
    path: StrPath,
    out: StrPath,
    *,
    runtime: StrPath | None = None,
    require_signature: StrPath | None = None,
) -> Bundle:
    """Write the artifact at `path`, the C and C++ interface and every library that they need,
    except libc, to the folder `out`. The artifact's bytes are checked and then copied unchanged.

    `runtime` is a folder with the libraries; the default is this installation, which has libraries
    for this machine's architecture. An existing bundle at `out` is replaced as a whole or not at
    all.

    Raises the errors of `Artifact.open`, ArtifactError if something other than a bundle is at `out`
    or it cannot be written, and TargetError if the code is for a GPU, or if a library is missing or
    does not fit.
    """
    artifact = undisturbed(path, lambda: Artifact.open(path, require_signature))
    if artifact.for_gpu:
        raise TargetError(
            f"{artifact.path}: is compiled for a GPU; the C interface, which a bundle is for, runs "
            "code for CPUs"
        )
    needs = _needs_of_code(artifact)
    folder = None if runtime is None else as_path(runtime, "runtime", UsageError)
    try:
        libraries = Libraries(needs.machine, folder)
    except TargetError as error:
        raise TargetError(f"{artifact.path}: is compiled for {needs.machine}; {error}") from None
    if folder is None:
        artifact.check_versions()
    signed = (artifact.path / SIGNATURE).exists()
    sodium = [name for name in SODIUM if signed and libraries.look(name) is not None][:1]
    roots = elf.Elf(needs.machine, (RUNTIME, TVM, *sodium), {}, frozenset())
    files = libraries.needed([("the bundle", roots), (f"model/{LIBRARY}", needs)])

    target = replaceable(as_path(out, "out", ArtifactError), MARK, "a bundle")
    if target.resolve().is_relative_to(artifact.path.resolve()):
        raise UsageError(f"{target}: a bundle cannot be in the folder of its artifact")
    try:
        with atomic.writing(target) as new:
            _copy_model(artifact, new / "model", require_signature)
            _copy_interface(libraries.prefix, new)
            for name, file in files.items():
                shutil.copyfile(file, new / "lib" / name)
                (new / "lib" / name).chmod(0o755)
            write_licences(new / "licenses", files)
            names = [each.relative_to(new).as_posix() for each in _files(new)]
            glibc = {f"lib/{name}": libraries.read(new / "lib" / name).glibc for name in files}
            glibc[f"model/{LIBRARY}"] = needs.glibc
            sizes = {name: (new / name).stat().st_size for name in names}
            result = Bundle(target, needs.machine, sizes, glibc, signed, bool(sodium))
            _write_mark(new, result)
    except OSError as error:
        raise ArtifactError(f"{target}: cannot be written ({error})") from error
    return result


def _needs_of_code(artifact: Artifact) -> elf.Elf:
    try:
        return elf.read(artifact.read(LIBRARY))
    except ValueError as error:
        raise ArtifactError(f"{artifact.path / LIBRARY}: cannot be read ({error})") from None


def _copy_model(artifact: Artifact, folder: Path, require_signature: StrPath | None) -> None:
    """Copy an artifact and check the copy."""
    folder.mkdir()
    for name in artifact.manifest["files"]:
        (folder / name).write_bytes(artifact.read(name))
    for name in (MANIFEST, SIGNATURE):
        if (artifact.path / name).exists():
            (folder / name).write_bytes((artifact.path / name).read_bytes())
    copied = Artifact.open(folder, require_signature)
    if copied.manifest["digest"] != artifact.manifest["digest"]:
        raise ArtifactError(f"{artifact.path}: was replaced while it was being copied")


def _copy_interface(source: Path, new: Path) -> None:
    """Copy the headers and the files for CMake and pkg-config."""
    for name in ("include", "lib/cmake", "lib/pkgconfig"):
        if not (source / name).is_dir():
            raise TargetError(f"{source}: has no {name}; it is not an installed needle_runtime")
        shutil.copytree(source / name, new / name, copy_function=shutil.copyfile)


def _write_mark(new: Path, made: Bundle) -> None:
    facts = {
        "format": FORMAT,
        "machine": made.machine,
        "glibc": text_of(made.least_glibc[1]),
        "needle_runtime": installed("needle-runtime") or UNKNOWN,
        "files": {
            name: {
                "sha256": hashlib.sha256((new / name).read_bytes()).hexdigest(),
                "size": size,
                **({"glibc": text_of(made.glibc[name])} if name in made.glibc else {}),
            }
            for name, size in made.files.items()
        },
    }
    (new / MARK).write_text(json.dumps(facts, indent=2) + "\n")


def text_of(version: elf.Version) -> str:
    """Return a version as text, such as "2.34"."""
    return ".".join(map(str, version))


def _files(folder: Path) -> Iterator[Path]:
    return (each for each in sorted(folder.rglob("*")) if each.is_file())
