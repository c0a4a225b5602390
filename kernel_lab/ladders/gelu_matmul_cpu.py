"""A matmul with bias and GELU on a CPU: what fusing the epilogue gains at each step."""

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
    """Run three stages one after the other, none scheduled: matmul, bias, GELU.

    The matmul, which reads down the columns of B, takes nearly all of the time.
    """


@ladder.rung(expected=(0.95, 1.1))
def fuse(sch: Schedule, case: Case) -> None:
    """Compute bias and GELU in one loop, without the array of sums between them.

    This saves one pass over M N values, a megabyte. The matmul takes a hundred times longer.
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


@ladder.rung(kind="rewrite", after=fuse, expected=(100, 2000), define=define_over_tiles)
def best_product(sch: Schedule, case: Case) -> None:
    """Use the last rung of `gemm` for the matmul; bias and GELU each stay a loop over all of C.

    Now the epilogue shows: two passes over C on one thread, one of them with a rational function
    for every value.
    """
    gemm_cpu.cache_block(sch, case)


@ladder.rung(expected=(1.1, 3))
def parallel_epilogue(sch: Schedule, case: Case) -> None:
    """Compute bias and GELU in one loop, in vectors and on all threads, but after the whole matmul.

    The epilogue's time is divided by the number of cores and lanes; C is still read back.
    """
    gemm_cpu.cache_block(sch, case)
    sch.compute_inline(sch.get_sblock("shifted"))
    i, j = sch.get_loops(sch.get_sblock("out"))
    _, lane = sch.split(j, [None, case.processor.lanes])
    sch.parallel(i)
    sch.vectorize(lane)


@ladder.rung(expected=(1.0, 1.5))
def fuse_into_tile(sch: Schedule, case: Case) -> None:
    """Apply GELU(x + bias) to a tile of C as it leaves the registers.

    C is written once and never read back, and the threads meet once instead of twice. A library's
    separate calls cannot do this.
    """
    for name in ("C", "shifted"):
        sch.compute_inline(sch.get_sblock(name))
    gemm_cpu.blocked(sch, "out")
