"""A workload's roofline from this machine's limits, which `limits` measures."""

from __future__ import annotations

from collections.abc import Mapping

from kernel_lab.limits import Probe, peak, triad
from kernel_lab.results import Roofline
from kernel_lab.workload import Processor, Size, Workload

PEAK, TRIAD = "roofline: multiply-adds", "roofline: triad"
CACHES = (16 << 10, 256 << 10)  # bytes per core: fit into the first- and second-level cache


def probes(processor: Processor, working_set: int) -> dict[str, Probe]:
    """Return the probes by name. The triad's working set (bytes) is as large as the workload's, and
    the working sets of `cache_triad` fit into caches."""
    cores, lanes = processor.cores, processor.lanes
    return {
        PEAK: peak(cores, processor.registers, lanes),
        TRIAD: triad(cores, lanes, working_set),
        **{cache_triad(size): triad(cores, lanes, cores * size) for size in CACHES},
    }


def cache_triad(size: int) -> str:
    """Return the name of the triad over `size` bytes per core."""
    return f"{TRIAD}, {size >> 10} KiB a core"


def limits(
    workload: Workload,
    size: Size,
    gigaflops: float,
    gigabytes: float,
    caches: Mapping[int, float],
) -> Roofline:
    """Return the roofline of a workload at a size from the measured limits."""
    arithmetic = workload.flops(size) / (gigaflops * 1e9)
    traffic = workload.bytes(size) / (gigabytes * 1e9)
    bound = "arithmetic" if arithmetic >= traffic else "memory"
    return Roofline(gigaflops, gigabytes, max(arithmetic, traffic), bound, caches)
