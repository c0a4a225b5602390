"""Compiled segment_sum: repeated, negative and stray indices, and work linear in their number."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import ops
from needle.trace import trace
from needle_tvm._tvm.names import script
from needle_tvm.frontend import lowering
from needle_tvm.lower import build
from needle_tvm.stages import STAGES
from needle_tvm.target.spec import resolve
from tests.needle_tvm.conftest import tensor


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_indices_that_repeat_count_from_the_end_or_miss(stage, dtype, rng):
    """The terms of one output element are added in the order of the index, bit for bit as in NumPy.

    An index that is an input is checked at the call; a computed one may lie outside.
    """
    index = np.array([[3, 3, -1, 0], [5, -6, 3, -5]])  # 5 and -6 lie outside an axis of 5
    x = (rng.standard_normal((2, 2, 4, 300)) * 100).astype(dtype)
    compiled = needle_tvm.compile(
        lambda a, i: ops.segment_sum(a, i + 0, 5, axis=1), tensor(x), tensor(index % 5), stage=stage
    )
    expected = np.zeros((2, 5, 300), dtype)
    inside = (index >= -5) & (index < 5)
    np.add.at(expected, (slice(None), index[inside]), x[:, inside])
    np.testing.assert_array_equal(compiled(tensor(x), tensor(index)).numpy(), expected)


@pytest.mark.parametrize("stage", STAGES)
def test_gradient_of_an_embedding(stage, rng):
    index = tensor(rng.integers(0, 50, (7, 9)))
    weight = rng.standard_normal((50, 6), dtype=np.float32)
    gradient = tensor(rng.standard_normal((7, 9, 6), dtype=np.float32))
    leaf = ndl.Tensor(weight)
    ops.embedding(index, leaf).backward(gradient)
    compiled = needle_tvm.compile(
        lambda g, i: ops.segment_sum(g, i, 50), gradient, index, stage=stage
    )
    np.testing.assert_array_equal(compiled(gradient, index).numpy(), leaf.grad.numpy())


def test_no_loop_runs_over_outputs_and_indices_both():
    """The loop over the 1009 indices is beside, not inside, the loop over the 4001 result rows."""
    x, index = tensor(np.zeros((1009, 300), np.float32)), tensor(np.zeros(1009, np.int64))
    graph = trace(lambda a, i: ops.segment_sum(a, i, 4001), x, index)
    target = resolve("cpu").to_tvm()
    for stage in STAGES:
        text = script(build.schedule(lowering.lower(graph, target, stage), target, stage))
        depth = {}
        for line in text.splitlines():
            for extent in ("1009", "4001"):
                if line.lstrip().startswith("for ") and extent in line:
                    depth[extent] = len(line) - len(line.lstrip())
        assert depth["1009"] == depth["4001"], text
