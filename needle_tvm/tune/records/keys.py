"""The key of a tuning record: the target, versions and pass configuration to which it applies.

`database` stores trials under a key. This module imports TVM only when it is used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from needle_runtime._tvm import versions
from needle_runtime.errors import TargetError
from needle_runtime.target.kind import GPU
from needle_tvm.target import nvcc
from needle_tvm.tune.records.facts import canonical

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Target


@dataclass(frozen=True)
class Key:
    """Everything, except the module itself, that decides which code a schedule becomes.

    `text` is canonical JSON with `target` (TVM's description, including its host), `features`
    (those that a CPU's code, or a GPU's host code, may use), `versions` (tvm, tvm_ffi, llvm, and
    cuda for a CUDA target) and `passes` (the PassContext).
    """

    text: str

    @classmethod
    def of(cls, target: Target) -> Key:
        """Return the key of code compiled on this machine for `target` in the current
        PassContext."""
        from needle_tvm._tvm import names as tvm_names

        fields = tvm_names.target_fields(target)
        return cls(
            canonical(
                {
                    "target": fields,
                    "features": _features(target),
                    "versions": installed_versions(fields["kind"]),
                    "passes": tvm_names.pass_configuration(),
                }
            )
        )

    @property
    def fields(self) -> dict[str, Any]:
        """The parsed `text`."""
        return dict(json.loads(self.text))


def installed_versions(kind: str) -> dict[str, str]:
    """Return the versions of the tools that compile for a target of this `kind` here."""
    from needle_tvm._tvm import names as tvm_names

    found = {
        "tvm": versions.installed("apache-tvm") or versions.TVM,
        "tvm_ffi": versions.installed("apache-tvm-ffi") or versions.FFI,
        "llvm": str(tvm_names.llvm_version()),
    }
    if kind == GPU:
        found["cuda"] = nvcc.version()
    return found


def _features(target: Target) -> list[str]:
    """Return LLVM's names for the features that a CPU's code, or a GPU's host code, may use."""
    from needle_tvm.target.info import TargetInfo

    try:
        return sorted(TargetInfo(target).features)
    except ValueError as error:
        raise TargetError(f"target {target}: {error}") from error
