"""Matrix products of halves on a GPU: Hopper's `wgmma`, step by step (`kernel_lab.wgmma`).

The same ladder for float16 and bfloat16. The figures in the reasons are those of an H100 SXM: 132
multiprocessors, 989 TFLOP/s dense at 1.83 GHz, so 2,048 multiply-adds a cycle for each, and 128
cycles for a product of 64 x 256 x 16. They are arithmetic, not measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel_lab.ladders import gemm_cuda
from kernel_lab.rung import Ladder
from kernel_lab.workload import Case, Size, Workload
from kernel_lab.workloads.gemm_half import GEMM_BF16, GEMM_F16

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule, Schedule

BLOCKS = 132  # multiprocessors of an H100 or H200 SXM; on others the grid is right, but uneven
_ARCHITECTURE = "sm_90a"


def aligned_rows(size: Size) -> str | None:
    """The claim of the copy engine: rows of whole 16 bytes. Tiles need not fit."""
    return gemm_cuda.multiples(size, N=8, K=8)


def _product(case: Case, dtype: str, **choices: Any) -> IRModule:
    from kernel_lab import wgmma

    return wgmma.module(case["M"], case["N"], case["K"], dtype, wgmma.Plan(**choices))


def _ladder(workload: Workload) -> Ladder:
    ladder, dtype = Ladder(workload, "cuda"), workload.dtype

    def kernel(low: float, high: float) -> Callable[[Callable[[Case], Any]], Any]:
        return ladder.rung(
            kind="kernel", expected=(low, high), claims=aligned_rows, needs=_ARCHITECTURE
        )

    @ladder.rung(kind="naive", expected=(1, 1), claims=gemm_cuda.bands_fit)
    def naive(sch: Schedule, case: Case) -> None:
        """A thread for each result, 16 x 16 in a block, neighbours reading neighbours of B.

        Two halves are loaded from memory, or its caches, for each multiply-add.
        """
        write = sch.get_sblock("C")
        i, j = sch.get_loops(write)
        gemm_cuda.bind_square(sch, i, j, "threadIdx.y", "threadIdx.x")
        sums = sch.get_sblock("S")
        sch.compute_at(sums, sch.get_loops(write)[-1])
        sch.set_scope(sums, 0, "local")

    @kernel(30, 300)
    def wgmma_tile(case: Case) -> IRModule:
        """Blocks of 128 x 128 results by `wgmma`, tiles copied by the TMA, the next one ahead.

        A step of 64 of k takes 512 cycles of arithmetic, and a copy 600 and more until it has come.
        The registers of a multiprocessor are enough for one block, so nobody else does anything
        while it waits.
        """
        return _product(case, dtype, columns=128, stages=2)

    @kernel(1.1, 2)
    def wgmma_pipeline(case: Case) -> IRModule:
        """Four stages of shared memory: the producer is up to three tiles ahead of the consumers.

        Three tiles' arithmetic is 1,536 cycles, more than a copy takes to come.
        """
        return _product(case, dtype, columns=128, stages=4)

    @kernel(1.05, 1.6)
    def wgmma_wide(case: Case) -> IRModule:
        """Blocks of 128 x 256: a warpgroup sums 64 x 256, 128 registers of each thread.

        An instruction of 64 x 256 x 16 reads 10 kB of shared memory in 128 cycles, of 16 kB that
        there could be; two of 64 x 128 read 12. A byte from the L2 serves 85 operations where it
        served 64.
        """
        return _product(case, dtype, columns=256, stages=4)

    @kernel(1.0, 1.3)
    def wgmma_persistent(case: Case) -> IRModule:
        """One block for each multiprocessor, which goes on to the next tile by itself.

        The first copies of a tile are under way while the last one's results are written, which
        takes about 3 microseconds beside the 36 of its arithmetic where K = 4096. Blocks walk down
        16 rows of tiles before the next column: 132 of them then read 16 strips of A and 9 of B,
        instead of 9 and 16 of those that are twice as wide.
        """
        return _product(case, dtype, columns=256, stages=4, blocks=BLOCKS, group=16)

    @kernel(1.0, 1.2)
    def wgmma_cluster(case: Case) -> IRModule:
        """Clusters of two blocks that share the columns of B: each loads half, for both.

        A byte from the L2 serves 128 operations, 7.7 TB/s at full rate. What it costs is that a
        stage is free only when both blocks have read it.
        """
        return _product(case, dtype, columns=256, stages=4, blocks=BLOCKS, cluster=2, group=8)

    return ladder


ladders = (_ladder(GEMM_F16), _ladder(GEMM_BF16))
