"""A matmul with bias and GELU on a CPU: the gain from fusing the epilogue at each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_lab.ladders import gemm_cpu
from kernel_lab.rung import Ladder
from kernel_lab.workload import Case
from kernel_lab.workloads import gelu_matmul

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

ladder = Ladder(gelu_matmul.GELU_MATMUL, "cpu")


@ladder.rung(expected=(1, 1), kind="naive")
def naive(sch: Schedule, case: Case) -> None:
    """Run three unscheduled stages one after another: matmul, bias, GELU.

    The matmul, which reads down the columns of B, takes nearly all of the time.

    Picture: The staircase is the matmul. At the right are the two sweeps over C.
    """


@ladder.rung(expected=(0.99, 1.02))
def fuse(sch: Schedule, case: Case) -> None:
    """Compute bias and GELU in one loop, without the array of sums between them.

    This saves one pass over M N values, a megabyte. The matmul takes over a thousand times longer
    than that pass.

    Prediction: writing and reading a megabyte takes 0.1 to 0.2 ms, out of 307 ms.

    Picture: `shifted` is gone; the matmul is unchanged.
    """
    sch.compute_inline(sch.get_sblock("shifted"))


def define_over_tiles(case: Case) -> list[Any]:
    """Define the matmul with the panels and tiles of `gemm`, and the epilogue over its tiles."""
    from needle_tvm._tvm.names import te

    a, b, product = gemm_cpu.define_packed(case)
    bias = te.placeholder((case["N"],), name="bias")
    shape = (case["M"], case["N"])
    shifted = te.compute(shape, lambda i, j: product[i, j] + bias[j], name="shifted")
    out = te.compute(shape, lambda i, j: gelu_matmul.gelu(te, shifted[i, j]), name="out")
    return [a, b, bias, out]


@ladder.rung(kind="rewrite", after=fuse, expected=(150, 230), define=define_over_tiles)
def best_product(sch: Schedule, case: Case) -> None:
    """Use the last rung of `gemm` for the matmul; bias and GELU each stay a loop over all of C.

    Now the epilogue shows: two passes over C on one thread, one of them with a rational function
    for every value.

    Prediction: `gemm` measured 1.28 ms instead of 314 for the product, a factor of 245. The
    epilogue stays on one thread: 16,384 vectors of 25 to 150 cycles, depending on how much of it
    LLVM vectorises, are 0.1 to 0.7 ms.

    Picture: The product is a small part at the left. The loops of bias and GELU, which LLVM
    vectorises and the schedule does not, take most of the steps.
    """
    gemm_cpu.cache_block(sch, case)


@ladder.rung(expected=(1.03, 1.5))
def parallel_epilogue(sch: Schedule, case: Case) -> None:
    """Compute bias and GELU in one loop, in vectors and on all threads, but after the whole matmul.

    The epilogue's time is divided by the number of cores and lanes; C is still read back.

    Prediction: the epilogue's 0.1 to 0.7 ms are halved, and one pass over C is saved.

    Picture: C is written by both workers, and then swept by both.
    """
    gemm_cpu.cache_block(sch, case)
    sch.compute_inline(sch.get_sblock("shifted"))
    i, j = sch.get_loops(sch.get_sblock("out"))
    _, lane = sch.split(j, [None, case.processor.lanes])
    sch.parallel(i)
    sch.vectorize(lane)


@ladder.rung(expected=(0.95, 1.05))
def fuse_into_tile(sch: Schedule, case: Case) -> None:
    """Apply GELU(x + bias) to a tile of C as it leaves the registers.

    C is written once and never read back, and the threads meet once instead of twice. A library's
    separate calls cannot do this.

    Prediction: C's megabyte is not written and read again, which saves 20 to 40 of 1,270
    microseconds. But the dozen constants of GELU need registers beside the tile's sums.

    Picture: There is no panel for C: `out` is written once, tile by tile.
    """
    for name in ("C", "shifted"):
        sch.compute_inline(sch.get_sblock(name))
    gemm_cpu.blocked(sch, "out")
