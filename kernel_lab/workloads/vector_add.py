"""c = a + b: the simplest example, limited only by memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_lab.workload import Array, Case, Size, Workload


def define(case: Case) -> list[Any]:
    """Define c[i] = a[i] + b[i]."""
    from needle_tvm._tvm.names import te

    a = te.placeholder((case["N"],), name="a")
    b = te.placeholder((case["N"],), name="b")
    return [a, b, te.compute((case["N"],), lambda i: a[i] + b[i], name="c")]


def reference(size: Size, inputs: Sequence[Array]) -> Array:
    a, b = inputs
    return np.asarray(a.astype(np.float64) + b)


VECTOR_ADD = Workload(
    name="vector_add",
    title="sum of two vectors",
    summary="c = a + b, vectors of N",
    sizes={"cpu": ({"N": 1 << 20},), "cuda": ({"N": 1 << 24},)},
    drawn=lambda size: {"N": 64},
    define=define,
    reference=reference,
    shapes=lambda size: [(size["N"],)] * 3,
    flops=lambda size: int(size["N"]),
    terms=lambda size: 1,
)
