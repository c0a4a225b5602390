"""Sum of two vectors on a CPU: threads and vectors, and why neither helps much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_lab.rung import Ladder
from kernel_lab.workload import Case
from kernel_lab.workloads import vector_add

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

ladder = Ladder(vector_add.VECTOR_ADD, "cpu")

UNROLL = 4


@ladder.rung(expected=(1, 1), kind="naive")
def naive(sch: Schedule, case: Case) -> None:
    """One loop on one thread: two loads, an addition, a store.

    Twelve bytes move for one operation, so memory sets the time, whatever the schedule. LLVM
    vectorises such a plain loop by itself.
    """


@ladder.rung(expected=(0.9, 1.3))
def vectorise(sch: Schedule, case: Case) -> Any:
    """Vectorise sixteen elements at a time in the schedule.

    This is hardly faster: the compiler already did it, and vectors wait for memory anyway.
    """
    (i,) = sch.get_loops(sch.get_sblock("c"))
    outer, lane = sch.split(i, [None, case.processor.lanes])
    sch.vectorize(lane)
    return outer


@ladder.rung(expected=(1.2, 2))
def parallel(sch: Schedule, case: Case) -> Any:
    """Give each thread one stretch of the vectors.

    One core alone cannot request as many cache lines at a time as memory can deliver.
    """
    (i,) = sch.get_loops(sch.get_sblock("c"))
    task, rest, lane = sch.split(i, [case.processor.cores, None, case.processor.lanes])
    sch.parallel(task)
    sch.vectorize(lane)
    return rest


@ladder.rung(kind="failed", expected=(0.8, 1.1))
def unroll(sch: Schedule, case: Case) -> None:
    """FAILS: take four vectors in each iteration of the loop.

    A loop counter costs nothing compared with a load that waits for memory.
    """
    rest = parallel(sch, case)
    _, inner = sch.split(rest, [None, UNROLL])
    sch.unroll(inner)


@ladder.rung(kind="failed", after=parallel, expected=(0.05, 0.9))
def small_tasks(sch: Schedule, case: Case) -> None:
    """FAILS: make each vector of sixteen a task of its own.

    TVM hands each thread one stretch of tasks, so there is no queue of 65,536 entries. But the
    compiler cannot optimise across the loop over a thread's tasks.
    """
    sch.parallel(vectorise(sch, case))
