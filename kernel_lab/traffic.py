"""The bytes that a rung moves for each useful operation, counted in its trace, by cache level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kernel_lab.errors import LabError
from kernel_lab.rung import Rung
from kernel_lab.scaled import trace_at
from kernel_lab.sizes import drawn_size
from kernel_lab.trace import Trace, statistics
from kernel_lab.workload import Case, Workload

LIMIT = 1_500_000  # accesses of a trace whose cache misses are counted, a few seconds' work
PARTS = (16, 4)  # the modelled caches hold a sixteenth and a quarter of the data


@dataclass(frozen=True)
class Traffic:
    """Useful operations for each byte that the loops load or store (`accessed`), and for each byte
    that LRU caches of `caches` bytes miss (`missed`, in the order of PARTS)."""

    accessed: float
    missed: tuple[float, ...]
    caches: tuple[int, ...]


def common_size(workload: Workload, rungs: Iterable[Rung], case: Case) -> dict[str, Any]:
    """Return a size at which every rung has two whole tiles along each axis: the largest dimensions
    of the sizes at which they are drawn. Failed rungs, which may have huge tiles, do not count."""
    standing = [rung for rung in rungs if rung.kind != "failed"]
    sizes = [drawn_size(workload, rung, case) for rung in standing] or [dict(case.size)]
    return {
        name: max(size[name] for size in sizes) if isinstance(value, int) else value
        for name, value in case.size.items()
    }


def traffic(workload: Workload, rung: Rung, small: Mapping[str, Any], case: Case) -> Traffic | None:
    """Return the traffic of a CPU rung at the size `small`; None if it cannot be traced at that
    size."""
    if rung.claims(small) is not None:
        return None
    at = Case(small, case.processor)
    try:
        found = trace_at(workload, rung, at, case, LIMIT, ignore=("local",)).trace
    except LabError:
        return None
    flops = workload.flops(small)
    caches = tuple(model_caches(found).values())
    moved = [statistics.cache(found, size).bytes_moved for size in caches]
    return Traffic(
        flops / int(found.itemsize.sum()), tuple(flops / bytes for bytes in moved), caches
    )


def model_caches(trace: Trace) -> dict[str, int]:
    """Return the sizes of caches that hold a fraction of the global data a kernel touches, in whole
    lines.

    The data of a small size fits into any real cache, so only fractions of it tell schedules apart.
    """
    rows = statistics.buffer_counts(trace)
    lines = sum(row.lines for row in rows if row.scope == "global")
    names = {4: "a quarter of the data", 16: "a sixteenth"}
    return {names[part]: max(1, lines // part) * statistics.LINE for part in PARTS}
