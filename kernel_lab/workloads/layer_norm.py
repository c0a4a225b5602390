"""y = (x - mean) / sqrt(variance + eps) * gamma + beta for each row (Ba, arXiv:1607.06450)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_lab.workload import Array, Case, Size, Workload

EPSILON = 1e-5
OPERATIONS = 8  # for each value: 1 for the mean, 3 for the variance, 4 for the result


def placeholders(case: Case) -> tuple[Any, Any, Any]:
    """Return x (M, N), gamma (N) and beta (N)."""
    from needle_tvm._tvm.names import te

    n = case["N"]
    x = te.placeholder((case["M"], n), name="x")
    return x, te.placeholder((n,), name="gamma"), te.placeholder((n,), name="beta")


def normalised(x: Any, gamma: Any, beta: Any, mean: Any, variance: Any) -> Any:
    """Return the result, given each row's mean and variance."""
    from needle_tvm._tvm.names import te, tirx

    def value(i: Any, j: Any) -> Any:
        deviation = tirx.sqrt(variance[i] + EPSILON)
        return (x[i, j] - mean[i]) / deviation * gamma[j] + beta[j]

    return te.compute(x.shape, value, name="y")


def define(case: Case) -> list[Any]:
    """Define the means, then the variances around them, then the result."""
    from needle_tvm._tvm.names import te

    x, gamma, beta = placeholders(case)
    n = case["N"]
    j, k = te.reduce_axis((0, n), name="j"), te.reduce_axis((0, n), name="k")
    total = te.compute(x.shape[:1], lambda i: te.sum(x[i, j], axis=j), name="total")
    mean = te.compute(x.shape[:1], lambda i: total[i] / float(n), name="mean")

    def square(i: Any, k: Any) -> Any:
        return (x[i, k] - mean[i]) * (x[i, k] - mean[i])

    squares = te.compute(x.shape[:1], lambda i: te.sum(square(i, k), axis=k), name="squares")
    variance = te.compute(x.shape[:1], lambda i: squares[i] / float(n), name="variance")
    return [x, gamma, beta, normalised(x, gamma, beta, mean, variance)]


def reference(size: Size, inputs: Sequence[Array]) -> Array:
    x, gamma, beta = (array.astype(np.float64) for array in inputs)
    centred = x - x.mean(axis=1, keepdims=True)
    return np.asarray(centred / np.sqrt(x.var(axis=1, keepdims=True) + EPSILON) * gamma + beta)


def shapes(size: Size) -> list[tuple[int, ...]]:
    m, n = size["M"], size["N"]
    return [(m, n), (n,), (n,), (m, n)]


LAYER_NORM = Workload(
    name="layer_norm",
    title="layer normalisation",
    summary="y = (x - mean) / sqrt(variance + eps) * gamma + beta for each of M rows of N",
    sizes={"cpu": ({"M": 1024, "N": 768}, {"M": 128, "N": 4096})},
    drawn=lambda size: {"M": 4, "N": 16},
    define=define,
    reference=reference,
    shapes=shapes,
    flops=lambda size: OPERATIONS * size["M"] * size["N"],
    terms=lambda size: int(size["N"]),
)
