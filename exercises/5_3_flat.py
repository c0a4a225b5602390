"""5.3: a product whose C has 2 rows of 96 columns, on 3 cores.

Keep all three busy, wake them once, and let no two of them store to the same line.
"""

from kernel_lab import show
from kernel_lab.workload import Processor


def flat(sch, case):
    i, j, k = sch.get_loops(sch.get_sblock("C"))  # noqa: RUF059
    ...


def check():
    processor = Processor(cores=3, registers=16, lanes=8)
    mine = show(flat, size={"M": 2, "N": 96, "K": 8}, processor=processor)
    yield mine
    workers = set(mine.trace.worker.tolist())
    yield len(workers) == 3, f"{len(workers)} of 3 workers have something to do"
    woken = len(mine.trace.regions)
    yield woken == 1, f"entries of the parallel loop: {woken}", "must be one"
    stores = mine.trace.of_buffer("C")
    stores = stores.select(stores.is_store)
    lines = stores.address // 64
    several = [
        line for line in set(lines.tolist()) if len(set(stores.worker[lines == line].tolist())) > 1
    ]
    yield not several, f"{len(several)} lines of C are stored to by several workers"
