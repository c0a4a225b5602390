"""The result of a run of the lab as plain data, from which the table, JSON and report are made.

`kernel_lab.run.run(request)` returns a `LabResult`; `LabResult.to_dict()` is the JSON.
`kernel_lab.report.write(result, directory)` takes the `LabResult` itself, because it needs the
scheduled modules (`RungResult.module`), which are not part of the JSON.

`LabResult.rungs` keeps the order of the ladder and has an entry for every rung. An entry has
`refused` set if the rung does not claim the size or was left out, and no `seconds` if it could not
be timed here (no GPU). Peers (NumPy, PyTorch) have entries of the same form in `LabResult.peers`,
with kind "peer" and no module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kernel_lab.load import BUSY
from kernel_lab.occupancy import Occupancy
from kernel_lab.workload import Published
from needle_runtime.process.timing import Spread

_POSSIBLE = 1.05  # the largest share of the roofline that a sound measurement can show

# Kinds of rungs. "rewrite" changes the definition (the algorithm or the layout it works on) and
# keeps the schedule; "schedule" changes only the schedule; "failed" is a step that was worth a try
# but gained nothing or made the kernel slower; "search" was found by a search; "peer" is another
# library.
KINDS = ("naive", "rewrite", "schedule", "failed", "search", "peer")


@dataclass(frozen=True)
class Check:
    """A rung's largest difference from NumPy's float64 result, relative to the result's largest
    magnitude, and the tolerance."""

    error: float
    tolerance: float


@dataclass(frozen=True)
class KernelFigures:
    """A compiled kernel: the threads of a block, registers of a thread, bytes spilled and bytes of
    shared memory of a block; `occupancy` is None for a GPU whose limits are not known here."""

    kernel: str
    threads: int
    registers: int
    spill_stores: int
    spill_loads: int
    shared: int
    occupancy: Occupancy | None


@dataclass(frozen=True)
class Requests:
    """The memory requests of warps, counted in a trace at `size`.

    `loads` and `stores` are sectors of 32 bytes per request, by buffer of global memory.
    `load_degree` and `store_degree` are the most turns that the banks of shared memory take for a
    request; 1 means no conflict, None no such access.
    """

    size: dict[str, Any]
    loads: Mapping[str, float]
    stores: Mapping[str, float]
    load_degree: int | None
    store_degree: int | None


@dataclass(frozen=True)
class GpuFigures:
    """The static figures of a rung. Without `kernels` or `requests`, `missing` says why."""

    arch: str
    kernels: tuple[KernelFigures, ...] = ()
    requests: Requests | None = None
    missing: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        kernels = [
            {
                **{name: value for name, value in vars(one).items() if name != "occupancy"},
                "occupancy": {**vars(one.occupancy), "limits": list(one.occupancy.limits)}
                if one.occupancy
                else None,
            }
            for one in self.kernels
        ]
        requests = None
        if self.requests is not None:
            requests = {
                "size": dict(self.requests.size),
                "sectors_per_load": dict(self.requests.loads),
                "sectors_per_store": dict(self.requests.stores),
                "bank_degree_of_loads": self.requests.load_degree,
                "bank_degree_of_stores": self.requests.store_degree,
            }
        return {
            "arch": self.arch,
            "kernels": kernels,
            "requests": requests,
            "missing": list(self.missing),
        }


@dataclass(frozen=True)
class Roofline:
    """This machine's measured limits: GFLOP/s of multiply-adds in registers, GB/s of a triad.

    `gigabytes` is the bandwidth of a working set as large as the workload's own. `seconds` is the
    shortest time that the workload's useful arithmetic and compulsory traffic could take. `bound`
    says which of the two sets it: "arithmetic" or "memory". `caches` maps smaller working sets, in
    bytes per core, to the triad's GB/s.
    """

    gigaflops: float
    gigabytes: float
    seconds: float
    bound: str
    caches: Mapping[int, float] = field(default_factory=dict)


@dataclass
class RungResult:
    """One rung at one size.

    Times are seconds per call. Ratios are another contestant's time over this rung's time: above 1,
    this rung is faster. `after` names the rung that `speedup_previous` and `expected` (lowest and
    highest factor) compare with. `explained` is the rung's explanation for a measured factor
    outside the expected range. `launch_seconds` is the time of a whole call on a GPU, with launch
    and wait; `seconds` is then the device's time alone. `precision` is the dtype that operands are
    rounded to; below "float32" the arithmetic is not the workload's own. `static` holds a GPU
    rung's static figures, which need no run, if they were requested.
    """

    name: str
    kind: str
    reason: str
    after: str | None = None
    expected: tuple[float, float] | None = None
    explained: str | None = None
    surprising: bool = False
    precision: str = "float32"
    refused: str | None = None
    check: Check | None = None
    seconds: Spread | None = None
    blocks: list[float] = field(default_factory=list)
    calls: int = 0
    launch_seconds: Spread | None = None
    gigaflops: float | None = None
    roofline: float | None = None
    speedup_naive: Spread | None = None
    speedup_previous: Spread | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    static: GpuFigures | None = None
    script: str = ""
    source: str = ""
    module: Any = field(default=None, repr=False, compare=False)

    @property
    def described_kind(self) -> str:
        """The kind, and the operands' precision if that is not the workload's own float32."""
        return self.kind if self.precision == "float32" else f"{self.kind}, {self.precision}"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, without the scheduled module, the TVMScript and the source."""
        return {
            "name": self.name,
            "kind": self.kind,
            "reason": self.reason,
            "after": self.after,
            "expected": list(self.expected) if self.expected else None,
            "explained": self.explained,
            "surprising": self.surprising,
            "precision": self.precision,
            "refused": self.refused,
            "error": self.check.error if self.check else None,
            "tolerance": self.check.tolerance if self.check else None,
            "seconds": _maybe(self.seconds),
            "blocks": list(self.blocks),
            "calls": self.calls,
            "launch_seconds": _maybe(self.launch_seconds),
            "gigaflops": self.gigaflops,
            "roofline": self.roofline,
            "speedup_naive": _maybe(self.speedup_naive),
            "speedup_previous": _maybe(self.speedup_previous),
            "notes": dict(self.notes),
            "static": self.static.to_dict() if self.static else None,
        }


@dataclass
class SweepPoint:
    """The ladder at one size of a sweep: seconds by rung or peer name, None if not timed."""

    size: dict[str, int]
    flops: int
    seconds: dict[str, float | None]

    def to_dict(self) -> dict[str, Any]:
        return {"size": dict(self.size), "flops": self.flops, "seconds": dict(self.seconds)}


@dataclass
class LabResult:
    """A ladder run at one size, and the sweep if one was requested.

    `flops` and `bytes` are the useful operations and bytes: no padding is counted, each input is
    read once and the output is written once. `target` is TVM's description of the compilation
    target, and `machine` describes the machine of the run. `load` is the share of the processors'
    time that went to other work around the timing, None if unknown. `peers_missing` gives the
    reason for each peer that is absent.
    """

    workload: str
    title: str
    device: str
    size: dict[str, int | str]
    flops: int
    bytes: int
    target: dict[str, Any]
    machine: dict[str, Any]
    date: str
    rungs: list[RungResult]
    peers: list[RungResult] = field(default_factory=list)
    peers_missing: dict[str, str] = field(default_factory=dict)
    roofline: Roofline | None = None
    timed: bool = True
    untimed_reason: str | None = None
    load: float | None = None
    published: list[Published] = field(default_factory=list)
    sweep: list[SweepPoint] = field(default_factory=list)
    sweep_axis: str | None = None

    def rung(self, name: str) -> RungResult:
        """Return the entry of a rung or peer. Raises KeyError if there is none with this name."""
        for entry in (*self.rungs, *self.peers):
            if entry.name == name:
                return entry
        raise KeyError(name)

    @property
    def doubt(self) -> str | None:
        """The reason not to trust the times, if there is one: the machine was busy with other work,
        or a rung is faster than the limits measured in the same run."""
        if self.load is not None and self.load >= BUSY:
            return (
                f"the machine was busy: other work had {self.load:.0%} of the processors' time, so"
                " times, factors and limits are rough"
            )
        shares = {e.name: e.roofline for e in (*self.rungs, *self.peers) if e.roofline is not None}
        fastest = max(shares, key=lambda name: shares[name], default=None)
        if fastest is not None and shares[fastest] > _POSSIBLE:
            return (
                f"{fastest} took {1 / shares[fastest]:.0%} of the least time that the measured"
                " limits allow: something disturbed their measurement, so shares of the roofline"
                " are left out"
            )
        return None

    def best(self) -> RungResult | None:
        """Return the fastest hand-written rung that was timed and has the first rung's
        precision."""
        timed = [
            r
            for r in self.rungs
            if r.seconds is not None
            and r.kind != "search"
            and r.precision == self.rungs[0].precision
        ]
        return min(timed, key=lambda r: r.seconds.median if r.seconds else 0.0, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, one object."""
        roofline = self.roofline
        return {
            "workload": self.workload,
            "title": self.title,
            "device": self.device,
            "size": dict(self.size),
            "flops": self.flops,
            "bytes": self.bytes,
            "target": dict(self.target),
            "machine": dict(self.machine),
            "date": self.date,
            "timed": self.timed,
            "untimed_reason": self.untimed_reason,
            "load": self.load,
            "doubt": self.doubt,
            "roofline": vars(roofline) if roofline else None,
            "rungs": [rung.to_dict() for rung in self.rungs],
            "peers": [peer.to_dict() for peer in self.peers],
            "peers_missing": dict(self.peers_missing),
            "published": [vars(figure) for figure in self.published],
            "sweep_axis": self.sweep_axis,
            "sweep": [point.to_dict() for point in self.sweep],
        }


def _maybe(spread: Spread | None) -> dict[str, float] | None:
    return asdict(spread) if spread else None
