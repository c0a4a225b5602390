"""1.3: say in one line of NumPy what this function computes.

`in_numpy` takes an array A of 5 x 7 numbers and returns the array that `main` writes to B.
"""

import numpy as np

from kernel_lab.trace import trace
from needle_tvm._tvm.names import tvm

SCRIPT = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((5, 7), "float32"), B: T.Buffer((7,), "float32")):
        for j, i in T.grid(7, 5):
            with T.sblock("B"):
                v_j, v_i = T.axis.remap("SR", [j, i])
                T.reads(A[v_i, v_j])
                T.writes(B[v_j])
                with T.init():
                    B[v_j] = T.float32(0.0)
                B[v_j] = B[v_j] + A[v_i, v_j] * A[v_i, v_j]
"""


def in_numpy(a): ...


def check():
    a = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    found = trace(tvm.script.from_source(SCRIPT), [a]).arrays["B"]
    mine = np.asarray(in_numpy(a))
    yield mine.shape == found.shape, f"the shape is {mine.shape}", f"B has {found.shape}"
    wrong = np.flatnonzero(~np.isclose(mine, found, rtol=1e-5))
    reason = f"element {wrong[:1]} is {mine[wrong[:1]]}, and B has {found[wrong[:1]]}"
    yield not len(wrong), "the elements compared with B", reason
