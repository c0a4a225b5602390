"""C = A B of halves: float16 or bfloat16 matrices, sums in float32, results rounded once."""

from __future__ import annotations

from typing import Any

from kernel_lab.workload import Case, Workload
from kernel_lab.workloads import gemm


def _workload(name: str, dtype: str) -> Workload:
    def define(case: Case) -> list[Any]:
        """S[i, j] = sum over k of A[i, k] B[k, j] in float32, C the same rounded."""
        from needle_tvm._tvm.names import te

        m, n, k = case["M"], case["N"], case["K"]
        a = te.placeholder((m, k), dtype, name="A")
        b = te.placeholder((k, n), dtype, name="B")
        r = te.reduce_axis((0, k), name="k")

        def term(i: Any, j: Any) -> Any:
            return a[i, r].astype("float32") * b[r, j].astype("float32")

        s = te.compute((m, n), lambda i, j: te.sum(term(i, j), axis=r), name="S")
        c = te.compute((m, n), lambda i, j: s[i, j].astype(dtype), name="C")
        return [a, b, c]

    return Workload(
        name=name,
        title=f"matrix product, {dtype}",
        summary=f"C = A B, A of M x K and B of K x N, {dtype}",
        sizes={"cuda": ({"M": 4096, "N": 4096, "K": 4096}, {"M": 8192, "N": 8192, "K": 8192})},
        define=define,
        reference=gemm.reference,
        shapes=gemm.shapes,
        flops=gemm.GEMM.flops,
        terms=gemm.GEMM.terms,
        dtype=dtype,
    )


GEMM_F16 = _workload("gemm_f16", "float16")
GEMM_BF16 = _workload("gemm_bf16", "bfloat16")
