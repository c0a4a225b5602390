"""out = softmax(Q K^T / sqrt(D)) V for each head (Vaswani et al., arXiv:1706.03762)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_lab.workload import Array, Case, Size, Workload
from kernel_lab.workloads.softmax import OPERATIONS, softmax


def placeholders(case: Case) -> tuple[Any, Any, Any]:
    """Return queries (H, M, D), keys (H, N, D) and values (H, N, D)."""
    from needle_tvm._tvm.names import te

    h, d = case["H"], case["D"]
    lengths = {"Q": case["M"], "K": case["N"], "V": case["N"]}
    q, k, v = (te.placeholder((h, length, d), name=name) for name, length in lengths.items())
    return q, k, v


def define(case: Case) -> list[Any]:
    """Define the scores, their softmax in four stages, and the weighted sums of the values."""
    from needle_tvm._tvm.names import te, tirx

    q, k, v = placeholders(case)
    d = te.reduce_axis((0, case["D"]), name="d")
    scores = te.compute(
        (case["H"], case["M"], case["N"]),
        lambda h, i, j: te.sum(q[h, i, d] * k[h, j, d], axis=d),
        name="scores",
    )
    scale, n = 1.0 / math.sqrt(case["D"]), case["N"]
    j0, j1, j2 = (te.reduce_axis((0, n), name=name) for name in ("j0", "j1", "j2"))
    rows = scores.shape[:2]
    top = te.compute(rows, lambda h, i: te.max(scores[h, i, j0], axis=j0), name="top")
    e = te.compute(
        scores.shape,
        lambda h, i, j: tirx.exp((scores[h, i, j] - top[h, i]) * tirx.const(scale, "float32")),
        name="e",
    )
    total = te.compute(rows, lambda h, i: te.sum(e[h, i, j1], axis=j1), name="total")
    sums = te.compute(
        q.shape, lambda h, i, c: te.sum(e[h, i, j2] * v[h, j2, c], axis=j2), name="sums"
    )
    out = te.compute(q.shape, lambda h, i, c: sums[h, i, c] / total[h, i], name="out")
    return [q, k, v, out]


def reference(size: Size, inputs: Sequence[Array]) -> Array:
    q, k, v = (array.astype(np.float64) for array in inputs)
    return np.asarray(softmax(q @ k.swapaxes(1, 2) / math.sqrt(size["D"])) @ v)


def shapes(size: Size) -> list[tuple[int, ...]]:
    h, m, n, d = (size[name] for name in "HMND")
    return [(h, m, d), (h, n, d), (h, n, d), (h, m, d)]


ATTENTION = Workload(
    name="attention",
    title="attention",
    summary="out = softmax(Q K^T / sqrt(D)) V, H heads, M queries, N keys and values, D features",
    sizes={
        "cpu": (
            {"H": 4, "M": 512, "N": 512, "D": 64},
            {"H": 1, "M": 256, "N": 4096, "D": 64},
        )
    },
    drawn=lambda size: {"H": 1, "M": 4, "N": 16, "D": 4},
    define=define,
    reference=reference,
    shapes=shapes,
    flops=lambda size: size["H"] * size["M"] * size["N"] * (4 * size["D"] + OPERATIONS),
    terms=lambda size: int(size["N"] + size["D"]),
)
