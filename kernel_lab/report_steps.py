"""The part of the report that steps through several rungs side by side, at one size."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lab import diagrams
from kernel_lab.errors import LabError
from kernel_lab.rung import Rung
from kernel_lab.sizes import common_size
from kernel_lab.trace import statistics, trace
from kernel_lab.workload import Case, Workload, describe

MOST = 4  # rungs side by side
_FLOPS = 150_000  # the most operations at a traced size: a naive rung takes a few 100,000 steps


def side_by_side(workload: Workload, rungs: Sequence[Rung], case: Case) -> str:
    """Return a stepper of up to four CPU rungs, including the first; "" if fewer than two can be
    traced at the same size. Each rung runs on one thread, with a cache of a sixteenth of the
    data."""
    chosen: list[Rung] = []
    for rung in rungs:
        if (
            len(chosen) < MOST
            and workload.flops(common_size(workload, [*chosen, rung], case)) < _FLOPS
        ):
            chosen.append(rung)
    small = Case(common_size(workload, chosen, case), case.processor)
    traces = {}
    for rung in chosen:
        try:
            module, inputs = rung.module(small), workload.inputs(small.size)
            traces[rung.name] = trace(module, inputs, cores=1, ignore=("local",), follow=True)
        except LabError:  # this rung does not take the size, or cannot be traced
            continue
    if len(traces) < 2:
        return ""
    cache = statistics.model_caches(next(iter(traces.values())))["a sixteenth"]
    note = (
        f"traced at {describe(small.size)}, on one thread; tinted: the lines in an LRU cache of"
        f" {cache:,} bytes, a sixteenth of the data"
    )
    return diagrams.side_by_side(traces, f"{workload.name}: side by side", note, cache)
