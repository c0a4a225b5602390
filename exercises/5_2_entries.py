"""5.2: how often the workers are woken in a product of 128 x 96 x 16, in tiles of 32 x 32 with 4
steps of k, if they share one of these loops:

the second (columns of tiles), the fourth (rows within a tile).
"""

from kernel_lab import show
from kernel_lab.workload import Processor

entries_second = ...
entries_fourth = ...


def entries(level):
    def tiles(sch, case):
        c = sch.get_sblock("C")
        i, j, k = sch.get_loops(c)
        i_outer, i_inner = sch.split(i, [None, 32])
        j_outer, j_inner = sch.split(j, [None, 32])
        k_outer, k_inner = sch.split(k, [None, 4])
        sch.reorder(i_outer, j_outer, k_outer, i_inner, k_inner, j_inner)
        sch.vectorize(j_inner)
        sch.parallel(sch.get_loops(c)[level])

    shown = show(tiles, size={"M": 128, "N": 96, "K": 16}, processor=Processor(cores=2))
    return len(shown.trace.regions)


def check():
    reason = "count the iterations of the loops around it"
    yield entries_second == entries(1), f"entries_second is {entries_second}", reason
    yield entries_fourth == entries(3), f"entries_fourth is {entries_fourth}", reason
