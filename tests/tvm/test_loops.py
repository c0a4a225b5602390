"""The rule for what has none of its own: transpositions in square tiles."""

import numpy as np
import pytest

import needle_tvm
from needle import ops
from needle.trace import trace
from needle_tvm import build
from needle_tvm._tvm import NODES, nodes_in, prim_funcs
from needle_tvm.schedule import cpu
from needle_tvm.target import resolve

from .conftest import tensor

# Tiles that are full, cut off along either axis, wider than the axis, and none at all.
SHAPES = [(2, 32, 48), (3, 19, 37), (1, 5, 100), (1, 100, 5), (2, 3, 4, 40), (4, 1, 33)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_element_arrives(rng, shape, dtype):
    x = tensor(rng.integers(-1000, 1000, shape).astype(dtype))
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    compiled = needle_tvm.compile(lambda x: ops.permute(x, order) + 1, x)
    np.testing.assert_array_equal(compiled(x).numpy(), x.numpy().transpose(order) + 1)


def test_a_transposition_is_tiled():
    """16 x 16 values: as many cache lines as are read are written, and each of them whole."""
    target = resolve({"kind": "llvm", "mcpu": "skylake-avx512"}, 2).to_tvm()
    x = tensor(np.zeros((1, 64, 112, 112), np.float32))
    module = build.lower(trace(lambda x: ops.permute(x, (0, 2, 3, 1)), x), target, "tuned")
    (function,) = prim_funcs(module).values()
    scheduled = cpu.schedule_function(function, target)
    inner = [int(loop.extent) for loop in nodes_in(scheduled, NODES.loop)][:2]
    assert inner == [16, 16]
