"""Compiled transposed convolutions: convolutions into blocks of results, or one for each place."""

import numpy as np
import pytest

import needle_tvm
from needle import ops
from needle.ops import _conv_transpose
from tests.needle_tvm.conftest import tensor

# The outputs, the weight, the size of the result, and the geometry.
CASES = [
    ((2, 3, 4, 3), (4, 2, 2, 3), (6, 8), {"stride": (2, 2), "padding": (1, 0)}),
    ((1, 3, 4, 4), (3, 3, 2, 4), (6, 8), {"stride": (2, 2), "padding": (1, 1)}),  # four places
    ((1, 3, 3, 4), (2, 2, 2, 4), (8, 9), {"stride": (3, 3)}),  # blocks that are not filled
    ((1, 3, 3, 4), (3, 5, 1, 4), (7, 9), {"stride": (2, 2), "groups": 2}),
    ((1, 5, 4, 2), (3, 3, 3, 2), (9, 6), {"dilation": (2, 1)}),
    ((1, 3, 3, 2), (3, 3, 2, 2), (5, 5), {"stride": (2, 2), "padding": (1, 1)}),
    ((1, 3, 3, 2), (2, 2, 2, 2), (7, 7), {"stride": (2, 2), "dilation": (2, 2)}),  # no emit
]


@pytest.mark.parametrize("stage", ["fused", "tuned"])
@pytest.mark.parametrize(("g", "w", "size", "geometry"), CASES, ids=str)
def test_it_equals_the_reference(rng, g, w, size, geometry, stage):
    op = ops.ConvInput(size, **geometry)
    g, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in (g, w))
    weight = tensor(w)
    found = needle_tvm.compile(
        lambda x: ops.conv_input(x, weight, **{"padding": 0, "size": size, **geometry}),
        tensor(g),
        stage=stage,
    )
    np.testing.assert_array_equal(found(tensor(g)).numpy(), op.reference(g, w))


def test_zeros_that_fill_a_kernel_meet_no_infinite_input():
    """A kernel of 3 at stride 2 has no fourth tap, which would make NaN of an infinity."""
    g = np.full((1, 2, 2, 1), np.inf, np.float32)
    w = tensor(np.ones((3, 3, 1, 1), np.float32))
    found = needle_tvm.compile(lambda x: ops.conv_input(x, w, 6, 2, 0), tensor(np.zeros_like(g)))
    values = found(tensor(g)).numpy()
    assert np.isinf(values[0, :5, :5]).all()


def test_symbolic_extents_have_no_blocks():
    window = ops.ConvInput((6, 6), (2, 2)).window((2, 2))
    assert _conv_transpose.axes_of((1, object(), 3, 1), window, (6, 6)) is None
