"""Artifacts on disk: a directory with a library, its weights and a manifest. No TVM, no needle.

lib.so               compiled functions and the VM's program
module.tvmscript     the Relax module the library was built from, to read
params.safetensors   weights under their `state_dict` names (absent in cache entries)
golden.safetensors   one example: inputs `input.N` and the eager model's outputs `output.N`
manifest.json        what the functions take and give, for which target, made by what, and the
                     SHA-256 and size of every other file, and a digest of the manifest itself
manifest.sig         optional: an Ed25519 signature of the manifest's bytes, hence of everything

The digests tell damage, the signature tells who wrote the artifact: only a key from elsewhere can
say that nobody has rewritten files and digests together.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from needle_tvm._tvm import versions
from needle_tvm.artifact import signature, trees
from needle_tvm.errors import ArtifactError, SignatureError, TargetError
from needle_tvm.process import atomic
from needle_tvm.process.paths import as_path
from needle_tvm.target import cublas, gpu, host
from needle_tvm.target.precision import FLOAT32, PRECISIONS

FORMAT = 2
LARGEST_MANIFEST = 64 << 20  # bytes; a parameter takes some 200
MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
LIBRARY = "lib.so"
SCRIPT = "module.tvmscript"
PARAMS = "params.safetensors"
GOLDEN = "golden.safetensors"

StrPath = str | os.PathLike[str]
_Result = TypeVar("_Result")

_SEALED = ("format", "files", "digest")  # what `write_manifest` adds
_RETRIES = 10  # how often an export may replace an artifact while it is being read


def sha256(path: Path, size: int | None = None) -> str:
    """Hex SHA-256 of a file's bytes; with `size`, of one byte more than that at most."""
    digest = hashlib.sha256()
    left = math.inf if size is None else size + 1
    with path.open("rb") as file:
        while chunk := file.read(int(min(left, 1 << 20))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def _manifest_digest(manifest: dict[str, Any]) -> str:
    # The order of keys counts: results that are a dict are put together in it.
    body = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()


def _manifest_bytes(manifest: dict[str, Any]) -> bytes:
    return (json.dumps(manifest, indent=2) + "\n").encode()


def write_manifest(folder: Path, manifest: dict[str, Any], sign: StrPath | None = None) -> None:
    """Seal a folder: hash every file in it and write the manifest that says so.

    With `sign`, the PEM file of an Ed25519 private key, the manifest's signature is written too.
    Raises KeyFileError and InstallError as `signature.sign` does.
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


def sign(path: StrPath, private_key: StrPath) -> None:
    """Sign the artifact at `path` with the Ed25519 private key in a PEM file.

    A signature it has is replaced. Raises ArtifactError when the artifact is damaged or cannot be
    written, KeyFileError and InstallError as `signature.sign` does.
    """
    folder = as_path(path, "path", ArtifactError)
    manifest = check_files(folder)
    with writing(folder) as new:
        for name in manifest["files"]:
            (new / name).write_bytes(read_file(folder, manifest, name))
        write_manifest(new, manifest, private_key)


def read_manifest(path: StrPath, require_signature: StrPath | None = None) -> dict[str, Any]:
    """The manifest of the artifact at `path`, checked as far as it goes without the other files.

    With `require_signature`, the PEM file of an Ed25519 public key, its signature is checked before
    anything else is read out of it. Raises ArtifactError when the manifest is absent or damaged,
    SignatureError when it is not signed by that key, KeyFileError and InstallError as
    `signature.is_signed_by` does.
    """
    folder = as_path(path, "path", ArtifactError)
    file = folder / MANIFEST
    try:
        size = _check_regular(file)
        _check_manifest_size(file, size)
        data = _read(file, size)
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
    # Byte for byte, so that not even a space that JSON allows can change unseen.
    if manifest["digest"] != _manifest_digest(manifest) or data != _manifest_bytes(manifest):
        raise ArtifactError(f"{file}: is damaged (its digest does not match)")
    try:
        _check_structure(manifest)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ArtifactError(f"{file}: is not an artifact's manifest ({error!r})") from None
    return manifest


def verify(
    path: StrPath, require_signature: StrPath | None = None, *, unread: Collection[str] = ()
) -> dict[str, Any]:
    """Check an artifact without loading any of its code, and return its manifest.

    `unread` are files that the caller reads next, by `read_file`, which hashes them: doing so here
    as well would double the time that large weights take.

    Raises ArtifactError when a file is missing, unexpected or differs from its recorded size or
    SHA-256, or was built by another TVM, TargetError when this machine has no processor or no GPU
    that runs the code, and with `require_signature` what `read_manifest` raises.
    """
    folder = as_path(path, "path", ArtifactError)
    manifest = check_files(folder, require_signature, unread)
    check_versions(folder, manifest)
    why_not = refusal(folder, manifest)
    if why_not is not None:
        raise TargetError(why_not)
    return manifest


def check_files(
    path: StrPath, require_signature: StrPath | None = None, unread: Collection[str] = ()
) -> dict[str, Any]:
    """As `verify`, for the files alone: whether this machine can run the code is not asked."""
    folder = as_path(path, "path", ArtifactError)
    manifest = read_manifest(folder, require_signature)
    files = manifest["files"]
    try:
        present = {entry.name for entry in folder.iterdir()} - {MANIFEST, SIGNATURE}
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be read ({error})") from None
    for name in sorted(set(files) ^ present):
        state = "is missing" if name in files else "does not belong to this artifact"
        raise ArtifactError(f"{folder / name}: {state}")
    for name, recorded in files.items():
        file = folder / name
        try:
            _check_size(file, recorded["size"])
            if name not in unread:
                _check_digest(file, sha256(file, recorded["size"]), recorded["sha256"])
        except OSError as error:
            raise ArtifactError(f"{file}: cannot be read ({error})") from None
    if LIBRARY not in files:
        raise ArtifactError(f"{folder}: has no {LIBRARY}")
    return manifest


def check_versions(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise ArtifactError when the artifact was built by another TVM than is installed here."""
    for name, mine in versions.pair().items():  # not the stamp, which hashes the sources
        wanted = manifest["versions"].get(name)
        if mine == versions.UNKNOWN:
            raise ArtifactError(
                f"{folder}: was built with {name} {wanted}; here it is missing, or does not tell "
                f"its version: {versions.INSTALL_HINT}"
            )
        if wanted != mine:
            raise ArtifactError(f"{folder}: was built with {name} {wanted}, here is {mine}")


def refusal(folder: Path, manifest: Mapping[str, Any]) -> str | None:
    """Why this machine cannot run an artifact's code, in one line; None where it can."""
    target = manifest["target"]
    if target.get("kind") == "cuda":
        found = gpu.gpus()
        if any(gpu.runs(target["arch"], each) for each in found):
            lacks = cublas.LIBRARY in manifest.get("libraries", ()) and cublas.find() is None
            return f"{folder}: {cublas.MISSING}" if lacks else None
        here = ", ".join(f"{each.name} ({each.arch})" for each in found)
        why = f"this machine has {here}" if here else gpu.why_none()
        return f"{folder}: is compiled for a CUDA GPU ({target['arch']}); {why}"
    lacking = missing_features(manifest)
    if not lacking:
        return None
    return (
        f"{folder}: is compiled for {target.get('mcpu', 'another processor')}; "
        f"this one lacks {', '.join(lacking)}"
    )


def missing_features(manifest: Mapping[str, Any]) -> list[str]:
    """The processor features the code was compiled for that this machine lacks."""
    return host.missing_features(manifest["target"].get("features", []))


def read_file(folder: Path, manifest: Mapping[str, Any], name: str) -> bytes:
    """A file of an artifact: the very bytes whose hash the manifest records.

    Checked also where `verify` has done so, because the file may have changed since. Raises
    ArtifactError when it is not what was recorded, or cannot be read.
    """
    file, recorded = folder / name, manifest["files"][name]
    try:
        _check_size(file, recorded["size"])
        data = _read(file, recorded["size"])
    except OSError as error:
        raise ArtifactError(f"{file}: cannot be read ({error})") from None
    _check_digest(file, hashlib.sha256(data).hexdigest(), recorded["sha256"])
    return data


def _read(file: Path, size: int) -> bytes:
    """A file's bytes, of which there are `size`; one more at most, whatever has become of it."""
    # Nothing is waited for, should it be a pipe by now.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as opened:
        return opened.read(size + 1) or b""


def _check_size(file: Path, recorded: int) -> None:
    size = _check_regular(file)
    if size != recorded:
        raise ArtifactError(f"{file}: is damaged ({size} bytes long, not {recorded})")


def _check_manifest_size(file: Path, size: int) -> None:
    # Before it is read: only then can its signature be checked.
    if size > LARGEST_MANIFEST:
        raise ArtifactError(
            f"{file}: is too long for a manifest ({size} bytes, at most {LARGEST_MANIFEST})"
        )


def _check_digest(file: Path, found: str, recorded: str) -> None:
    if found != recorded:
        raise ArtifactError(f"{file}: is damaged (SHA-256 {found}, not {recorded})")


def undisturbed(path: StrPath, read: Callable[[], _Result]) -> _Result:
    """`read()`, again where the artifact at `path` was replaced while it was being read.

    An export puts a whole new folder in the old one's place; a reader that had opened one file of
    each would take that for damage.
    """
    for _ in range(_RETRIES):
        before = _identity(path)
        try:
            return read()
        except ArtifactError:
            if _identity(path) == before:
                raise
    return read()


def _identity(path: StrPath) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _check_regular(file: Path) -> int:
    """A file's size in bytes; OSError where it is none: reading a pipe would never end."""
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError("not a regular file")
    return found.st_size


def _check_signature(folder: Path, data: bytes, public_key: StrPath | None) -> None:
    file = folder / SIGNATURE
    try:
        right = _check_regular(file) == signature.LENGTH
        signed = _read(file, signature.LENGTH) if right else None
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
    """Raises ValueError, or whatever a missing or misshapen part leads to."""
    for name, recorded in manifest["files"].items():
        int(recorded["sha256"], 16)
        _expect(name.isprintable() and "/" not in name, "name of a file")
        _expect(isinstance(recorded["size"], int) and recorded["size"] >= 0, f"size of {name}")
    features = manifest["target"].get("features", [])
    cores = manifest["target"].get("num-cores")
    _expect(all(isinstance(feature, str) for feature in features), "features")
    _expect(cores is None or (isinstance(cores, int) and cores > 0), "num-cores")
    if manifest["target"].get("kind") == "cuda":
        _expect(bool(gpu.ARCHITECTURE.fullmatch(manifest["target"]["arch"])), "arch")
    _expect(set(manifest.get("libraries", ())) <= {cublas.LIBRARY}, "libraries")
    _expect(isinstance(manifest["versions"], dict), "versions")
    _expect(manifest.get("precision", FLOAT32) in PRECISIONS, "precision")
    _expect(isinstance(manifest.get("checked", False), bool), "checked")
    main = manifest["functions"]["main"]
    for kind in ("inputs", "params", "outputs"):
        for spec in main[kind]:
            _expect(all(isinstance(extent, int) and extent >= 0 for extent in spec["shape"]), kind)
            _expect(isinstance(spec["dtype"], str), kind)
            _expect(kind == "outputs" or isinstance(spec["name"], str), kind)
            low, high = spec.get("range", (0, 0))
            _expect(isinstance(low, int) and isinstance(high, int), "range")
    for group in main.get("ties", ()):
        _expect(all(isinstance(name, str) for name in group), "ties")
    for name in ("transform", "by_kernel"):
        _expect(main.get(name) is None or isinstance(main[name], str), name)
    graph = main.get("graph")
    _expect(graph is None or set(map(type, graph.values())) == {str}, "graph")
    _expect(graph is None or set(graph) == {"function", "results"}, "graph")
    _expect(isinstance(main["bare_output"], bool), "bare_output")
    count = sum(trees.leaves(argument["tree"]) for argument in main["arguments"])
    _expect(count == len(main["inputs"]), "arguments")
    _expect(trees.leaves(main["output_tree"]) == len(main["outputs"]), "output_tree")
    golden = manifest.get("golden")
    if golden is not None:
        _expect(len(golden["tolerances"]) == len(main["outputs"]), "golden tolerances")
        _expect(all(0 <= float(each) < math.inf for each in golden["tolerances"]), "golden")


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


@contextlib.contextmanager
def writing(path: StrPath, *, private: bool = False) -> Iterator[Path]:
    """A new folder to fill that becomes `path` when the block ends, whole or not at all.

    It is a temporary sibling, synced to disk and then renamed; see `process.atomic`. An artifact
    that is already at `path` is replaced in one step; anything else there is left alone. With
    `private` all of it is for its owner alone. Raises ArtifactError when the folder cannot be
    written; nothing half-written stays behind.
    """
    target = as_path(path, "path", ArtifactError).absolute()
    try:
        if target.is_symlink():  # the link stays, what it leads to is replaced
            target = target.resolve()
        if target.exists() and not (target / MANIFEST).is_file():
            occupied = not target.is_dir() or any(target.iterdir())
            if occupied:
                raise ArtifactError(f"{target}: exists and is not an artifact; it was not touched")
        with atomic.writing(target, private=private) as folder:
            yield folder
            for file in folder.iterdir():
                # safetensors makes files for their owner's eyes only.
                shutil.copymode(folder / MANIFEST, file)
    except OSError as error:
        raise ArtifactError(f"{target}: cannot be written ({error})") from error
