"""Many operations in a row become many kernels of bounded size: compiling them takes time in
proportion to their number."""

import numpy as np
import pytest

from needle import ops
from needle.trace import trace
from needle_tvm.frontend import lowering
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import NODES, nodes_in, prim_funcs
from tests.needle_tvm.conftest import tensor


def chain(x, count):
    """Every third operation is a tanh, which keeps the values small."""
    for number in range(count):
        if number % 3 == 0:
            x = ops.tanh(x)
        else:
            x = x + 0.5 if number % 3 == 1 else x * x
    return x


def blocks(count, stage):
    """The number of blocks of each kernel of a chain."""
    target = resolve("cpu").to_tvm()
    graph = trace(lambda x: chain(x, count), tensor(np.ones((4, 4), np.float32)))
    functions = prim_funcs(lowering.lower(graph, target, stage)).values()
    return [len(nodes_in(function.body, NODES.sblock)) - 1 for function in functions]


@pytest.mark.parametrize("stage", ["fused", "tuned"])
def test_kernels_of_a_long_chain_have_a_bounded_size(stage):
    found = {count: blocks(count, stage) for count in (100, 200)}
    assert all(max(sizes) <= 64 for sizes in found.values())
    for count, sizes in found.items():
        assert sum(sizes) <= count  # equal kernels are one function
