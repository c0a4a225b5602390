"""The memory of code for many sizes follows the size at hand, and goes back with it."""

import ctypes
import gc
import subprocess
import sys

import numpy as np
import pytest

import needle_tvm
from needle.sizes.dims import Dim
from tests.needle_runtime.ways import heap, python_way
from tests.needle_tvm.conftest import make_mlp

N = Dim("n", max=256)
HIDDEN = 8192  # 8 MiB of float32 at 256 rows
LITTLE = 64_000  # bytes that Python and NumPy may come to keep meanwhile


@pytest.fixture(scope="module", params=["noopt", "tuned"])
def exe(request):
    x = np.ones((2, 16), "float32")
    model = make_mlp(16, HIDDEN, 16)
    return needle_tvm.compile(model, x, dims={"x": {0: N}}, stage=request.param)


def calls(exe, sizes):
    x = np.ones((N.max, 16), "float32")
    for size in sizes:
        exe.program(x[:size])
    gc.collect()


def test_after_a_large_size_memory_is_as_before_it(exe):
    calls(exe, [1])
    before = heap()
    calls(exe, [256, 1])
    assert abs(heap() - before) < LITTLE
    calls(exe, np.random.default_rng(0).integers(1, 257, 100))
    assert abs(heap() - before) < LITTLE


def test_the_way_through_python_keeps_no_more(exe):
    with python_way(exe.program):
        calls(exe, [1])
        before = heap()
        calls(exe, [256, 7, 31, 1])
        assert abs(heap() - before) < LITTLE


ALONE = """
import ctypes, sys
import numpy as np
import needle_runtime

c = ctypes.CDLL(None)
program = needle_runtime.load(sys.argv[1])
x = np.ones((256, 16), np.float32)

def resident(*sizes):
    for size in sizes:
        program(x[:size])
    c.malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

first = resident(1)
print(resident(256, 1) - first, resident(*range(256, 0, -5)) - first)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_a_process_is_as_small_as_after_its_first_call(exe, tmp_path):
    """What the C library keeps of freed memory for the next allocation is given back first."""
    path = exe.export(tmp_path / "model")
    command = [sys.executable, "-c", ALONE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    after_one, after_all = map(int, done.stdout.split())
    assert after_one < 1 << 20 and after_all < 1 << 20  # of 8 MiB in each call at 256
