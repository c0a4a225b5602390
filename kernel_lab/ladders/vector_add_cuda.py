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

    Picture: Each panel is one *request*: an instruction of one warp that loads or stores. Memory
    moves *sectors* of 32 bytes. The single bar is the 4 bytes of thread 0, the only part of the
    sector that is used.
    """
    (i,) = sch.get_loops(sch.get_sblock("c"))
    sch.bind(i, "blockIdx.x")


@ladder.rung(expected=(20, 32))
def threads(sch: Schedule, case: Case) -> None:
    """Use blocks of 256 threads on neighbouring elements: a warp loads 128 contiguous bytes.

    Prediction: an A100's multiprocessor needs 6,127 bytes in flight (10.2 bytes per cycle for 600
    cycles). In `naive`, 32 threads with two loads each have 256 in flight, a 24th. Now 2,048
    threads have more than enough. The lanes alone would give a factor of 32.

    Picture: The staircase has no gaps: a request is 4 sectors, and every byte of them is used. Such
    an access is *coalesced*.
    """
    (i,) = sch.get_loops(sch.get_sblock("c"))
    block, thread = sch.split(i, [None, THREADS])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


@ladder.rung(expected=(1, 1.1))
def vector_loads(sch: Schedule, case: Case) -> None:
    """Access four elements, 16 bytes, at a time in each thread: a quarter of the instructions.

    Memory was already the limit, so little is left to gain.

    Prediction: the bytes are the same, and 16 KiB were in flight where 6 are enough; there are a
    quarter as many requests.

    Picture: A bar is 16 bytes long, and a request is 16 sectors. An element still costs the same
    sectors.
    """
    (i,) = sch.get_loops(sch.get_sblock("c"))
    block, thread, lane = sch.split(i, [None, THREADS, EACH])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(lane)


@ladder.rung(kind="failed", after=threads, expected=(0.13, 0.38))
def uncoalesced(sch: Schedule, case: Case) -> None:
    """FAILS: each thread walks 32 elements of its own, as a thread of a CPU would.

    At each step the lanes of a warp are 128 bytes apart: 32 transactions instead of four, and only
    the caches keep the traffic from growing eightfold.

    Prediction: 2,048 threads use 3 sectors each, 192 KiB at a time, which fills a first-level cache
    of 192 KiB. So a sector is fetched again for each of its elements: eight times as many bytes.
    That is 0.125 times the speed if they come from memory, and three times that if the second-level
    cache delivers them.

    Picture: The threads are 128 bytes apart, in 32 sectors, and each request uses 4 bytes of each
    sector. (A dashed vertical line is a gap in memory.) What matters is where the threads of a warp
    are at the same time, not where one thread goes later.
    """
    (i,) = sch.get_loops(sch.get_sblock("c"))
    block, thread, _ = sch.split(i, [None, THREADS, 32])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
