"""Resolve the target for which a model is compiled. This module imports TVM only for TVM's own
Target.

`compiler.request` uses it to resolve the `target` argument of `compile`.
"""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from needle_runtime.errors import TargetError, UsageError
from needle_runtime.process.threads import available_cores, check_threads
from needle_runtime.target import gpu, host
from needle_runtime.target.features import FEATURES
from needle_runtime.target.kind import CPU, GPU
from needle_tvm.target import nvcc
from needle_tvm.target.named import NAMED

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Target

HOST = "host"  # the mcpu that stands for this machine's processor
MCPU_VARIABLE = "NEEDLE_MCPU"  # LLVM's name for a processor, to use instead of this machine's
DEVICES = {CPU: "cpu", GPU: "cuda"}  # the names for users and for needle's arrays
_LLVM_FIELDS = {"kind", "mcpu", "mattr", "mtriple", "num-cores"}
# Features that an architecture's code always needs. Without 64bit, LLVM aborts the process; without
# the others, it passes numbers in other registers than compiled C++ does.
_BASE = {"x86_64": {"64bit", "64bit-mode", "sse2"}, "aarch64": {"fp-armv8", "neon"}}
_TRIPLE = re.compile(rf"({'|'.join(_BASE)})(-\w+)?-linux(-gnu|-musl)?", re.ASCII)

# The architectures for which code can be compiled without a device: CUDA 13 supports no older ones.
# They have the same default limits per block (CUDA C++ Programming Guide, table "Technical
# specifications per compute capability").
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")
_THREADS, _REGISTERS, _WARP = 1024, 65536, 32


@dataclass(frozen=True)
class TargetSpec:
    """A resolved target: a `device` ("cpu" or "cuda") and TVM's `description` as canonical JSON.

    `index` is the requested GPU; generated code does not depend on it.
    """

    device: str
    description: str
    index: int = 0

    @property
    def is_gpu(self) -> bool:
        """Whether the target is a GPU."""
        return self.device == DEVICES[GPU]

    @property
    def fields(self) -> dict[str, Any]:
        """TVM's description; `mcpu` may still be "host"."""
        return dict(json.loads(self.description))

    @property
    def threads(self) -> int:
        """The number of CPU threads for which the code is scheduled; 1 for a GPU."""
        return int(self.fields.get("num-cores", 1))

    @property
    def missing(self) -> str:
        """The reason that code for this target cannot be measured here, or "" if none is known.

        A CPU is not checked: candidates simply fail if it lacks a feature.
        """
        if not self.is_gpu:
            return ""
        found, arch = gpu.gpus(), str(self.fields["arch"])
        if not found:
            return gpu.why_none()
        if len(found) <= self.index:
            return f"this machine has {len(found)} CUDA devices"
        here = found[self.index]
        return "" if gpu.runs(arch, here) else f"this machine has {here.name} ({here.arch})"

    def key(self) -> dict[str, Any]:
        """Return the parts of this target that decide which code is generated, for a cache key."""
        fields = self.fields
        if fields.get("mcpu") == HOST:
            fields["host"] = host.identity()
            if os.environ.get(MCPU_VARIABLE):
                fields["host"] += f" as {os.environ[MCPU_VARIABLE]}"
        if self.is_gpu:
            fields["nvcc"] = nvcc.version()
        return fields

    def resolved(self) -> dict[str, Any]:
        """Return TVM's description with the host processor looked up. Imports TVM.

        Raises TargetError if LLVM does not know the processor or a feature, or cannot generate code
        for them.
        """
        from needle_tvm._tvm import names as tvm_names

        fields = self.fields
        asked = os.environ.get(MCPU_VARIABLE)
        here = fields.get("mcpu") == HOST
        chosen = not here or asked or {"mattr", "mtriple"} & set(fields)
        if here:
            fields["mcpu"] = asked or tvm_names.host_cpu()
        if fields["kind"] == CPU and chosen:
            _check_with_llvm(fields)
        if here and not asked and "mtriple" not in fields:
            _leave_out_lacking(fields)
        return fields

    def to_tvm(self) -> Target:
        """Return TVM's Target, with the host processor looked up. Imports TVM."""
        from needle_tvm._tvm import names as tvm_names

        fields = self.resolved()
        try:
            return tvm_names.make_target(fields)
        except ValueError as error:
            raise TargetError(f"target {fields}: {error}") from error


def resolve(target: str | dict[str, Any], threads: int | None = None) -> TargetSpec:
    """Return the TargetSpec for `target`: "cpu", a GPU, a name in `NAMED`, or TVM's own description
    of an llvm target.

    "cuda" is this machine's first GPU, "cuda:1" its second. "cuda:sm_90" is any GPU of that
    architecture, whether or not this machine has one. A description has "kind": "llvm" and may have
    "mcpu" (LLVM's name for a processor), "mattr" (names in `FEATURES` to add or remove, as in
    "+avx2"), "mtriple" (Linux on x86_64 or aarch64) and "num-cores". `threads` is the number of
    threads for which CPU code is scheduled, the same as "num-cores". By default it is the number of
    cores that `NAMED` gives for a name, or else the number that this process may use.

    Raises TargetError for an unknown target, for "cuda" if this machine has no such GPU, for a
    number of threads outside 1..4096, and if `threads` and "num-cores" differ.
    """
    try:
        cores = available_cores() if threads is None else check_threads(threads)
        if isinstance(target, dict) and "num-cores" in target:
            cores = check_threads(target["num-cores"], "target field num-cores")
    except UsageError as error:
        raise TargetError(str(error)) from None
    if threads is not None and threads != cores:
        raise TargetError(f"threads={threads}: the target says num-cores={cores}; give one of them")
    if isinstance(target, dict):
        return _from_description(target, cores)
    if target == "cpu":
        return _spec({"kind": CPU, "mcpu": HOST, "num-cores": cores})
    if isinstance(target, str) and target in NAMED:
        named = NAMED[target]
        cores = named.cores if named.cores is not None and threads is None else cores
        return _from_description({"kind": CPU, "mcpu": named.mcpu, "mtriple": named.mtriple}, cores)
    name, _, which = str(target).partition(":")
    if name == "cuda":
        if which.startswith("sm_"):
            return _architecture(target, which)
        if (which.isdecimal() and len(which) < 10) or target == "cuda":
            return _present(target, int(which or 0))
    raise TargetError(
        f"target {target!r}: must be {' or '.join(DEVICES.values())}, cuda:INDEX, "
        f"cuda:ARCHITECTURE as in cuda:sm_90, a name ({', '.join(NAMED)}), or an llvm description"
    )


def _from_description(target: dict[str, Any], cores: int) -> TargetSpec:
    if target.get("kind") != CPU:
        raise TargetError(f"target kind {target.get('kind')!r}: must be {CPU!r} in a description")
    unknown = [field for field in target if field not in _LLVM_FIELDS]
    if unknown:
        raise TargetError(
            f"target field {unknown[0]!r}: must be one of {', '.join(sorted(_LLVM_FIELDS))}"
        )
    fields = {"mcpu": HOST, **target, "num-cores": cores}
    for name in ("mcpu", "mtriple"):
        if name in fields and not (isinstance(fields[name], str) and fields[name].isascii()):
            raise TargetError(f"target field {name}={fields[name]!r}: must be a str of ASCII")
    if "mtriple" in fields and not _TRIPLE.fullmatch(fields["mtriple"]):
        raise TargetError(
            f"target field mtriple={fields['mtriple']!r}: must be the triple of Linux on "
            f"{' or '.join(_BASE)}, as in 'x86_64-linux-gnu'"
        )
    features = fields.get("mattr", [])
    if not isinstance(features, (list, tuple)):
        raise TargetError(f"target field mattr={features!r}: must be a list as in ['+avx2']")
    for each in features:
        # Other features cannot be checked when the code is loaded, and LLVM fails with some.
        if not isinstance(each, str) or each[:1] not in "+-" or each[1:] not in FEATURES:
            raise TargetError(
                f"target field mattr: {each!r} must be + or - and one of {', '.join(FEATURES)}"
            )
    return _spec(fields)


def _check_with_llvm(fields: dict[str, Any]) -> None:
    """Raise TargetError for names that LLVM does not know (it would print a message, crash or
    exit), and for a processor that lacks a feature that all code needs."""
    from needle_tvm._tvm import names as tvm_names

    mcpu, triple = fields["mcpu"], fields.get("mtriple")
    if not tvm_names.is_known_cpu(mcpu, triple):
        raise TargetError(f"target: LLVM knows no processor named {mcpu!r} {_of(triple)}")
    features = fields.get("mattr", [])
    every = {**fields, "mattr": [f"+{name[1:]}" for name in features]}
    known = tvm_names.cpu_features(tvm_names.make_target(every))
    unknown = [name for name in features if name[1:] not in known]
    if unknown:
        raise TargetError(f"target: LLVM knows no feature named {unknown[0][1:]!r} {_of(triple)}")
    has = set(tvm_names.cpu_features(tvm_names.make_target(fields)))
    base = _BASE.get((triple or platform.machine()).partition("-")[0], set())
    lacking = sorted(base - has)
    if lacking:
        given = f"{mcpu!r} with {', '.join(features)}" if features else repr(mcpu)
        raise TargetError(f"target: {given} lacks {lacking[0]}, which all compiled code needs")


def _leave_out_lacking(fields: dict[str, Any]) -> None:
    """Remove the features that processors with this `mcpu` have but this machine lacks. LLVM
    derives the name from the family and model, but a hypervisor or emulator may hide features."""
    from needle_tvm._tvm import names as tvm_names

    named = host.checkable(tvm_names.cpu_features(tvm_names.make_target(fields)))
    given = {name[1:] for name in fields.get("mattr", ())}
    lacking = [f"-{name}" for name in host.missing_features(named) or () if name not in given]
    if lacking:
        fields["mattr"] = [*fields.get("mattr", ()), *lacking]


def _of(triple: str | None) -> str:
    return "here" if triple is None else f"for {triple!r}"


def _spec(fields: dict[str, Any]) -> TargetSpec:
    return TargetSpec(DEVICES[CPU], json.dumps(fields, sort_keys=True))


def _present(target: str, index: int) -> TargetSpec:
    """Return the spec of this machine's GPU `index`, from its driver's description."""
    found = gpu.gpus()
    if not found:
        raise TargetError(f"target {target!r}: {gpu.why_none()}")
    if index >= len(found):
        raise TargetError(f"target {target!r}: this machine has {len(found)} CUDA devices")
    device = found[index]
    return _cuda(
        device.arch,
        index,
        max_threads_per_block=device.threads_per_block,
        max_shared_memory_per_block=device.shared_bytes,
        registers_per_block=device.registers,
        thread_warp_size=device.warp,
    )


def _architecture(target: str, arch: str) -> TargetSpec:
    if arch not in ARCHITECTURES:
        raise TargetError(
            f"target {target!r}: the architecture must be one of {', '.join(ARCHITECTURES)}"
        )
    return _cuda(
        arch,
        0,
        max_threads_per_block=_THREADS,
        max_shared_memory_per_block=gpu.SHARED_BYTES,
        registers_per_block=_REGISTERS,
        thread_warp_size=_WARP,
    )


def _cuda(arch: str, index: int, **limits: int) -> TargetSpec:
    # The host code only launches kernels: any processor of this architecture can run it.
    fields = {"kind": GPU, "arch": arch, "host": {"kind": CPU}, **limits}
    return TargetSpec(DEVICES[GPU], json.dumps(fields, sort_keys=True), index)
