"""1.2: write the tensor expression of a matrix product whose B is stored transposed.

`a` is m x k and `b` is n x k. Return the list [a, b, c], where c[i, j] is the sum over the second
index of both.
"""

import numpy as np

from kernel_lab.trace import trace
from needle_tvm._tvm.names import te


def product(m, n, k):
    a = te.placeholder((m, k), name="A")
    b = te.placeholder((n, k), name="B")
    ...
    return [a, b, c]  # noqa: F821


def check():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 5), (4, 5)))
    found = trace(te.create_prim_func(product(3, 4, 5)), [a, b]).arrays["C"].reshape(3, 4)
    wrong = np.argwhere(~np.isclose(found, a @ b.T, rtol=1e-5, atol=1e-5)).tolist()
    reason = f"C{wrong[0] if wrong else ''} differs"
    yield not wrong, "C compared with NumPy's a @ b.T", reason
