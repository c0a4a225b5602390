"""Artifacts on disk: a directory with a library, its weights and a manifest. No TVM, no needle.

lib.so               compiled functions and the VM's program
module.tvmscript     the Relax module the library was built from, to read
params.safetensors   weights under their `state_dict` names (absent in cache entries)
golden.safetensors   one example: inputs `input.N` and the outputs `output.N` they gave
manifest.json        what the functions take and give, for which target, made by what, and the
                     SHA-256 of every other file and of the manifest itself
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from needle_tvm import host, versions
from needle_tvm.errors import ArtifactError, TargetError

FORMAT = 1
MANIFEST = "manifest.json"
LIBRARY = "lib.so"
SCRIPT = "module.tvmscript"
PARAMS = "params.safetensors"
GOLDEN = "golden.safetensors"

_REQUIRED = {"format", "functions", "target", "versions", "files", "digest"}


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _manifest_digest(manifest: dict[str, Any]) -> str:
    # The order of keys counts: results that are a dict are put together in it.
    body = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Seal a folder: hash every file in it and write the manifest that says so."""
    files = {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    sealed = {**manifest, "format": FORMAT, "files": files}
    sealed["digest"] = _manifest_digest(sealed)
    (folder / MANIFEST).write_text(json.dumps(sealed, indent=1) + "\n")


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of the artifact at `path`; ArtifactError when it is absent or damaged."""
    file = Path(path) / MANIFEST
    try:
        manifest = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ArtifactError(f"{path}: no artifact there ({MANIFEST} is missing)") from None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{file}: cannot be read ({error})") from None
    if not isinstance(manifest, dict) or not set(manifest) >= _REQUIRED:
        raise ArtifactError(f"{file}: is not an artifact's manifest")
    if manifest["format"] != FORMAT:
        raise ArtifactError(
            f"{file}: has format {manifest['format']!r}, this version reads {FORMAT}"
        )
    if manifest["digest"] != _manifest_digest(manifest):
        raise ArtifactError(f"{file}: is damaged (its digest does not match)")
    return manifest


def verify(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Check an artifact without loading any of its code, and return its manifest.

    Raises ArtifactError when a file is missing, unexpected or differs from its recorded SHA-256,
    or was built by another TVM, and TargetError when this machine's processor lacks a feature
    the code was compiled for.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    try:
        present = {entry.name for entry in folder.iterdir()} - {MANIFEST}
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be read ({error})") from None
    for name in sorted(set(manifest["files"]) ^ present):
        state = "is missing" if name in manifest["files"] else "does not belong to this artifact"
        raise ArtifactError(f"{folder / name}: {state}")
    for name, digest in manifest["files"].items():
        try:
            found = sha256(folder / name)
        except OSError as error:
            raise ArtifactError(f"{folder / name}: cannot be read ({error})") from None
        if found != digest:
            raise ArtifactError(f"{folder / name}: is damaged (SHA-256 {found}, not {digest})")
    if LIBRARY not in manifest["files"]:
        raise ArtifactError(f"{folder}: has no {LIBRARY}")
    for name in ("tvm", "tvm_ffi"):
        mine = versions.stamp()[name]
        if manifest["versions"].get(name) != mine:
            raise ArtifactError(
                f"{folder}: was built with {name} {manifest['versions'].get(name)}, here is {mine}"
            )
    lacking = host.missing_features(manifest["target"].get("features", []))
    if lacking:
        raise TargetError(
            f"{folder}: is compiled for {manifest['target'].get('mcpu', 'another processor')}; "
            f"this one lacks {', '.join(lacking)}"
        )
    return manifest


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new folder to fill that becomes `path` when the block ends, whole or not at all.

    It is a temporary sibling, synced to disk and then renamed. An artifact that is already at
    `path` is replaced; anything else there is left alone. Raises ArtifactError when the folder
    cannot be written; nothing half-written stays behind, whatever happens.
    """
    target = Path(path).absolute()
    if target.exists() and not (target / MANIFEST).is_file():
        occupied = not target.is_dir() or any(target.iterdir())
        if occupied:
            raise ArtifactError(f"{target}: exists and is not an artifact; it was not touched")
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name[:32]}.", dir=target.parent))
        temporary.chmod(0o755)
        yield temporary
        for file in temporary.iterdir():
            _sync(file)
        _sync(temporary)
        _replace(temporary, target)
        _sync(target.parent)
    except OSError as error:
        raise ArtifactError(f"{target}: cannot be written ({error})") from error
    finally:
        if temporary is not None and temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)


def _replace(new: Path, target: Path) -> None:
    """Rename `new` to `target`. A directory cannot be renamed over a full one, so an artifact
    that is there is first moved aside, and moved back if the second rename fails."""
    if not target.exists():
        new.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name[:32]}.old.", dir=target.parent))
    try:
        target.rename(aside / "old")
        try:
            new.rename(target)
        except OSError:
            (aside / "old").rename(target)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
