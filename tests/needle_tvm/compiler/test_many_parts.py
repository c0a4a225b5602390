"""Tensors of more parts than one expression chooses from."""

import numpy as np
import pytest

import needle_tvm
from needle import ops
from needle.ops._te import WIDEST
from needle.ops.tuples import Concat, Stack
from needle_tvm._tvm import names
from tests.needle_tvm.conftest import tensor


def test_no_expression_chooses_from_more():
    """TVM nests one question for each part, and is recursive."""
    te, count = names.te, 20 * WIDEST
    parts = [te.placeholder((3, 4), name=f"part{i}") for i in range(count)]
    for op, shape in ((Stack(1), [3, count, 4]), (Concat(0), [3 * count, 4])):
        waiting = [op.emit_te(names.TE_NAMESPACE, *parts)]
        assert [int(n) for n in waiting[0].shape] == shape
        while waiting:
            inputs = list(waiting.pop().op.input_tensors)
            assert len(inputs) <= WIDEST
            waiting += inputs


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["noopt", "tuned"])
def test_many_parts_are_joined_in_groups(stage, rng):
    factors = range(1, 2 * WIDEST + 3)
    x = rng.standard_normal((3, 4), dtype=np.float32)
    parts = [x * np.float32(factor) for factor in factors]
    wanted = np.stack(parts, 1), np.concatenate(parts, 0)

    def joined(x):
        made = [x * float(factor) for factor in factors]
        return ops.stack(made, 1), ops.concat(made, 0)

    found = needle_tvm.compile(joined, tensor(x), stage=stage, check=False)(tensor(x))
    for one, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.numpy(), want)
