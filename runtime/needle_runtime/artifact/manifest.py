"""Seal a folder with an artifact's manifest, and read and check the manifest."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

from needle_runtime.artifact import function, signature
from needle_runtime.artifact.files import read_at_most, regular_size, sha256
from needle_runtime.artifact.function import expect
from needle_runtime.artifact.layout import MANIFEST, SIGNATURE
from needle_runtime.errors import ArtifactError, SignatureError
from needle_runtime.process.paths import StrPath, as_path
from needle_runtime.target.kind import ARCHITECTURE, CUBLAS, is_gpu
from needle_runtime.target.precision import FLOAT32, PRECISIONS

FORMAT = 2
LARGEST_MANIFEST = 64 << 20  # bytes; a parameter takes about 200


_SEALED = ("format", "files", "digest")  # entries that `write_manifest` adds


def _manifest_digest(manifest: dict[str, Any]) -> str:
    # Keys are not sorted, because their order decides the order of a result that is a dict.
    body = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()


def _manifest_bytes(manifest: dict[str, Any]) -> bytes:
    return (json.dumps(manifest, indent=2) + "\n").encode()


def write_manifest(folder: Path, manifest: dict[str, Any], sign: StrPath | None = None) -> None:
    """Seal a folder: hash every file in it and write the manifest that records the hashes.

    With `sign`, the PEM file of an Ed25519 private key, also write the manifest's signature. Raises
    the errors of `signature.sign`.
    """
    body = {name: value for name, value in manifest.items() if name not in _SEALED}
    sealed = {**body, "format": FORMAT, "files": {}}
    for path in sorted(folder.iterdir()):
        if path.name not in (MANIFEST, SIGNATURE):
            sealed["files"][path.name] = {"sha256": sha256(path), "size": path.stat().st_size}
    sealed["digest"] = _manifest_digest(sealed)
    data = _manifest_bytes(sealed)
    _check_manifest_size(folder / MANIFEST, len(data))
    (folder / MANIFEST).write_bytes(data)
    (folder / SIGNATURE).unlink(missing_ok=True)
    if sign is not None:
        (folder / SIGNATURE).write_bytes(signature.sign(data, sign))


def read_manifest(path: StrPath, require_signature: StrPath | None = None) -> dict[str, Any]:
    """Return the manifest of the artifact at `path`, checked without reading the other files.

    With `require_signature`, the PEM file of an Ed25519 public key, the signature is checked before
    the content is used. Raises ArtifactError if the manifest is missing or damaged, SignatureError
    if it is not signed by that key, and the errors of `signature.is_signed_by`.
    """
    folder = as_path(path, "path", ArtifactError)
    file = folder / MANIFEST
    try:
        size = regular_size(file)
        _check_manifest_size(file, size)
        data = read_at_most(file, size)
    except (FileNotFoundError, NotADirectoryError):
        raise ArtifactError(f"{path}: no artifact there ({MANIFEST} is missing)") from None
    except OSError as error:
        raise ArtifactError(f"{file}: cannot be read ({error})") from None
    _check_signature(folder, data, require_signature)
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{file}: cannot be read ({error})") from None
    if not isinstance(manifest, dict) or not {"format", "digest"} <= set(manifest):
        raise ArtifactError(f"{file}: is not an artifact's manifest")
    if manifest["format"] != FORMAT:
        raise ArtifactError(
            f"{file}: has format {manifest['format']!r}, this version reads {FORMAT}"
        )
    # The file is compared byte for byte, so that even a changed space is detected.
    if manifest["digest"] != _manifest_digest(manifest) or data != _manifest_bytes(manifest):
        raise ArtifactError(f"{file}: is damaged (its digest does not match)")
    try:
        _check_structure(manifest)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ArtifactError(f"{file}: is not an artifact's manifest ({error!r})") from None
    return manifest


def needed_runtime(manifest: dict[str, Any]) -> str:
    """Return the first version of needle-runtime that can run an artifact, such as "0.1"."""
    # Artifacts of version 0.1.0 have no such entry.
    return str(manifest.get("requires", {}).get("needle_runtime", "0.1"))


def minor_version(version: str) -> tuple[int, int]:
    """Return the major and minor number of a version. Raises ValueError for other text."""
    major, minor, *_ = (*version.split("."), "")
    return int(major), int(minor)


def _check_manifest_size(file: Path, size: int) -> None:
    # The size is checked before the file is read, because the signature can only be checked
    # afterwards.
    if size > LARGEST_MANIFEST:
        raise ArtifactError(
            f"{file}: is too long for a manifest ({size} bytes, at most {LARGEST_MANIFEST})"
        )


def _check_signature(folder: Path, data: bytes, public_key: StrPath | None) -> None:
    file = folder / SIGNATURE
    try:
        right = regular_size(file) == signature.LENGTH
        signed = read_at_most(file, signature.LENGTH) if right else None
    except FileNotFoundError:
        if public_key is None:
            return
        raise SignatureError(f"{folder}: is not signed ({SIGNATURE} is missing)") from None
    except OSError as error:
        raise ArtifactError(f"{file}: cannot be read ({error})") from None
    if signed is None:
        raise SignatureError(f"{file}: is damaged (a signature has {signature.LENGTH} bytes)")
    if public_key is not None and not signature.is_signed_by(data, signed, public_key):
        raise SignatureError(
            f"{folder}: {MANIFEST} is not what the owner of {os.fspath(public_key)} signed"
        )


def _check_structure(manifest: dict[str, Any]) -> None:
    """Raise ValueError, or the error of reading a part, if a part of the manifest is missing or
    malformed."""
    for name, recorded in manifest["files"].items():
        int(recorded["sha256"], 16)
        expect(name.isprintable() and "/" not in name, "name of a file")
        expect(isinstance(recorded["size"], int) and recorded["size"] >= 0, f"size of {name}")
    features = manifest["target"].get("features", [])
    cores = manifest["target"].get("num-cores")
    expect(all(isinstance(feature, str) for feature in features), "features")
    expect(cores is None or (isinstance(cores, int) and cores > 0), "num-cores")
    if is_gpu(manifest["target"]):
        expect(bool(ARCHITECTURE.fullmatch(manifest["target"]["arch"])), "arch")
    expect(set(manifest.get("libraries", ())) <= {CUBLAS}, "libraries")
    expect(isinstance(manifest["versions"], dict), "versions")
    minor_version(needed_runtime(manifest))
    expect(manifest.get("precision", FLOAT32) in PRECISIONS, "precision")
    expect(isinstance(manifest.get("checked", False), bool), "checked")
    main = function.parse(manifest["functions"]["main"])
    golden = manifest.get("golden")
    if golden is not None:
        expect(isinstance(golden["source"], str), "golden source")
        for tolerances in (golden["tolerances"], *golden.get("others", ())):
            expect(len(tolerances) == len(main.outputs), "golden tolerances")
            expect(all(0 <= float(each) < math.inf for each in tolerances), "golden")
