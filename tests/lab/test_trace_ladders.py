"""Every rung of every ladder, run by the interpreter at a small size, computes what NumPy does."""

import pytest

pytest.importorskip("tvm")

from kernel_lab import build, registry
from kernel_lab.scaled import scaled_trace
from kernel_lab.trace import TraceTooLarge, statistics
from kernel_lab.workload import Case

LIMITS = (60_000, 1_000_000)  # accesses: few where the rung takes so small a size


def traced(workload, rung, case):
    """The rung's trace at the smallest size that shows it."""
    for limit in LIMITS[:-1]:
        try:
            return scaled_trace(workload, rung, case, limit, ignore=("local",))
        except TraceTooLarge:
            continue
    return scaled_trace(workload, rung, case, LIMITS[-1], ignore=("local",))


@pytest.mark.parametrize("name, device", list(registry.LADDERS))
def test_rungs_are_traced_and_right(name, device):
    ladder = registry.ladder(name, device)
    workload = ladder.workload
    target = build.make_target("cpu")
    size = workload.size(device)
    case = Case(size, build.processor(target)) if device == "cpu" else Case(size)
    for rung in ladder.rungs:
        found = traced(workload, rung, case)
        trace = found.trace
        assert found.error <= workload.tolerance(found.size, rung.precision), rung.name
        assert trace.device == ("gpu" if device == "cuda" else "cpu"), rung.name
        # Whatever the schedule: each input is read, and every element of the result is written.
        rows = {row.name: row for row in statistics.buffer_counts(trace)}
        *inputs, output = list(trace.arrays)
        assert all(rows[name].loads > 0 for name in inputs), rung.name
        assert rows[output].elements == trace.arrays[output].size, rung.name
        assert rows[output].stores >= rows[output].elements, rung.name
