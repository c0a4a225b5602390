"""Compiled indexing with arrays: indices are inputs, and masks are known when tracing."""

import numpy as np
import pytest

import needle_tvm
from needle_runtime.errors import InputError
from needle_tvm.stages import STAGES
from tests.needle_tvm.conftest import tensor

X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
ROWS, COLUMNS = np.array([2, -1, 0, 0]), np.array([[-4], [3]], np.int32)
MASK = X[:, :, 0] > 20
KEYS = {
    "one": lambda i, j: i,
    "last axis": lambda i, j: (..., j),
    "two, adjacent": lambda i, j: (slice(None, None, -1), j, i),
    "two, apart": lambda i, j: (i, slice(1, 3), j),
    "with an int": lambda i, j: (0, None, i),
    "mask": lambda i, j: MASK,
    "mask and index": lambda i, j: (slice(None), np.array([True, False, True, True]), [1]),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", KEYS)
def test_compiled_picks_what_numpy_picks(name, stage):
    key = KEYS[name]
    fn = needle_tvm.compile(
        lambda x, i, j: x[key(i, j)], tensor(X), tensor(ROWS), tensor(COLUMNS), stage=stage
    )
    got = fn(tensor(X), tensor(ROWS), tensor(COLUMNS)).numpy()
    np.testing.assert_array_equal(got, X[key(ROWS, COLUMNS)])
    assert got.shape == X[key(ROWS, COLUMNS)].shape


@pytest.mark.parametrize("stage", STAGES)
def test_an_index_out_of_range_is_the_nearest(stage):
    """A computed index is clamped to its own axis: it must not reach into a neighbouring row, let
    alone beyond the tensor. An input that is used as an index is checked at the call.
    """
    fn = needle_tvm.compile(
        lambda x, i: (x[i + 0, i * 1], x[i + 0]), tensor(X), tensor(np.zeros(4, int)), stage=stage
    )
    both, rows = fn(tensor(X), tensor(np.array([9, -9, 2**40, -(2**40)])))
    np.testing.assert_array_equal(both.numpy(), X[[2, 0, 2, 0], [3, 0, 3, 0]])
    np.testing.assert_array_equal(rows.numpy(), X[[2, 0, 2, 0]])


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("bad", [(2, 4), (3, 0), (0, -5), (-4, 0), (2**40, 0)])
def test_an_input_that_is_out_of_range_is_refused(stage, bad):
    fn = needle_tvm.compile(
        lambda x, i, j: x[i, :, j],
        tensor(X.swapaxes(1, 2)),
        tensor(ROWS),
        tensor(ROWS),
        stage=stage,
    )
    name, value = ("i", bad[0]) if not -3 <= bad[0] < 3 else ("j", bad[1])
    with pytest.raises(InputError, match=f"'{name}' has the index {value}, which is not within"):
        fn(tensor(X.swapaxes(1, 2)), *(tensor(np.array([0, at, 0, 0])) for at in bad))


def test_an_axis_made_and_another_taken_away():
    x = np.arange(100, dtype="float32").reshape(10, 10)
    for key in ((None, slice(4, 10), -3), (slice(4, 10), None, 2), (3, None, slice(1, 9))):
        compiled = needle_tvm.compile(lambda x, key=key: x[key], tensor(x))
        np.testing.assert_array_equal(compiled(tensor(x)).numpy(), x[key])
