"""What a tuning record holds for: target, versions, pass configuration. Imports TVM when used."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from needle_tvm._tvm import versions
from needle_tvm.errors import TargetError
from needle_tvm.target import nvcc
from needle_tvm.tune.records.rows import KeyRow, canonical

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Target


@dataclass(frozen=True)
class Key:
    """All that decides which code a schedule becomes, but for the module itself.

    `text` is canonical JSON of: `target` (TVM's description, its host included), `features` (what
    LLVM may use of the processor, by its names; of a GPU, the description's `arch` says that),
    `versions` (tvm, tvm_ffi, llvm, and cuda where the target is one) and `passes` (the
    PassContext).
    """

    text: str

    @classmethod
    def of(
        cls,
        target: Target,
        *,
        passes: dict[str, Any] | None = None,
        versions: dict[str, str] | None = None,
    ) -> Key:
        """The key of code compiled here for `target`.

        `passes` is by default the PassContext in force now, `versions` those installed.
        """
        from needle_tvm._tvm import names as tvm_names

        fields = tvm_names.target_fields(target)
        return cls(
            canonical(
                {
                    "target": fields,
                    "features": _features(target),
                    "versions": versions or installed_versions(fields["kind"]),
                    "passes": passes if passes is not None else tvm_names.pass_configuration(),
                }
            )
        )

    @property
    def fields(self) -> dict[str, Any]:
        """The parts named above."""
        return dict(json.loads(self.text))

    @property
    def row(self) -> KeyRow:
        """The key as the store holds it."""
        return KeyRow(self.text)


def installed_versions(kind: str) -> dict[str, str]:
    """Versions of what compiles for a target of this kind here."""
    from needle_tvm._tvm import names as tvm_names

    found = {
        "tvm": versions.installed("apache-tvm") or versions.TVM,
        "tvm_ffi": versions.installed("apache-tvm-ffi") or versions.FFI,
        "llvm": str(tvm_names.llvm_version()),
    }
    if kind == "cuda":
        found["cuda"] = nvcc.version()
    return found


def _features(target: Target) -> list[str]:
    """LLVM's features of the processor that the code, or what launches it, runs on."""
    from needle_tvm._tvm import names as tvm_names

    processor = target if target.kind.name == "llvm" else target.host
    if processor is None or processor.kind.name != "llvm":
        return []
    try:
        return tvm_names.cpu_features(processor)
    except ValueError as error:
        raise TargetError(f"target {target}: {error}") from error
