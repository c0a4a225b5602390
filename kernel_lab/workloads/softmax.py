"""y = softmax(x) for each row, as in attention and at the end of every classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernel_lab.workload import Array, Case, Size, Workload

OPERATIONS = 5  # for each value: compare, subtract, exponential, add, divide


def define(case: Case) -> list[Any]:
    """Define four stages over the whole matrix: maxima, exponentials, their sums, quotients."""
    from needle_tvm._tvm.names import te, tirx

    x = te.placeholder((case["M"], case["N"]), name="x")
    e, total = stages(case, x, tirx.exp)
    return [x, te.compute(x.shape, lambda i, j: e[i, j] / total[i], name="y")]


def stages(case: Case, x: Any, exp: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return `exp` of each row minus its maximum, and the sums of these exponentials."""
    from needle_tvm._tvm.names import te

    n = case["N"]
    j, k = te.reduce_axis((0, n), name="j"), te.reduce_axis((0, n), name="k")
    top = te.compute(x.shape[:1], lambda i: te.max(x[i, j], axis=j), name="top")
    e = te.compute(x.shape, lambda i, j: exp(x[i, j] - top[i]), name="e")
    return e, te.compute(x.shape[:1], lambda i: te.sum(e[i, k], axis=k), name="total")


def softmax(x: Array) -> Array:
    """Return the softmax along the last axis, computed by NumPy in float64."""
    exact = x.astype(np.float64)
    e = np.exp(exact - exact.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def reference(size: Size, inputs: Sequence[Array]) -> Array:
    return softmax(inputs[0])


def shapes(size: Size) -> list[tuple[int, ...]]:
    return [(size["M"], size["N"])] * 2


SOFTMAX = Workload(
    name="softmax",
    title="softmax",
    summary="y = softmax(x) for each of M rows of N; an exponential counts as one operation",
    sizes={"cpu": ({"M": 1024, "N": 1024}, {"M": 4096, "N": 128})},
    drawn=lambda size: {"M": 4, "N": 16},
    define=define,
    reference=reference,
    shapes=shapes,
    flops=lambda size: OPERATIONS * size["M"] * size["N"],
    terms=lambda size: int(size["N"]),
)
