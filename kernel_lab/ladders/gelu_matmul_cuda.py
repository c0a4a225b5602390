"""A matmul with bias and GELU on a GPU: one kernel instead of three."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_lab.ladders import gemm_cuda
from kernel_lab.rung import Ladder
from kernel_lab.workload import Case
from kernel_lab.workloads import gelu_matmul

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

ladder = Ladder(gelu_matmul.GELU_MATMUL, "cuda")


@ladder.rung(expected=(1, 1), kind="naive", claims=gemm_cuda.bands_fit)
def naive(sch: Schedule, case: Case) -> None:
    """Launch three kernels of 16 x 16 threads per block: the matmul, the bias, GELU.

    Between them, C goes to global memory and back twice.

    Picture: The matmul comes first. Then C is loaded and `shifted` is stored, once each. The wide
    field at the right is `shifted`, which the formula of GELU uses 22 times; in the machine code
    there is one load.
    """
    gemm_cuda.square(sch, row="threadIdx.y", column="threadIdx.x")
    for name in ("shifted", "out"):
        i, j = sch.get_loops(sch.get_sblock(name))
        gemm_cuda.bind_square(sch, i, j, row="threadIdx.y", column="threadIdx.x")


@ladder.rung(expected=(1, 1.02))
def fuse(sch: Schedule, case: Case) -> None:
    """Compute bias and GELU in one kernel after the matmul: one launch instead of two, and one
    fewer pass over C.

    Prediction: 4 MiB less to and from memory save 2.7 microseconds on an A100, and the launch as
    much again. At this rung, the matmul takes a millisecond.

    Picture: `shifted` is gone. At the right, C and the bias are loaded 22 times in its place; nvcc
    computes the same expression only once.
    """
    sch.compute_inline(sch.get_sblock("shifted"))
    gemm_cuda.square(sch, row="threadIdx.y", column="threadIdx.x")
    i, j = sch.get_loops(sch.get_sblock("out"))
    gemm_cuda.bind_square(sch, i, j, row="threadIdx.y", column="threadIdx.x")


@ladder.rung(expected=(3.5, 10), claims=gemm_cuda.deep_tiles)
def fuse_into_tile(sch: Schedule, case: Case) -> None:
    """Use the register tiles of `vector_loads` in `gemm`, and apply bias and GELU as results leave
    the registers.

    There is one kernel, and C itself is never written. Most of the gain comes from the matmul's
    tiles. The trace reports bank conflicts of two turns, because TVM's loops load one element at a
    time. nvcc joins four of these loads into one of 16 bytes, which has no conflict (its PTX has 32
    such loads and no others).

    Prediction: the gains of `shared_memory`, `register_tile` and `vector_loads` in `gemm` together:
    about 1.8 x 3 x 1.1. Not writing and reading C saves another 2 % of the matmul's minimum time.

    Picture: There is no panel for C. A, B and the bias are loaded, and the result is stored, with
    16 bytes per thread and in full sectors.
    """
    sch.compute_inline(sch.get_sblock("shifted"))
    c, k_outer = gemm_cuda.tiled(sch, 2 * gemm_cuda.STEP, vector=4, result="out")
    sch.decompose_reduction(c, k_outer)
