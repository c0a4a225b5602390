"""Measure this machine's limits, and give a lower bound on the time of a function of known work.

`kernel_lab.roofline` and `bench.cpu.kernels` compare kernels with these limits. The model is from
S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for
multicore architectures" (CACM 2009). Arithmetic is measured with multiply-adds in registers, and
traffic with STREAM's triad (J. McCalpin), a = b + s c.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from needle_tvm.errors import TuningError

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule, PrimFunc

WORKING_SETS = (1 << 18, 1 << 22, 1 << 26)  # bytes: an L2 cache, an L3 cache, memory

_STEPS = 1 << 16  # steps of an accumulator's chain: far more work than starting a thread
_LEAST_BYTES = 1 << 22  # least bytes that one call of the triad moves, for the same reason
_BLOCKS, _BLOCK_SECONDS = 12, 0.012  # timed blocks of each probe; the probes alternate


@dataclass(frozen=True)
class Probe:
    """A kernel of known work: module, shapes of its float32 arrays, and the work of one call."""

    module: IRModule
    shapes: list[tuple[int, ...]]
    flops: int
    bytes: int


@dataclass(frozen=True)
class Limits:
    """The peak rates of a machine with `threads` threads.

    `gigaflops` is float32 GFLOP/s (a multiply-add counts as two). `gigabytes` maps a working set in
    bytes to the triad's GB/s.
    """

    threads: int
    gigaflops: float
    gigabytes: Mapping[int, float]

    def __post_init__(self) -> None:
        for rate in (self.gigaflops, *self.gigabytes.values()):
            if not (math.isfinite(rate) and rate > 0):
                raise ValueError(f"limits: a rate of {rate}: must be above 0 and finite")
        if not self.gigabytes or min(self.gigabytes) < 1:
            sizes = list(self.gigabytes)
            raise ValueError(
                f"limits: working sets {sizes}: there must be at least one, of 1 byte or more"
            )

    def bandwidth(self, working_set: float) -> float:
        """Return the triad's GB/s for the measured working set nearest to this one by ratio."""
        size = math.log(max(working_set, 1))
        return self.gigabytes[min(self.gigabytes, key=lambda known: abs(math.log(known) - size))]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for `from_json`."""
        rates = [[size, rate] for size, rate in sorted(self.gigabytes.items())]
        return {"threads": self.threads, "gigaflops": self.gigaflops, "gigabytes": rates}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Limits:
        """Build the limits from `to_json`'s values. Raises ValueError for anything else."""
        try:
            rates = {int(size): float(rate) for size, rate in value["gigabytes"]}
            return cls(int(value["threads"]), float(value["gigaflops"]), rates)
        except (KeyError, TypeError) as error:
            raise ValueError(f"limits: {value!r} is not from to_json: {error!r}") from error


def floor(limits: Limits, flops: float, bytes: float) -> float:
    """Return a lower bound on the seconds that this work takes, from its arithmetic and its
    traffic.

    The bound is only as good as the two figures; `work` says what they count.
    """
    return max(flops / limits.gigaflops, bytes / limits.bandwidth(bytes)) / 1e9


def work(function: PrimFunc) -> tuple[int, int]:
    """Return (operations, bytes) of an unscheduled PrimFunc.

    Operations are TVM's estimate: every arithmetic operation of every loop iteration as written. It
    counts multiplications by padding's zeros and the comparisons that detect padding, which a
    schedule may skip, so such a function can run faster than its `floor`. Bytes are compulsory
    traffic: every parameter once, whether read or written; temporaries do not count.

    Raises TuningError if an extent is not a number, or if TVM cannot estimate the body.
    """
    from needle_tvm.tir.functions import estimate_flops, parameter_bytes

    return estimate_flops(function), sum(parameter_bytes(function))


def peak(cores: int, registers: int, lanes: int) -> Probe:
    """Build a probe of arithmetic: chains of multiply-adds on every core, without memory traffic.

    `lanes` is the number of float32 values in a register. The step a = a x + a is one fused
    multiply-add that depends on the previous one; independent chains in half of the vector
    registers hide its latency. With x = 0, a stays 1.
    """
    from needle_tvm._tvm.names import Schedule, te, tirx

    chains = registers // 2
    x = te.placeholder((lanes,), name="x")
    step = te.reduce_axis((0, _STEPS), name="step")
    product = te.comm_reducer(
        lambda a, b: a * b + a, lambda dtype: tirx.const(1.0, dtype), name="product"
    )
    # The value must seem to change at every step, or the compiler would drop the repetition.
    out = te.compute(
        (cores, chains, lanes), lambda t, c, i: product(x[i], axis=step), name="chains"
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
    shapes: list[tuple[int, ...]] = [(lanes,), (cores, chains, lanes)]
    return Probe(sch.mod, shapes, 2 * _STEPS * cores * chains * lanes, 0)


def triad(cores: int, lanes: int, working_set: int) -> Probe:
    """Build a probe of a = b + s c over three arrays of `working_set` bytes in all, split by core.

    A call passes over small arrays many times, with a different s each time, so that it measures
    their bandwidth and not the cost of starting the threads.
    """
    from needle_tvm._tvm.names import Schedule, te, tirx

    unit = lanes * 4
    part = -(-working_set // (12 * cores * unit)) * unit
    passes = -(-_LEAST_BYTES // (12 * cores * part))
    b = te.placeholder((cores, part), name="b")
    c = te.placeholder((cores, part), name="c")
    s = te.placeholder((passes,), name="s")
    number = te.reduce_axis((0, passes), name="number")
    last = te.comm_reducer(lambda old, new: new, lambda dtype: tirx.const(0.0, dtype), name="last")
    a = te.compute(
        (cores, part), lambda t, i: last(b[t, i] + c[t, i] * s[number], axis=number), name="a"
    )
    sch = Schedule(te.create_prim_func([b, c, s, a]))
    block = sch.get_sblock("a")
    task, i, passing = sch.get_loops(block)
    _, unrolled, lane = sch.split(i, [None, 4, lanes])
    sch.reorder(passing, *sch.get_loops(block)[1:4])
    sch.parallel(task)
    sch.unroll(unrolled)
    sch.vectorize(lane)
    extent = cores * part
    shapes: list[tuple[int, ...]] = [(cores, part)] * 2 + [(passes,), (cores, part)]
    return Probe(sch.mod, shapes, 2 * extent * passes, 12 * extent * passes)


def probe(request: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the limits in about a second; a service function.

    The request holds `threads`, or a `target` whose `num-cores` is that number. The probes are
    compiled for the target if given, else for this machine. Returns the values of `Limits.to_json`.
    The kernels are timed in alternating blocks, and the fastest block of each counts: a limit is
    not an average, and other work that runs for a moment slows only one block. Run this function in
    a separate process, because TVM reads the number of its threads once.

    Raises TuningError if this process's thread pool has a different number of threads.
    """
    description = request.get("target")
    threads = request.get("threads") if description is None else description.get("num-cores")
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise TuningError(f"probe: threads={threads!r}: must be a whole number of at least 1")
    from needle_runtime.process.threads import configure_tvm_threads

    configure_tvm_threads(threads)
    from needle_tvm._tvm.names import make_target, pool_threads
    from needle_tvm.target.info import target_info
    from needle_tvm.target.spec import resolve

    if pool_threads() != threads:
        raise TuningError(
            f"probe: threads={threads}: this process's pool already has {pool_threads()} threads"
        )
    if description is None:
        target = resolve("cpu", threads).to_tvm()
    else:
        target = make_target(dict(description))
    machine = target_info(target)
    registers, lanes = machine.vectors.number, machine.lanes("float32")
    probes = [peak(threads, registers, lanes)]
    probes += [triad(threads, lanes, size) for size in WORKING_SETS]
    seconds = _fastest([_compiled(probe, target) for probe in probes])
    rates = [(p.bytes or p.flops) / s / 1e9 for p, s in zip(probes, seconds, strict=True)]
    return Limits(threads, rates[0], dict(zip(WORKING_SETS, rates[1:], strict=True))).to_json()


def _compiled(probe: Probe, target: Any) -> Callable[[], object]:
    import numpy as np

    from needle_runtime.memory import aligned_copy
    from needle_tvm._tvm.names import tvm

    function = tvm.tirx.build(probe.module, target=target)["main"]
    arrays = [aligned_copy(np.zeros(shape, np.float32)) for shape in probe.shapes]
    tensors = [tvm.runtime.from_dlpack(array) for array in arrays]
    return lambda: function(*tensors)


def _fastest(calls: list[Callable[[], object]]) -> list[float]:
    """Return the seconds per call of each function's fastest block."""
    fastest = []
    for call in calls:
        call()  # starts the thread pool and touches the pages
        fastest.append(_block(call, 1))
    for _ in range(_BLOCKS):
        for index, call in enumerate(calls):
            count = max(1, int(_BLOCK_SECONDS / fastest[index]))
            fastest[index] = min(fastest[index], _block(call, count))
    return fastest


def _block(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in itertools.repeat(None, count):
        call()
    return max((time.perf_counter() - start) / count, 1e-9)
