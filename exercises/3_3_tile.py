"""3.3: write a tile for a cache of 2 KiB: at most 900 misses for a product of 64 x 64 x 16."""

from kernel_lab import show
from kernel_lab.workload import Processor


def small_tile(sch, case):
    i, j, k = sch.get_loops(sch.get_sblock("C"))  # noqa: RUF059
    ...


def check():
    one_core = Processor(cores=1, registers=16, lanes=8)
    mine = show(small_tile, size={"M": 64, "N": 64, "K": 16}, processor=one_core)
    yield mine
    yield mine.misses(2048) <= 900, f"{mine.misses(2048):,} misses", "more than 900"
