"""The default rule for loops: transpositions in square tiles."""

import numpy as np
import pytest

import needle_tvm
from needle import ops
from needle.trace import trace
from needle_tvm._tvm.names import tirx
from needle_tvm.frontend import lowering
from needle_tvm.kernels import cpu
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import NODES, nodes_in, prim_funcs
from tests.needle_tvm.conftest import tensor

# Shapes with full tiles, tails along either axis, axes smaller than a tile, and no tiles.
SHAPES = [(2, 32, 48), (3, 19, 37), (1, 5, 100), (1, 100, 5), (2, 3, 4, 40), (4, 1, 33)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_element_arrives(rng, shape, dtype):
    x = tensor(rng.integers(-1000, 1000, shape).astype(dtype))
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    compiled = needle_tvm.compile(lambda x: ops.permute(x, order) + 1, x)
    np.testing.assert_array_equal(compiled(x).numpy(), x.numpy().transpose(order) + 1)


def test_a_transposition_is_tiled():
    """A tile of 16 x 16 values reads and writes equally many cache lines, each of them whole."""
    target = resolve({"kind": "llvm", "mcpu": "skylake-avx512"}, 2).to_tvm()
    x = tensor(np.zeros((1, 64, 112, 112), np.float32))
    module = lowering.lower(trace(lambda x: ops.permute(x, (0, 2, 3, 1)), x), target, "tuned")
    (function,) = prim_funcs(module).values()
    scheduled = cpu.schedule_function(function, target)
    inner = [int(loop.extent) for loop in nodes_in(scheduled, NODES.loop)][:2]
    assert inner == [16, 16]


@pytest.mark.parametrize("order", [(0, 3, 1, 2), (0, 2, 3, 1)], ids=str)
@pytest.mark.parametrize("shape", [(2, 5, 7, 24), (1, 14, 3, 60), (2, 28, 19, 41)], ids=str)
def test_images_of_short_rows_are_permuted(rng, shape, order):
    x = tensor(rng.standard_normal(shape).astype(np.float32))
    compiled = needle_tvm.compile(lambda x: ops.permute(x, order) * 2, x)
    np.testing.assert_array_equal(compiled(x).numpy(), x.numpy().transpose(order) * 2)


@pytest.mark.parametrize("rows", [7, 14, 28, 56, 112])
@pytest.mark.parametrize("channels", [16, 24, 40, 60, 512])
def test_tiles_of_what_has_many_divisors_end_with_it(rows, channels):
    """There are no bounds checks inside the tiles."""
    target = resolve({"kind": "llvm", "mcpu": "skylake-avx512"}, 2).to_tvm()
    x = tensor(np.zeros((1, rows, rows, channels), np.float32))
    module = lowering.lower(trace(lambda x: ops.permute(x, (0, 3, 1, 2)), x), target, "tuned")
    (function,) = prim_funcs(module).values()
    scheduled = cpu.schedule_function(function, target)
    assert "T.where" not in scheduled.script()
    loops = list(nodes_in(scheduled, NODES.loop))
    (vector,) = (each for each in loops if each.kind == tirx.ForKind.VECTORIZED)
    assert 4 <= int(vector.extent) <= 16


def test_a_transposition_next_to_a_reshape_is_tiled(rng):
    """The reshape leaves divisions in the indices, which say nothing new."""
    target = resolve({"kind": "llvm", "mcpu": "skylake-avx512"}, 2).to_tvm()
    x = tensor(rng.standard_normal((2, 1, 48, 32)).astype(np.float32))

    def rows(x):
        return ops.permute(ops.reshape(x, (2, 48, 32)), (0, 2, 1))

    (function,) = prim_funcs(lowering.lower(trace(rows, x), target, "tuned")).values()
    scheduled = cpu.schedule_function(function, target)
    inner = [int(loop.extent) for loop in nodes_in(scheduled, NODES.loop)][:2]
    assert inner == [16, 16]
    np.testing.assert_array_equal(needle_tvm.compile(rows, x)(x).numpy(), rows(x).numpy())
