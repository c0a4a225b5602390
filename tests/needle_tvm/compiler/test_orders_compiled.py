"""Compiled sorts and scans give NumPy's order and eager code's values, for any length and dtype."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import ops
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.together import check_together

DTYPES = ["float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64", "bool"]
SPECIAL = [np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0, 1e-45, -1e-45]


def drawn(shape, dtype, seed=0):
    """Numbers of which many are equal; floats of every sign and size, and all special ones."""
    rng = np.random.default_rng(seed)
    if not dtype.startswith("float"):
        low, high = (0, 2) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        few = rng.integers(low, high, shape, dtype if dtype != "bool" else "int64")
        return np.where(rng.random(shape) < 0.5, few, few % 3).astype(dtype)
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)
    x = np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, shape), x)
    return np.where(rng.random(shape) < 0.3, np.round(x), x).astype(dtype)


def both_orders(x):
    return (*ops.sort(x, 1), *ops.sort(x, 1, descending=True), *ops.sort(x, 0))


def check_orders(found, x):
    up, down = np.argsort(x, 1, kind="stable"), np.argsort(x[:, ::-1], 1, kind="stable")[:, ::-1]
    down, first = x.shape[1] - 1 - down, np.argsort(x, 0, kind="stable")
    for (values, places), order, axis in (
        (found[:2], up, 1),
        (found[2:4], down, 1),
        (found[4:], first, 0),
    ):
        np.testing.assert_array_equal(places.numpy(), order)
        expected = np.take_along_axis(x, order, axis)
        np.testing.assert_array_equal(values.numpy(), expected)
        if x.dtype.kind == "f":  # zeros keep their signs
            np.testing.assert_array_equal(np.signbit(values.numpy()), np.signbit(expected))


@pytest.mark.parametrize(
    "dtype",
    [
        each if each in ("float32", "int8") else pytest.param(each, marks=pytest.mark.slow)
        for each in DTYPES
    ],
)
def test_sorts_are_stable_whatever_the_numbers(dtype):
    arrays = [drawn((5, n), dtype) for n in (1, 64, 65, 300)]
    tensors = list(map(tensor, arrays))
    found = needle_tvm.compile(lambda *xs: tuple(map(both_orders, xs)), *tensors)(*tensors)
    for each, x in zip(found, arrays, strict=True):
        check_orders(each, x)


def test_sorts_of_sizes_that_the_call_decides():
    dims = {"x": {0: ndl.Dim("m", max=9), 1: ndl.Dim("n", max=400)}}
    exe = needle_tvm.compile(both_orders, tensor(drawn((3, 70), "float32")), dims=dims)
    for shape in ((1, 1), (9, 400), (4, 33)):
        x = drawn(shape, "float32")
        check_orders(exe(tensor(x)), x)


def scans(axis):
    return [
        lambda x: ops.cumsum(x, axis),
        lambda x: ops.cumsum(x, axis, reverse=True),
        lambda x: ops.cumprod(x, axis),
        lambda x: ops.logcumsumexp(x, axis),
        lambda x: ops.cummax(x, axis)[0],
        lambda x: ops.cummax(x, axis)[1],
        lambda x: ops.cummin(x, axis)[1],
    ]


@pytest.mark.parametrize(
    "shapes", [[(130, 33)], pytest.param([(1, 9), (3, 700), (7, 3)], marks=pytest.mark.slow)]
)
def test_scans_of_any_number_of_rows(shapes):
    """Tasks take several rows at once; the last ones overlap."""
    rng = np.random.default_rng(1)
    cases = [
        (scan, [tensor(rng.standard_normal(shape).astype("float32"))])
        for axis in (0, 1)
        for shape in shapes
        for scan in scans(axis)
    ]
    check_together(cases)


def test_the_running_largest_has_nan_from_there_on():
    x = drawn((6, 200), "float32", seed=5)
    found = needle_tvm.compile(lambda x: (ops.cummax(x, 1), ops.cummin(x, 1)), tensor(x))(tensor(x))
    expected = ops.cummax(tensor(x), 1), ops.cummin(tensor(x), 1)
    for got, wanted in zip(found, expected, strict=True):
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one.numpy(), other.numpy())


def rows_of(dtype):
    """Rows of 100: of any order, rising, falling, with plateaus, and with NaN here and there."""
    rng = np.random.default_rng(1)
    walk = np.cumsum(rng.integers(-3, 4, 100))
    dip = np.where(np.arange(100) == 40, -50, np.arange(100))
    rows = [*drawn((4, 100), dtype), np.sort(walk), -np.sort(walk), walk, dip, np.full(100, 7)]
    x = np.stack([np.asarray(row, dtype) for row in rows])
    if dtype.startswith("float"):
        x[3, [0, 17]], x[5, 33], x[6, 90:], x[8] = np.nan, np.nan, np.nan, np.nan
    return x


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_bests_of_rows_whose_blocks_are_alike_or_not(dtype):
    x = rows_of(dtype)
    found = needle_tvm.compile(
        lambda x: (
            *(*ops.cummax(x, 1), *ops.cummin(x, 1)),
            *(*ops.topk(x, 20, 1), *ops.topk(x, 3, 1, largest=False)),
        ),
        tensor(x),
    )(tensor(x))
    found = [each.numpy() for each in found]
    at, unknown = np.arange(100), np.isnan(x)
    for run, (values, places) in zip(
        (np.maximum, np.minimum), (found[:2], found[2:4]), strict=True
    ):
        best = run.accumulate(x, 1)
        np.testing.assert_array_equal(values, best)
        last = np.maximum.accumulate(np.where(unknown | (x == best), at, 0), 1)
        np.testing.assert_array_equal(places, last)
    numbers = np.where(unknown, 0, x).astype("float64")
    for sign, nan, count, (values, places) in (
        (-1, ~unknown, 20, found[4:6]),  # NaN is the largest
        (1, unknown, 3, found[6:]),
    ):
        order = np.lexsort((np.broadcast_to(at, x.shape), sign * numbers, nan))[:, :count]
        np.testing.assert_array_equal(places, order)
        np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))
