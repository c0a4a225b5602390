"""A model of how a GPU executes a trace: sectors per warp instruction, and shared-memory banks.

The rules are from the CUDA C++ Programming Guide and Best Practices Guide, for compute capability
5.0 and later. A warp's access to global memory moves the 32-byte sectors that its threads touch.
Shared memory has 32 banks of 4-byte words; threads that need different words of one bank take
turns, and threads that need the same word are served together. A warp whose threads access 8 or 16
bytes each is served in two or four parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernel_lab.errors import LabUsageError
from kernel_lab.trace.events import WARP, Trace
from needle_runtime.text import counted

SECTOR = 32  # bytes
BANKS = 32
WORD = 4  # bytes that a bank delivers at a time
WIDEST = 16  # bytes that a thread can access with one instruction


@dataclass(frozen=True)
class SiteReport:
    """A load or store of the kernel, over all warps that executed it.

    `requests` counts warp instructions. In global memory, `used` is the number of distinct bytes
    that they requested, and `moved` the bytes of the sectors that they touched. In shared memory,
    `turns` counts passes through the banks, `fewest` is their number without conflicts, and
    `degree` is the most turns that any part of a warp took.
    """

    site: int
    buffer: str
    scope: str
    is_store: bool
    text: str
    requests: int
    threads: float
    used: int = 0
    moved: int = 0
    turns: int = 0
    fewest: int = 0
    degree: int = 0

    @property
    def efficiency(self) -> float:
        """Bytes used as a fraction of bytes moved; 1 if nothing moves."""
        return self.used / self.moved if self.moved else 1.0

    @property
    def finding(self) -> str | None:
        """A description of what makes the access slow; None if nothing does."""
        verb = "store to" if self.is_store else "load of"
        if self.scope == "shared" and self.degree > 1:
            return f"bank conflict: the {verb} {self.text} takes up to {self.degree} turns per warp"
        # A warp of few threads, or one that reads a single word, cannot fill its sectors.
        if self.scope == "global" and self.moved > 2 * max(self.used, SECTOR * self.requests):
            return (
                f"uncoalesced: the {verb} {self.text} uses {self.efficiency:.0%} of the bytes it"
                " moves"
            )
        return None


def instructions(trace: Trace) -> np.ndarray:
    """Return, for each access in the trace's order, the index of its warp instruction.

    The lanes of a vectorised loop are one instruction if each thread's elements are contiguous and
    span at most 16 bytes; otherwise each lane is a separate instruction.
    """
    if trace.device != "gpu":
        raise LabUsageError(f"statistics: {trace.name} is not a GPU kernel, so it has no warps")
    lane = np.where(_side_by_side(trace), 0, trace.lane)
    keys = np.stack([trace.time, trace.worker, trace.warp, lane])
    order = np.lexsort(keys[::-1])
    keys = keys[:, order]
    first = np.ones(len(order), bool)
    first[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(first) - 1
    return number


def _side_by_side(trace: Trace) -> np.ndarray:
    """Return, for each access, whether the lanes of its step form vectors that one instruction can
    load or store."""
    if not len(trace) or not trace.lane.any():
        return np.ones(len(trace), bool)
    # The trace is in order of time, worker, thread and lane.
    same = np.zeros(len(trace), bool)
    same[1:] = (
        (np.diff(trace.time) == 0) & (np.diff(trace.worker) == 0) & (np.diff(trace.thread) == 0)
    )
    broken = np.zeros(len(trace), bool)
    broken[1:] = same[1:] & (np.diff(trace.index) != 1)
    start = ~same & (trace.lane == 0)
    widths = np.bincount(trace.time, minlength=1)
    vectors = np.bincount(trace.time[~same], minlength=len(widths))
    bytes_each = trace.itemsize * (widths / np.maximum(vectors, 1))[trace.time]
    misaligned = start & (trace.address % np.maximum(bytes_each, 1).astype(np.int64) != 0)
    wrong = np.zeros(len(widths), bool)
    wrong[trace.time[broken | misaligned | (bytes_each > WIDEST)]] = True
    return ~wrong[trace.time]


def site_reports(trace: Trace) -> list[SiteReport]:
    """Return a report on each load and store of global and shared memory, in the order in which
    they appear in the kernel's source."""
    number = instructions(trace)
    scopes = np.array([buffer.scope for buffer in trace.buffers])[trace.buffer]
    reports = []
    for site, info in enumerate(trace.sites):
        mine = np.flatnonzero(trace.site == site)
        if not len(mine):
            continue
        scope = "shared" if scopes[mine[0]].startswith("shared") else str(scopes[mine[0]])
        if scope not in ("global", "shared"):
            continue
        groups, group = np.unique(number[mine], return_inverse=True)
        address, size = trace.address[mine], int(trace.itemsize[mine[0]])
        threads = len(_pairs(group, trace.thread[mine])[0]) / len(groups)
        figures = (
            _sectors(group, address, size)
            if scope == "global"
            else _banks(group, address, size, trace.thread[mine])
        )
        buffer = trace.buffers[info.buffer]
        reports.append(
            SiteReport(
                site,
                buffer.name,
                scope,
                info.is_store,
                info.text,
                len(groups),
                threads,
                **figures,
            )
        )
    return reports


def _sectors(group: np.ndarray, address: np.ndarray, size: int) -> dict[str, int]:
    used, moved = len(_pairs(group, address)[0]), len(_pairs(group, address // SECTOR)[0])
    return {"used": used * size, "moved": moved * SECTOR}


def joined_degree(trace: Trace, report: SiteReport, width: int) -> int:
    """Return what `report.degree` would be if a compiler joined loads from shared memory, so that
    each thread accessed all of the `width` bytes around its element. If the access is that wide
    already, this is `report.degree` itself."""
    mine = np.flatnonzero(trace.site == report.site)
    address, size = trace.address[mine], int(trace.itemsize[mine[0]])
    if size >= width:
        return report.degree
    whole = (address // width * width)[:, None] + np.arange(0, width, size)
    group, thread = instructions(trace)[mine], trace.thread[mine]
    repeats = whole.shape[1]
    keys = np.stack([np.repeat(group, repeats), np.repeat(thread, repeats), whole.ravel()])
    keys = keys[:, np.lexsort(keys)]
    new = np.ones(keys.shape[1], bool)
    new[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    group, thread, joined = keys[:, new]
    return _banks(group, joined, size, thread)["degree"]


def _banks(group: np.ndarray, address: np.ndarray, size: int, thread: np.ndarray) -> dict[str, int]:
    part, word = _pairs(group * WARP + parts(group, address, size, thread), address // WORD)
    bank, count = np.unique(part * BANKS + word % BANKS, return_counts=True)
    served, number = np.unique(bank // BANKS, return_inverse=True)
    turns = np.zeros(len(served), np.int64)
    np.maximum.at(turns, number, count)
    return {"turns": int(turns.sum()), "fewest": len(turns), "degree": int(turns.max())}


def _pairs(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct pairs of two arrays of non-negative numbers, in order."""
    width = int(second.max()) + 1 if len(second) else 1
    return np.divmod(np.unique(first * width + second), width)


def parts(group: np.ndarray, address: np.ndarray, size: int, thread: np.ndarray) -> np.ndarray:
    """Return, for each access, the index of the part of its warp that it is served with. The parts
    are served one after another: half warps at 8 bytes per thread, quarter warps at 16."""
    members = np.bincount(group)
    threads = np.bincount(_pairs(group, thread)[0], minlength=len(members))
    bytes_each = (members * size / np.maximum(threads, 1))[group]
    share = np.maximum(1, np.ceil(bytes_each / WORD)).astype(np.int64)
    return (thread % WARP) // (WARP // share)


def findings(trace: Trace) -> list[str]:
    """Return a line for each problem of a kernel: loads of elements that had not been stored,
    mostly idle warps, uncoalesced accesses and bank conflicts."""
    lines = [
        f"unset: {counted(count, 'load')} from {name} of elements that had not been stored"
        for name, count in trace.unset.items()
    ]
    reports = site_reports(trace)
    busiest = max((report.threads for report in reports), default=WARP)
    if busiest < WARP / 2:
        lines.append(
            f"idle lanes: no access has more than {busiest:.3g} of a warp's {WARP} threads"
        )
    return lines + [report.finding for report in reports if report.finding]
