"""One-dimensional convolution of a long signal with a short kernel, like NumPy's `convolve`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_lab.workload import Array, Case, Published, Size, Workload

_XEON = "Colab CPU, from the document"
_T4 = "Tesla T4 (Colab), from the document"
_COLAB = "Colab GPU, from the document"


def first(size: Size) -> int:
    """Return the index in the full convolution of the first element that the mode keeps."""
    return (size["N"] - 1) // 2 if size["mode"] == "same" else 0


def length(size: Size) -> int:
    """Return the number of results: M + N - 1 in mode "full", M in mode "same"."""
    return int(size["M"]) if size["mode"] == "same" else int(size["M"] + size["N"] - 1)


def define(case: Case) -> list[Any]:
    """Define B[n] = sum over k of A[k] W[n - k], with k over every index of the full result.

    Indices outside of A or W contribute nothing; the definition checks them at every single term.
    """
    return define_over(case, case["M"] + case["N"] - 1)


def define_over(case: Case, terms: int) -> list[Any]:
    """Define the convolution with k from 0 up to `terms`, exclusive."""
    from needle_tvm._tvm.names import te, tirx

    m, n, offset = case["M"], case["N"], first(case.size)
    a = te.placeholder((m,), name="A")
    w = te.placeholder((n,), name="W")
    k = te.reduce_axis((0, terms), name="k")

    def term(i: Any) -> Any:
        tap = i + offset - k
        inside = [tap >= 0, tap < n]
        if terms > m:
            inside.append(k < m)
        return te.sum(tirx.if_then_else(tirx.all(*inside), a[k] * w[tap], 0.0), axis=k)

    return [a, w, te.compute((length(case.size),), term, name="B")]


def padded(case: Case, extent: int) -> tuple[Any, Any, Any]:
    """Return signal, kernel, and the zero-padded signal; result i reads padded[i : i + N]."""
    from needle_tvm._tvm.names import te, tirx

    m, n = case["M"], case["N"]
    before = n - 1 - first(case.size)
    a = te.placeholder((m,), name="A")
    w = te.placeholder((n,), name="W")
    copied = te.compute(
        (extent,),
        lambda x: tirx.if_then_else(tirx.all(x >= before, x < m + before), a[x - before], 0.0),
        name="padded",
    )
    return a, w, copied


def reference(size: Size, inputs: Sequence[Array]) -> Array:
    a, w = (array.astype(np.float64) for array in inputs)
    start = first(size)
    return np.asarray(np.convolve(a, w)[start : start + length(size)])


def shapes(size: Size) -> list[tuple[int, ...]]:
    return [(size["M"],), (size["N"],), (length(size),)]


def flops(size: Size) -> int:
    """Count two operations for every pair of a signal element and a kernel element that both
    contribute to a result that the mode keeps."""
    left = first(size)
    right = size["M"] + size["N"] - 1 - length(size) - left
    return int(2 * (size["M"] * size["N"] - left * (left + 1) // 2 - right * (right + 1) // 2))


def limits(size: Size) -> str | None:
    if size["N"] > size["M"]:
        return "the kernel (N) must not be longer than the signal (M)"
    return None


CONV1D = Workload(
    name="conv1d",
    title="1-D convolution",
    summary="B = A * W, a signal of M with a kernel of N; mode full (M + N - 1 results) or same",
    sizes={
        "cpu": ({"M": 4096, "N": 128, "mode": "full"}, {"M": 4096, "N": 128, "mode": "same"}),
        "cuda": ({"M": 16384, "N": 32, "mode": "full"}, {"M": 16384, "N": 32, "mode": "same"}),
    },
    modes=("full", "same"),
    drawn=lambda size: {"M": max(64, 2 * size["N"]), "N": 8},
    define=define,
    reference=reference,
    shapes=shapes,
    flops=flops,
    terms=lambda size: int(size["N"]),
    limits=limits,
    published={
        "cpu": (
            Published("000", "naive", 24.35, _XEON, rung="naive"),
            Published("000", "v0, smaller k", 23.05, _XEON, rung="fewer_terms"),
            Published("000", "v1, parallel", 22.92, _XEON, rung="parallel"),
            Published("000", "v2, vectorised", 16.04, _XEON, rung="vectorise"),
            Published("000", "v3, unrolled", 14.60, _XEON, rung="unroll"),
            Published("000", "v4, refactored", 0.57, _XEON, rung="pad"),
            Published("000", "AutoTVM, 50 trials", 0.70, _XEON, rung="meta_schedule"),
            Published("000", "NumPy", 0.21, _XEON, rung="NumPy"),
            Published("004", "unoptimised", 30.45, _XEON, rung="naive"),
            Published("004", "optimised", 0.286, _XEON, rung="padded_vectorise"),
            Published("004", "AutoTVM", 0.795, _XEON, rung="meta_schedule"),
        ),
        "cuda": (
            Published("000", "naive", 18.286, _T4, rung="naive"),
            Published("000", "v1, refactored", 0.107, _T4, rung="pad"),
            Published("000", "v2, threads", 0.0251, _T4, rung="threads"),
            Published("000", "v3, 2-D threads", 0.0158, _T4, rung="threads_2d"),
            Published("000", "v4, memory hierarchy", 0.0147, _T4, rung="shared_memory"),
            Published("000", "v5, unrolled", 0.0124, _T4, rung="unroll"),
            Published("000", "AutoTVM", 0.0405, _T4),
            Published("000", "NumPy (CPU)", 0.2369, _T4, rung="NumPy, CPU"),
            Published("000", "PyTorch", 0.1491, _T4, rung="PyTorch"),
            Published("004", "unoptimised", 0.0593, _COLAB, rung="threads"),
            Published("004", "optimised", 0.0204, _COLAB, rung="unroll"),
        ),
    },
)
