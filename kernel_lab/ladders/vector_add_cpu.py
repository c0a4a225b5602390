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
    """Run one loop on one thread: two loads, an addition, a store.

    Twelve bytes move for one operation, so memory sets the time, whatever the schedule. LLVM
    vectorises such a plain loop by itself.

    Picture: Three lines: both vectors are read and the result is written, each once, front to back.
    """


@ladder.rung(expected=(0.9, 1.1))
def vectorise(sch: Schedule, case: Case) -> Any:
    """Vectorise sixteen elements at a time in the schedule.

    This is hardly faster: the compiler already did it, and vectors wait for memory anyway.

    Prediction: 1, since LLVM's loop has the same vectors, and 12 bytes for each addition are moved
    either way.

    Picture: A step has as many elements as a vector has lanes; the path through memory is the same.
    """
    (i,) = sch.get_loops(sch.get_sblock("c"))
    outer, lane = sch.split(i, [None, case.processor.lanes])
    sch.vectorize(lane)
    return outer


@ladder.rung(
    expected=(1.5, 2),
    explained="two cores have twice the second-level cache, 2 MiB of the 12 MiB of vectors, so a "
    "part of the data may still be there from the call before. That would explain a factor "
    "above 2, but it was not traced",
)
def parallel(sch: Schedule, case: Case) -> Any:
    """Give each thread one stretch of the vectors.

    One core alone cannot request as many cache lines at a time as memory can deliver.

    Prediction: two cores have twice as many cache lines in flight, so 2 at best, and less if the
    third-level cache, which both share, is the limit first.

    Picture: Each worker has half of each vector.
    """
    (i,) = sch.get_loops(sch.get_sblock("c"))
    task, rest, lane = sch.split(i, [case.processor.cores, None, case.processor.lanes])
    sch.parallel(task)
    sch.vectorize(lane)
    return rest


@ladder.rung(kind="failed", expected=(0.9, 1.05))
def unroll(sch: Schedule, case: Case) -> None:
    """FAILS: take four vectors in each iteration of the loop.

    A loop counter costs nothing compared with a load that waits for memory.

    Prediction: a vector of 16 additions has 8 cycles at the speed of `parallel`, since memory sets
    the time. A counter and a jump, 2 of its 5 or 6 instructions, are saved three times out of four,
    but a core starts 6 instructions per cycle anyway.
    """
    rest = parallel(sch, case)
    _, inner = sch.split(rest, [None, UNROLL])
    sch.unroll(inner)


@ladder.rung(
    kind="failed",
    after=parallel,
    expected=(0.5, 1),
    explained="starting a task in TVM's pool costs less than reading the memory that the task works"
    " on, so it hides behind the loads (Zen 4, 2 cores)",
)
def small_tasks(sch: Schedule, case: Case) -> None:
    """FAILS: make each vector of sixteen a separate task.

    TVM hands each thread one stretch of tasks, so there is no queue of 65,536 entries. But the
    compiler cannot optimise across the loop over a thread's tasks.

    Prediction: a vector of 16 additions takes a thread 8 cycles at the speed of `parallel`, since
    memory sets the time. A task of its own costs another 8 cycles at most, or nothing if it hides
    behind the loads.
    """
    sch.parallel(vectorise(sch, case))
