"""A compiled model on disk, verified but not loaded. This module needs neither TVM nor needle.

    from needle_runtime.artifact import Artifact
    artifact = Artifact.open("out/mlp")
    print(artifact.main.inputs, artifact.obstacle)

`runtime.Program` runs an artifact.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from needle_runtime._tvm import versions
from needle_runtime.artifact import files, replacing
from needle_runtime.artifact.function import Function, parse
from needle_runtime.artifact.layout import GOLDEN, LIBRARY, MANIFEST, SIGNATURE
from needle_runtime.artifact.manifest import (
    minor_version,
    needed_runtime,
    read_manifest,
    write_manifest,
)
from needle_runtime.artifact.summary import summary
from needle_runtime.errors import ArtifactError, TargetError
from needle_runtime.process.paths import StrPath, as_path
from needle_runtime.target import host
from needle_runtime.target.kind import CUBLAS, is_gpu
from needle_runtime.target.precision import FLOAT32

if TYPE_CHECKING:
    from needle_runtime.artifact import golden

# Modules that only some artifacts need are imported where they are used: imports take a third of
# the time until a small model's first answer.


@dataclass(frozen=True, eq=False)
class Artifact:
    """An artifact whose manifest has been verified; its files are checked whenever they are read.

    `main` is the signature of the model. No code is loaded. If this machine cannot run the code,
    `obstacle` is the reason.
    """

    path: Path
    manifest: dict[str, Any]
    main: Function

    @classmethod
    def open(
        cls,
        path: StrPath,
        require_signature: StrPath | None = None,
        *,
        unread: Collection[str] = (),
    ) -> Artifact:
        """Return the artifact at `path`, with every file checked.

        With `require_signature`, the PEM file of an Ed25519 public key, the artifact must be signed
        with that key. `unread` names files whose hashes are not checked here, because the caller
        reads them next, and reading checks the hashes. This halves the time for large weights.

        Raises ArtifactError if a file is missing, unexpected or differs from its recorded size or
        SHA-256, and the errors of `read_manifest`.
        """
        artifact = cls.from_manifest(path, require_signature)
        recorded = artifact.manifest["files"]
        try:
            present = {entry.name for entry in artifact.path.iterdir()} - {MANIFEST, SIGNATURE}
        except OSError as error:
            raise ArtifactError(f"{artifact.path}: cannot be read ({error})") from None
        for name in sorted(set(recorded) ^ present):
            state = "is missing" if name in recorded else "does not belong to this artifact"
            raise ArtifactError(f"{artifact.path / name}: {state}")
        for name in recorded:
            files.check_file(artifact.path, artifact.manifest, name, digest=name not in unread)
        if LIBRARY not in recorded:
            raise ArtifactError(f"{artifact.path}: has no {LIBRARY}")
        return artifact

    @classmethod
    def from_manifest(cls, path: StrPath, require_signature: StrPath | None = None) -> Artifact:
        """Return the artifact at `path`; only its manifest is checked (`read_manifest`)."""
        folder = as_path(path, "path", ArtifactError)
        manifest = read_manifest(folder, require_signature)
        return cls(folder, manifest, parse(manifest["functions"]["main"]))

    def __repr__(self) -> str:
        return summary(type(self).__name__, self.manifest, self.main, path=str(self.path))

    @property
    def target(self) -> Mapping[str, Any]:
        """The code's target: "kind" and, for a GPU, "arch"; for a CPU, "mcpu" and "features"."""
        target: dict[str, Any] = self.manifest["target"]
        return target

    @property
    def for_gpu(self) -> bool:
        """Whether the code runs on a GPU."""
        return is_gpu(self.target)

    @property
    def precision(self) -> str:
        """The precision of matmul operands (`target.precision`)."""
        return str(self.manifest.get("precision", FLOAT32))

    @property
    def checked(self) -> bool:
        """Whether the code's results were compared with the model's when the artifact was built."""
        return bool(self.manifest.get("checked", False))

    def read(self, name: str) -> bytes:
        """Return a file's bytes. Raises ArtifactError unless they match the manifest."""
        return files.read_file(self.path, self.manifest, name)

    def read_arrays(self, name: str) -> dict[str, np.ndarray[Any, Any]] | None:
        """Return a safetensors file's arrays, read-only, or None if there is no such file.

        Raises ArtifactError as `read` does, and if the file is malformed.
        """
        return files.read_arrays(self.path, self.manifest, name)

    def golden(self) -> golden.Golden | None:
        """Return the golden example, or None if the artifact has none.

        Raises ArtifactError as `read_arrays` does, and if the example does not fit the signature.
        """
        from needle_runtime.artifact import golden

        arrays, facts = self.read_arrays(GOLDEN), self.manifest.get("golden")
        if arrays is None or facts is None:
            return None
        try:
            return golden.of_arrays(arrays, facts, len(self.main.inputs), len(self.main.outputs))
        except ValueError as error:
            raise ArtifactError(f"{self.path / GOLDEN}: {error}") from None

    @property
    def missing_features(self) -> list[str] | None:
        """The processor features that the code needs and this machine lacks; None if this machine's
        features cannot be determined."""
        required = self.target.get("features", [])
        return host.missing_features(required) if required else []

    @property
    def obstacle(self) -> str | None:
        """The reason why this machine cannot run the code, in one line; None if it can.

        TVM's version is checked separately, by `check_versions`.
        """
        if self.for_gpu:
            from needle_runtime.target import cublas, gpu

            found = gpu.gpus()
            if any(gpu.runs(self.target["arch"], each) for each in found):
                needs_cublas = CUBLAS in self.manifest.get("libraries", ())
                lacks = needs_cublas and cublas.find() is None
                return f"{self.path}: {cublas.MISSING}" if lacks else None
            here = ", ".join(f"{each.name} ({each.arch})" for each in found)
            why = f"this machine has {here}" if here else gpu.why_none()
            return f"{self.path}: is compiled for a CUDA GPU ({self.target['arch']}); {why}"
        machine = str(self.target.get("mtriple", platform.machine())).partition("-")[0]
        if machine != platform.machine():
            return (
                f"{self.path}: is compiled for {machine} ({self.target.get('mcpu')}); this machine "
                f"is {platform.machine()}"
            )
        lacking = self.missing_features
        if not lacking:
            return None
        return (
            f"{self.path}: is compiled for {self.target.get('mcpu', 'another processor')}; "
            f"this one lacks {', '.join(lacking)}"
        )

    def check_versions(self) -> None:
        """Raise ArtifactError unless this version of needle-runtime, and the TVM that it uses, can
        run the code (docs/compatibility.md)."""
        here, needed = versions.installed("needle-runtime"), needed_runtime(self.manifest)
        if here is not None and minor_version(here) < minor_version(needed):
            raise ArtifactError(
                f"{self.path}: needs needle-runtime {needed} or later, but {here} is installed: "
                "pip install --upgrade needle-runtime"
            )
        mine, recorded = versions.pair(), self.manifest["versions"]
        if versions.runs((recorded.get("tvm"), recorded.get("tvm_ffi"))):
            return
        for name, version in mine.items():
            wanted = recorded.get(name)
            if version == versions.UNKNOWN:
                raise ArtifactError(
                    f"{self.path}: was built with {name} {wanted}, which is not installed here or "
                    f"does not report its version: {versions.FFI_HINT}"
                )
            if wanted != version:
                raise ArtifactError(
                    f"{self.path}: was built with {name} {wanted}, but {version} is in use here"
                )

    def check_runs_here(self) -> None:
        """Raise ArtifactError as `check_versions` does, and TargetError if there is an
        `obstacle`."""
        self.check_versions()
        obstacle = self.obstacle
        if obstacle is not None:
            raise TargetError(obstacle)
        if self.missing_features is None and not self.for_gpu:
            warnings.warn(
                f"{self.path}: {host.UNKNOWN}; without {', '.join(self.target['features'])} the "
                "code ends the process with SIGILL",
                stacklevel=4,
            )


def sign(path: StrPath, private_key: StrPath) -> None:
    """Sign the artifact at `path` with the Ed25519 private key in a PEM file.

    An existing signature is replaced. Raises ArtifactError if the artifact is damaged or cannot be
    written, and the errors of `signature.sign`.
    """
    found = Artifact.open(path)
    with replacing.writing(found.path) as new:
        for name in found.manifest["files"]:
            (new / name).write_bytes(found.read(name))
        write_manifest(new, found.manifest, private_key)
