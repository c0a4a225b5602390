"""C = A B for 8-bit integers with 32-bit sums: the product of a quantised layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_lab.workload import Array, Case, Size, Workload
from kernel_lab.workloads import gemm

# The most terms whose sum fits into 32 bits in every rung; in some rungs, products reach 255 x 128,
# which is below 2^15.
_LONGEST = 1 << 16


def define(case: Case) -> list[Any]:
    """Define C[i, j] = sum over k of A[i, k] B[k, j], each element widened to 32 bits first."""
    from needle_tvm._tvm.names import te

    m, n, k = case["M"], case["N"], case["K"]
    a = te.placeholder((m, k), name="A", dtype="int8")
    b = te.placeholder((k, n), name="B", dtype="int8")
    r = te.reduce_axis((0, k), name="k")

    def term(i: Any, j: Any) -> Any:
        return te.sum(a[i, r].astype("int32") * b[r, j].astype("int32"), axis=r)

    return [a, b, te.compute((m, n), term, name="C")]


def reference(size: Size, inputs: Sequence[Array]) -> Array:
    a, b = (array.astype(np.float64) for array in inputs)  # exact: sums stay far below 2^53
    return np.asarray((a @ b).astype(np.int32))


def limits(size: Size) -> str | None:
    if size["K"] > _LONGEST:
        return f"K must be at most {_LONGEST:,}: longer sums may not fit into 32 bits"
    return None


INT8_GEMM = Workload(
    name="int8_gemm",
    title="8-bit matrix product",
    summary="C = A B with int8 A (M x K) and B (K x N), and int32 sums",
    sizes={"cpu": ({"M": 512, "N": 512, "K": 512}, {"M": 1024, "N": 1024, "K": 1024})},
    dtypes=("int8", "int8", "int32"),
    drawn=gemm.GEMM.drawn,
    define=define,
    reference=reference,
    shapes=gemm.shapes,
    flops=gemm.GEMM.flops,
    terms=gemm.GEMM.terms,
    limits=limits,
)
