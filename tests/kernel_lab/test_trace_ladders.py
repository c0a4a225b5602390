"""Every rung of every ladder, interpreted at a small size, gives NumPy's results. The bytes that
a CPU rung moves are the same when only its addresses are computed."""

import pytest

pytest.importorskip("tvm")

from kernel_lab import build, registry
from kernel_lab.scaled import scaled_trace
from kernel_lab.trace import TraceTooLarge, statistics
from kernel_lab.trace.stream import moved
from kernel_lab.workload import Case, Processor
from tests.kernel_lab.cache_model import CACHES, of_trace

# Sizes with more than one tile, block and thread, and a few ten thousand accesses.
SMALL = {
    "vector_add": {"N": 4096},
    "conv1d": {"M": 600, "N": 8},
    "depthwise": {"B": 1, "C": 2, "H": 16, "W": 32, "K": 3},
    "separable": {"B": 1, "C": 2, "H": 16, "W": 32, "K": 3, "O": 4},
    "gemm": {"M": 64, "N": 64, "K": 16},
    "gelu_matmul": {"M": 64, "N": 64, "K": 16},
    "int8_gemm": {"M": 16, "N": 64, "K": 16},
    "softmax": {"M": 8, "N": 128},
    "layer_norm": {"M": 32, "N": 128},
    "attention": {"H": 2, "M": 16, "N": 96, "D": 16},
}
LIMITS = (60_000, 1_000_000)  # accesses of a rung that does not claim the small size


def traced(workload, rung, size, processor):
    """The rung's trace at the small size, or at the smallest one it claims."""
    small = {**size, **SMALL[workload.name]}
    if rung.claims(small) is None:
        return scaled_trace(workload, rung, Case(small, processor), LIMITS[-1], ignore=("local",))
    case = Case(size, processor)
    try:
        return scaled_trace(workload, rung, case, LIMITS[0], ignore=("local",))
    except TraceTooLarge:
        return scaled_trace(workload, rung, case, LIMITS[-1], ignore=("local",))


@pytest.mark.parametrize("name, device", list(registry.LADDERS))
def test_rungs_are_traced_and_right(name, device):
    ladder = registry.ladder(name, device)
    workload = ladder.workload
    processor = build.processor(build.make_target("cpu")) if device == "cpu" else Processor()
    size = workload.size(device)
    for rung in ladder.rungs:
        found = traced(workload, rung, size, processor)
        trace = found.trace
        assert found.error <= workload.tolerance(found.size, rung.precision), rung.name
        assert trace.device == ("gpu" if device == "cuda" else "cpu"), rung.name
        # Every schedule reads each input and writes every element of the result.
        rows = {row.name: row for row in statistics.buffer_counts(trace)}
        *inputs, output = list(trace.arrays)
        assert all(rows[name].loads > 0 for name in inputs), rung.name
        assert rows[output].elements == trace.arrays[output].size, rung.name
        assert rows[output].stores >= rows[output].elements, rung.name
        if device == "cpu":
            module = rung.module(Case(found.size, processor))
            assert moved(module, CACHES) == of_trace(trace), rung.name
