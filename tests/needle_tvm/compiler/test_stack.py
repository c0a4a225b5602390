"""Tiles of kernels lie on the stack: no kernel takes memory from TVM's pool for each of them."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import nn, ops
from needle_tvm._tvm.names import tirx, tvm
from needle_tvm.tir import stack

POOL = b"TVMBackendAllocWorkspace"


def images(x, w):
    # Without padding: tasks copy what they read of a padded image, which may take more than a tile.
    return ops.relu(ops.Conv((1, 1), (0, 0), groups=1)(x, w))


def lstm(x, h, c, w):
    return ndl.recurrence.layers.lstm(x, h, c, w)


CASES = {
    "dense layers": (nn.Sequential(nn.Linear(40, 70), nn.ReLU(), nn.Linear(70, 33)), [(16, 40)]),
    "a convolution": (images, [(2, 12, 12, 16), (3, 3, 16, 32)]),
    "a sum over rows": (lambda x: ops.logsoftmax(x, 1), [(64, 300)]),
    "steps of an LSTM": (lstm, [(5, 8, 256), (8, 64), (8, 64), (64, 256)]),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_take_no_memory_for_their_tiles(case):
    model, shapes = CASES[case]
    if isinstance(model, nn.Module):
        model.eval()
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-1, 1, shape).astype("float32") for shape in shapes]
    tensors = [*map(ndl.Tensor, arrays)]
    compiled = needle_tvm.compile(model, *tensors, threads=2)
    assert POOL not in (compiled.path / "lib.so").read_bytes()
    wanted, found = model(*tensors), compiled(*arrays)
    several = isinstance(wanted, tuple)
    for have, want in zip(
        found if several else [found], wanted if several else [wanted], strict=True
    ):
        np.testing.assert_allclose(have.numpy(), want.numpy(), rtol=1e-4, atol=1e-4)


def of_buffers(*sizes):
    """A lowered function with local buffers of so many float32 vectors of four."""
    buffers = [
        tirx.decl_buffer((n,), "float32x4", f"b{k}", scope="local") for k, n in enumerate(sizes)
    ]
    body = tirx.SeqStmt([each for b in buffers for each in (tirx.AllocBuffer(b), tirx.Evaluate(0))])
    return tvm.IRModule({"main": tirx.PrimFunc([], body)})


def marks(module):
    found = stack.on_the_stack(module)["main"].body
    return [bool(each.annotations) for each in found.seq if isinstance(each, tirx.AllocBuffer)]


def test_large_buffers_and_those_behind_many_stay_in_the_pool():
    """A thread's stack has an end: 8 MiB by default on Linux, which kernels share."""
    most, largest = stack.MOST // 16, stack.LARGEST // 16
    assert marks(of_buffers(8, largest)) == [True, True]
    assert marks(of_buffers(8, largest + 1, 8)) == [True, False, True]
    fitting = most // largest
    assert marks(of_buffers(*[largest] * (fitting + 2))) == [True] * fitting + [False] * 2
