"""Targets: what a model is compiled for. Resolving one does not import TVM."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from needle_tvm import host
from needle_tvm.errors import TargetError
from needle_tvm.threads import available_cores

if TYPE_CHECKING:
    from needle_tvm._tvm import Target

HOST = "host"  # mcpu of a target that means this very machine
KINDS = ("cpu", "cuda")
_LLVM_FIELDS = {"kind", "mcpu", "mattr", "mtriple", "num-cores"}


@dataclass(frozen=True)
class TargetSpec:
    """A resolved target: `device` ("cpu"), and TVM's description of it as canonical JSON."""

    device: str
    description: str

    @property
    def fields(self) -> dict[str, Any]:
        """TVM's description; `mcpu` may still be "host"."""
        return dict(json.loads(self.description))

    @property
    def threads(self) -> int:
        """Threads the compiled code is scheduled for."""
        return int(self.fields["num-cores"])

    def key(self) -> dict[str, Any]:
        """What of this target decides which code is generated, for the cache key."""
        fields = self.fields
        if fields.get("mcpu") == HOST:
            fields["host"] = host.identity()
        return fields

    def to_tvm(self) -> Target:
        """TVM's Target; the host processor is looked up here. Imports TVM."""
        from needle_tvm import _tvm

        fields = self.fields
        if fields.get("mcpu") == HOST:
            fields["mcpu"] = _tvm.host_cpu()
        elif "mtriple" not in fields and not _tvm.is_known_cpu(fields["mcpu"]):
            raise TargetError(f"target: LLVM knows no processor named {fields['mcpu']!r} here")
        try:
            return _tvm.make_target(fields)
        except ValueError as error:
            raise TargetError(f"target {fields}: {error}") from error


def resolve(target: str | dict[str, Any], threads: int | None = None) -> TargetSpec:
    """A TargetSpec from "cpu", or from TVM's own description of an llvm target.

    `threads` is how many threads the code is scheduled for: by default as many cores as this
    process may use. Raises TargetError on an unknown target, on "cuda" where there is no GPU, and
    on a number of threads below 1.
    """
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise TargetError(f"threads={threads!r}: must be an integer of at least 1")
    cores = threads if threads is not None else available_cores()
    if isinstance(target, dict):
        return _from_description(target, cores)
    if target == "cpu":
        return _spec({"kind": "llvm", "mcpu": HOST, "num-cores": cores})
    if target == "cuda" or str(target).startswith("cuda:"):
        raise TargetError(f"target {target!r}: {_why_no_cuda()}")
    raise TargetError(f"target {target!r}: must be {' or '.join(KINDS)}, or an llvm description")


def _from_description(target: dict[str, Any], cores: int) -> TargetSpec:
    if target.get("kind") != "llvm":
        raise TargetError(f"target kind {target.get('kind')!r}: only 'llvm' descriptions are taken")
    unknown = sorted(set(target) - _LLVM_FIELDS)
    if unknown:
        raise TargetError(
            f"target field {unknown[0]!r}: must be one of {', '.join(sorted(_LLVM_FIELDS))}"
        )
    return _spec({"mcpu": HOST, "num-cores": cores, **target})


def _spec(fields: dict[str, Any]) -> TargetSpec:
    return TargetSpec("cpu", json.dumps(fields, sort_keys=True))


def _why_no_cuda() -> str:
    if not Path("/proc/driver/nvidia").exists():
        return "no CUDA device was found on this machine"
    return "compiling for CUDA is not built yet"
