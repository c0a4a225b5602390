"""This machine's limits, measured beside the rungs: multiply-adds in registers, and a triad.

S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for
multicore architectures" (CACM 2009). The triad is STREAM's (J. McCalpin): a = b + s c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernel_lab.results import Roofline
from kernel_lab.workload import Processor, Size, Workload

if TYPE_CHECKING:
    from needle_tvm._tvm import IRModule

PEAK, TRIAD = "roofline: multiply-adds", "roofline: triad"

_STEPS = 1 << 16  # of each accumulator's chain: the work of a task is far above a thread's start
_LEAST_BYTES = 1 << 20  # of the triad: below, the start of the threads would be what is measured


@dataclass(frozen=True)
class Probe:
    """A kernel of known work: its module, the arrays it takes, and what one call does."""

    module: IRModule
    shapes: list[tuple[int, ...]]
    flops: int
    bytes: int


def peak(processor: Processor) -> Probe:
    """Chains of multiply-adds: half of the vector registers on each core, no memory.

    The running product a = a x + a is one fused multiply-add that depends on the last one; half of
    the registers as independent chains hide its latency. With x = 0 it stays at one.
    """
    from needle_tvm._tvm import Schedule, te, tirx

    chains, lanes = processor.registers // 2, processor.lanes
    tasks = processor.cores
    x = te.placeholder((lanes,), name="x")
    step = te.reduce_axis((0, _STEPS), name="step")
    product = te.comm_reducer(
        lambda a, b: a * b + a, lambda dtype: tirx.const(1.0, dtype), name="product"
    )
    # The value must look as if it changed from step to step, or there would be nothing to repeat.
    out = te.compute(
        (tasks, chains, lanes), lambda t, c, i: product(x[i], axis=step), name="chains"
    )
    sch = Schedule(te.create_prim_func([x, out]))
    block = sch.get_sblock("chains")
    local = sch.cache_write(block, 0, "local")
    task, chain, lane = sch.get_loops(local)
    sch.parallel(task)
    sch.unroll(chain)
    sch.vectorize(lane)
    sch.compute_at(block, task)
    *_, chain, lane, steps = sch.get_loops(block)
    sch.reorder(steps, chain, lane)
    sch.unroll(chain)
    sch.vectorize(lane)
    sch.decompose_reduction(block, steps)
    shapes: list[tuple[int, ...]] = [(lanes,), (tasks, chains, lanes)]
    return Probe(sch.mod, shapes, 2 * _STEPS * tasks * chains * lanes, 0)


def triad(processor: Processor, working_set: int) -> Probe:
    """a = b + s c over three arrays of `working_set` bytes together (1 MiB at least)."""
    from needle_tvm._tvm import Schedule, te

    lanes = processor.lanes
    unit = processor.cores * lanes * 8
    extent = -(-max(working_set, _LEAST_BYTES) // 12 // unit) * unit
    b = te.placeholder((extent,), name="b")
    c = te.placeholder((extent,), name="c")
    a = te.compute((extent,), lambda i: b[i] + c[i] * 3.0, name="a")
    sch = Schedule(te.create_prim_func([b, c, a]))
    (i,) = sch.get_loops(sch.get_sblock("a"))
    task, _, unrolled, lane = sch.split(i, [processor.cores, None, 4, lanes])
    sch.parallel(task)
    sch.unroll(unrolled)
    sch.vectorize(lane)
    return Probe(sch.mod, [(extent,)] * 3, 2 * extent, 12 * extent)


def limits(
    workload: Workload, size: Size, gigaflops: float, gigabytes: float, **_: Any
) -> Roofline:
    """The roofline of a workload at a size from the measured limits."""
    arithmetic = workload.flops(size) / (gigaflops * 1e9)
    traffic = workload.bytes(size) / (gigabytes * 1e9)
    bound = "arithmetic" if arithmetic >= traffic else "memory"
    return Roofline(gigaflops, gigabytes, max(arithmetic, traffic), bound)
