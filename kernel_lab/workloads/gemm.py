"""C = A B: matmul of float32 matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_lab.workload import Array, Case, Published, Size, Workload

_T4 = "Tesla T4 (Colab), from the document"
_COLAB = "Colab GPU, from the document"
_V100 = "Tesla V100, from the document"
_UNNAMED = "a CPU the document does not name"


def define(case: Case) -> list[Any]:
    """Define C[i, j] = sum over k of A[i, k] B[k, j]."""
    from needle_tvm._tvm.names import te

    m, n, k = case["M"], case["N"], case["K"]
    a = te.placeholder((m, k), name="A")
    b = te.placeholder((k, n), name="B")
    r = te.reduce_axis((0, k), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    return [a, b, c]


def reference(size: Size, inputs: Sequence[Array]) -> Array:
    a, b = inputs
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64))


def shapes(size: Size) -> list[tuple[int, ...]]:
    m, n, k = size["M"], size["N"], size["K"]
    return [(m, k), (k, n), (m, n)]


GEMM = Workload(
    name="gemm",
    title="matrix product",
    summary="C = A B with A (M x K) and B (K x N)",
    sizes={
        "cpu": ({"M": 512, "N": 512, "K": 512}, {"M": 1024, "N": 1024, "K": 1024}),
        "cuda": (
            {"M": 1024, "N": 512, "K": 2048},
            {"M": 2048, "N": 2048, "K": 2048},
            {"M": 4096, "N": 4096, "K": 4096},
        ),
    },
    drawn=lambda size: {"M": 16, "N": 16, "K": 8},
    define=define,
    reference=reference,
    shapes=shapes,
    flops=lambda size: 2 * size["M"] * size["N"] * size["K"],
    terms=lambda size: int(size["K"]),
    published={
        "cpu": (
            Published("001", "PyTorch, 512^3", 2.45, _UNNAMED, rung="PyTorch"),
            Published("001", "TVM unscheduled, 512^3", 4.20, _UNNAMED, rung="naive"),
            Published(
                "001", "TVM tiled, vectorised, parallel, 512^3", 0.98, _UNNAMED, rung="parallel"
            ),
        ),
        "cuda": (
            Published("002", "naive", 84.52, _T4, rung="naive"),
            Published("002", "1-D threads", 36.98, _T4, rung="threads_1d"),
            Published("002", "2-D threads", 35.50, _T4, rung="threads_2d_rows"),
            Published("002", "shared memory", 8.11, _T4, rung="shared_memory"),
            Published("002", "AutoTVM", 42.56, _T4),
            Published("002", "NumPy (CPU)", 74.95, _T4, rung="NumPy, CPU"),
            Published("002", "PyTorch CPU", 18.74, _T4, rung="PyTorch, CPU"),
            Published("002", "PyTorch CUDA", 0.70, _T4, rung="PyTorch"),
            Published("004", "unoptimised", 88.48, _COLAB, rung="naive"),
            Published("004", "optimised", 6.45, _COLAB, rung="local_copies"),
            Published("001", "PyTorch (cuBLAS), 2048^3", 1.85, _V100, rung="PyTorch"),
            Published("001", "TVM unscheduled, 2048^3", 8.50, _V100, rung="naive"),
            Published("001", "TVM optimised, 2048^3", 2.10, _V100, rung="register_tile"),
        ),
    },
)
