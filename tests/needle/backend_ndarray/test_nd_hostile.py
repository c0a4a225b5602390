"""The process survives whatever arguments Python passes to the native module."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SANITIZED = "asan" in os.environ.get("LD_PRELOAD", "")  # its shadow memory needs all addresses


def run(*command):
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", *command],
        cwd=HERE, capture_output=True, text=True,
        timeout=600,  # a computation that should have been refused might never end
    )  # fmt: skip


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_arguments_nobody_should_pass(seed):
    done = run("hostile.py", str(seed), "70000")
    assert done.returncode == 0, done.stderr


# Requests, and what each must give: an error, or the shape of the result if that is only a view.
REFUSED, NO_MEMORY = "ValueError", "MemoryError"
HUGE = {
    "nd.empty((2**62,))": REFUSED,
    "nd.zeros((2**31, 2**20))": NO_MEMORY,
    "nd.zeros((2**31, 2**10))": NO_MEMORY,
    "nd.cpu().randn(2**62)": REFUSED,
    "nd.cpu().rand(2**31, 2**12)": NO_MEMORY,
    "nd.cpu().one_hot(2**62, np.array([1]))": REFUSED,
    "nd.array(np.broadcast_to(np.float32(1), (2**60,)))": NO_MEMORY,
    "wide((2**60,)).shape": (2**60,),
    "wide((2**62,))": REFUSED,
    "wide((2**60,)).flip()[::3].shape": (-(-(2**60) // 3),),
    "wide((2**60,)).reshape(2**30, 2**30).permute(1, 0)[5].shape": (2**30,),
    "wide((2**40,))[[0, -1]].shape": (2,),
    "wide((2**60,)).compact()": NO_MEMORY,
    "wide((2**60,)) + 1": NO_MEMORY,
    "wide((2**60,)).exp()": NO_MEMORY,
    "wide((2**60,)) < 1": NO_MEMORY,
    "wide((2**60,)).numpy()": NO_MEMORY,
    "wide((2**58,)).astype('float64')": NO_MEMORY,
    "nd.where(wide((2**60,)), 1.0, 2.0)": NO_MEMORY,
    "nd.ones((2, 1)).broadcast_to((2, 2**58)).reshape(2**59)": NO_MEMORY,
    "wide((2**40, 1)) @ wide((1, 2**20))": NO_MEMORY,
    "wide((2**50, 0)) @ wide((0, 2**50))": REFUSED,
    "(wide((0, 2**40)) @ wide((2**40, 2**20))).shape": (0, 2**20),
    "nd.ones((1,)).pad(((2**62, 2**62),))": REFUSED,
    "nd.ones((1,)).pad(((2**40, 0),))": NO_MEMORY,
    "nd.ones((5,))[2**70]": "IndexError",
    "nd.ones((5,))[:: 2**70].shape": (1,),
    "nd.ones((5,))[2**70 : -(2**70) : -(2**62)].shape": (1,),
    "nd.ones((1,)).as_strided((0, 2), (2**62, -(2**63)), 0).sum(1).shape": (0,),
    "ndl.init.zeros(2**62)": REFUSED,
    "ndl.init.rand(2**31, 2**12)": NO_MEMORY,
    "ndl.nn.Linear(2**40, 2**40)": REFUSED,
    "ndl.nn.Embedding(2**62, 2)": REFUSED,
    "ndl.ops.pad(x, ((2**62, 2**62),))": REFUSED,
    "ndl.ops.dilate(x, (0,), 2**62)": REFUSED,
    "ndl.ops.broadcast_to(x, (2**58, 3)).shape": (2**58, 3),
    "ndl.ops.broadcast_to(x, (2**58, 3)) * 2": NO_MEMORY,
    "ndl.ops.broadcast_to(x, (2**40, 3))[-1, ::2].shape": (2,),
    "ndl.ops.segment_sum(x, ndl.Tensor([0, 1, 1]), 2**62)": REFUSED,
    "ndl.ops.one_hot(ndl.Tensor([1]), 2**62)": REFUSED,
    "ndl.ops.unslice(x, slice(3), (2**62,))": REFUSED,
    "ndl.ops.max_pool(ndl.init.zeros(4, 4, 1, 1), 2**62)": REFUSED,
    "ndl.ops.stack([ndl.ops.broadcast_to(x, (2**58, 3))] * 4, 0)": REFUSED,
    "nd.set_num_threads(2**80) or nd.get_num_threads()": 256,
}

PROGRAM = """
import resource, sys
if sys.argv[1] == "limited":  # nothing here may come near the machine's memory
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
import numpy as np
import needle as ndl
from needle import backend_ndarray as nd
def wide(shape):
    return nd.ones((1,) * len(shape)).broadcast_to(shape)
x = ndl.Tensor(np.ones(3, np.float32))
for text in sys.argv[2:]:
    try:
        print(repr(eval(text)))
    except Exception as error:
        assert str(error) and str(error) != "std::bad_alloc", text
        kinds = (ValueError, MemoryError, IndexError)
        print(next((k.__name__ for k in kinds if isinstance(error, k)), repr(error)))
"""


@pytest.mark.skipif(SANITIZED, reason="the sanitizer's own memory does not fit under the limit")
def test_huge_requests():
    """Requests for 2**31 and 2**62 elements give a view if that suffices, else a clear error."""
    pytest.importorskip("resource")
    done = run("-c", PROGRAM, "limited", *HUGE)
    assert done.returncode == 0, done.stderr
    assert dict(zip(HUGE, done.stdout.splitlines(), strict=True)) == {
        text: expected if isinstance(expected, str) else repr(expected)
        for text, expected in HUGE.items()
    }
