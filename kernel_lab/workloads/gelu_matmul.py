"""out = GELU(A B + bias): a matmul, a bias and GELU as one custom operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_lab.workload import Array, Case, Size, Workload

_ERF = np.vectorize(math.erf, otypes=[np.float64])


# erf(x) = x P(x^2) / Q(x^2) for |x| below 4; for larger |x|, |erf(x)| is 1 in float32. The
# coefficients are Eigen's (generic_fast_erf_float), and the error is below 1e-6. The formula has no
# exp, so every backend vectorises it.
_P = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_Q = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)


def gelu(te: Any, x: Any) -> Any:
    """Return x times the normal distribution's mass below x (Hendrycks and Gimpel,
    arXiv:1606.08415)."""
    z = te.max(-4.0, te.min(4.0, x * math.sqrt(0.5)))
    square = z * z
    p, q = (_horner(coefficients, square) for coefficients in (_P, _Q))
    return 0.5 * x * (1.0 + z * p / q)


def _horner(coefficients: Sequence[float], x: Any) -> Any:
    first, *rest = coefficients
    value: Any = first
    for coefficient in rest:
        value = value * x + coefficient
    return value


def define(case: Case) -> list[Any]:
    """Define three stages: the matmul, the sum with the bias, and its GELU."""
    from needle_tvm._tvm.names import te

    m, n, k = case["M"], case["N"], case["K"]
    a = te.placeholder((m, k), name="A")
    b = te.placeholder((k, n), name="B")
    bias = te.placeholder((n,), name="bias")
    r = te.reduce_axis((0, k), name="k")
    product = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    shifted = te.compute((m, n), lambda i, j: product[i, j] + bias[j], name="shifted")
    out = te.compute((m, n), lambda i, j: gelu(te, shifted[i, j]), name="out")
    return [a, b, bias, out]


def reference(size: Size, inputs: Sequence[Array]) -> Array:
    a, b, bias = (array.astype(np.float64) for array in inputs)
    x = a @ b + bias
    return np.asarray(0.5 * x * (1.0 + _ERF(x / math.sqrt(2.0))))


def shapes(size: Size) -> list[tuple[int, ...]]:
    m, n, k = size["M"], size["N"], size["K"]
    return [(m, k), (k, n), (n,), (m, n)]


GELU_MATMUL = Workload(
    name="gelu_matmul",
    title="matrix product with bias and GELU",
    summary="out = GELU(A B + bias) with A (M x K) and B (K x N); GELU counts as one operation",
    sizes={"cpu": ({"M": 512, "N": 512, "K": 512},), "cuda": ({"M": 1024, "N": 512, "K": 2048},)},
    drawn=lambda size: {"M": 16, "N": 16, "K": 8},
    define=define,
    reference=reference,
    shapes=shapes,
    flops=lambda size: 2 * size["M"] * size["N"] * size["K"] + 2 * size["M"] * size["N"],
    terms=lambda size: int(size["K"]),
)
