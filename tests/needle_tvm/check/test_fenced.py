"""Reads past an array are detected, even if the values are not used."""

import mmap
import subprocess
import sys

import numpy as np
import pytest

from needle_tvm.check.campaign.fenced import fenced

DTYPES = ("float32", "bool", "int8", "float64")
SHAPES = ((), (0, 3), (5,), (4096,), (100, 100))


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_values_are_the_same_next_to_a_page(dtype, shape, at_end):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    found = fenced(array, at_end)
    np.testing.assert_array_equal(found, array, strict=True)
    assert (found.ctypes.data + found.nbytes * at_end) % mmap.PAGESIZE == 0


@pytest.mark.parametrize(
    ("at_end", "byte", "dies"),
    [(True, 63, False), (True, 64, True), (False, 0, False), (False, -1, True)],
)
def test_a_touch_outside_ends_the_process(at_end, byte, dies):
    text = f"""
import ctypes
import numpy as np
from needle_tvm.check.campaign.fenced import fenced
array = fenced(np.ones(64, "uint8"), {at_end})
ctypes.string_at(array.ctypes.data + {byte}, 1)
"""
    code = subprocess.run([sys.executable, "-c", text]).returncode
    assert code == (-11 if dies else 0)


READS_ON = """
import numpy as np
from needle import ops
from needle_tvm.check.campaign import judge

def emit_te(self, k, x):  # max(x, 0), for which it also reads what lies 1024 elements further
    def element(i):
        further = i + k.tirx.Select(x[0] < 1e9, 1024, 0)
        return k.tirx.max(0.0, k.tirx.min(x[i], k.tirx.max(x[further], 1e30)))
    return k.te.compute(x.shape, element)

ops.Relu.emit_te = emit_te
inputs = [np.linspace(-2, 2, 1024).astype("float32")]
if not {fenced}:
    judge.fenced = lambda array, at_end: array
print(judge.judged(lambda: (ops.relu, inputs), [("noopt", 1)]))
"""


@pytest.mark.parametrize("with_fence", [False, True])
def test_a_kernel_that_reads_outside_is_no_right_program(with_fence):
    text = READS_ON.replace("{fenced}", str(with_fence))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    if with_fence:
        assert done.returncode == -11, done.stdout + done.stderr
    else:
        assert done.stdout == "('', 'right', '')\n", done.stderr
