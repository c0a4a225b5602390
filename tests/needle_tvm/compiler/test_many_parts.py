"""Tensors of more parts than one expression chooses from."""

import numpy as np
import pytest

import needle_tvm
from needle import ops
from needle.ops._te import WIDEST
from tests.needle_tvm.conftest import tensor


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
