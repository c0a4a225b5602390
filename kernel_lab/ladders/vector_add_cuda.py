"""Sum of two vectors on a GPU: coalescing, shown on the smallest kernel there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_lab.rung import Ladder
from kernel_lab.workload import Case
from kernel_lab.workloads import vector_add

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

ladder = Ladder(vector_add.VECTOR_ADD, "cuda")

THREADS = 256
EACH = 4


@ladder.rung(expected=(1, 1), kind="naive")
def naive(sch: Schedule, case: Case) -> None:
    """Use blocks of one thread: every warp has 31 idle lanes, every access is its own transaction.

    A multiprocessor holds a few dozen blocks at a time, so no more loads than that are ever in
    flight.
    """
    (i,) = sch.get_loops(sch.get_sblock("c"))
    sch.bind(i, "blockIdx.x")


@ladder.rung(expected=(10, 64))
def threads(sch: Schedule, case: Case) -> None:
    """Use blocks of 256 threads on neighbouring elements: a warp's load is a run of 128 bytes."""
    (i,) = sch.get_loops(sch.get_sblock("c"))
    block, thread = sch.split(i, [None, THREADS])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


@ladder.rung(expected=(1.0, 1.3))
def vector_loads(sch: Schedule, case: Case) -> None:
    """Access four elements, 16 bytes, at a time in each thread: a quarter of the instructions.

    Memory was already the limit, so little is left to gain.
    """
    (i,) = sch.get_loops(sch.get_sblock("c"))
    block, thread, lane = sch.split(i, [None, THREADS, EACH])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(lane)


@ladder.rung(kind="failed", after=threads, expected=(0.1, 0.8))
def uncoalesced(sch: Schedule, case: Case) -> None:
    """FAILS: each thread walks 32 elements of its own, as a thread of a CPU would.

    At each step the lanes of a warp are 128 bytes apart: 32 transactions instead of four, and only
    the caches keep the traffic from growing eightfold.
    """
    (i,) = sch.get_loops(sch.get_sblock("c"))
    block, thread, _ = sch.split(i, [None, THREADS, 32])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
