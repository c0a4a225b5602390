"""Reductions against NumPy, and their accuracy over long axes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from needle import backend_ndarray as nd
from needle.backend_ndarray.dtypes import finfo
from tests.needle.backend_ndarray.drawing import FLOATS, NATIVE, arrays, plain, same

reference = nd.cpu_numpy()


@st.composite
def axes_of(draw, ndim):
    axes = draw(st.lists(st.integers(0, max(ndim - 1, 0)), unique=True, max_size=ndim))
    return tuple(a - ndim if draw(st.booleans()) else a for a in axes)


@given(st.data(), st.sampled_from(["sum", "prod", "max", "min", "mean"]))
def test_reduce(data, name):
    # Whether sums of the largest numbers overflow depends on order, so only max and min get them.
    _, a = data.draw(arrays(extremes=name in ("max", "min")))
    axis = data.draw(st.one_of(st.none(), axes_of(a.ndim)))
    keepdims = data.draw(st.booleans())
    try:
        expected = getattr(nd.array(a.numpy(), device=reference), name)(axis, keepdims).numpy()
    except ValueError:
        with pytest.raises(ValueError):
            getattr(a, name)(axis, keepdims)
        return
    got = getattr(a, name)(axis, keepdims).numpy()
    if name in ("max", "min") or got.dtype.name not in FLOATS:
        zero = got.dtype.type(0)  # -0 + 0 is 0: the sign of zero is not specified
        same(got + zero, expected + zero)
        return
    # Few terms: one rounding of the wide accumulator, and for float64 the accumulator's own.
    assert got.dtype == expected.dtype and got.shape == expected.shape
    # Terms that cancel leave their rounding errors.
    numbers = np.abs(a.numpy().astype("float64"))
    atol = 2.0**-50 * numbers[np.isfinite(numbers)].sum()
    eps = float(finfo(got.dtype.name).eps)
    np.testing.assert_allclose(plain(got), plain(expected), rtol=4 * eps, atol=atol)


@given(st.data(), st.sampled_from(["argmax", "argmin"]))
def test_arg_reduce(data, name):
    _, a = data.draw(arrays())
    axis = data.draw(
        st.one_of(st.none(), st.integers(-a.ndim, a.ndim - 1) if a.ndim else st.none())
    )
    keepdims = data.draw(st.booleans())
    x = a.numpy()
    try:
        expected = getattr(np, name)(plain(x), axis=axis, keepdims=keepdims)
    except ValueError:
        with pytest.raises(ValueError):
            getattr(a, name)(axis, keepdims)
        return
    same(getattr(a, name)(axis, keepdims), np.asarray(expected, np.int64))


@pytest.mark.parametrize("shape, axis", [
    ((1_000_000,), None), ((300_000, 3), 0), ((3, 300_000), 1), ((64, 33, 257), (0, 2)),
    ((70_000, 5), (0, 1)), ((5, 40_000), 0), ((2, 3, 100_000), (0, 2)),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16", "bfloat16"])
def test_long_sums(shape, axis, dtype):
    """float32 and halves are within one rounding however long the axis; float64 is within 16 for
    a million elements."""
    rng = np.random.default_rng(0)
    x = (rng.random(shape) * (0.04 if dtype == "float16" else 1000)).astype(dtype)
    truth = plain(x).sum(axis=axis, dtype=np.longdouble if dtype != "int32" else np.int64)
    for a in (
        nd.array(x, device=NATIVE),
        nd.array(x.T.copy(), device=NATIVE).permute(tuple(range(x.ndim))[::-1]),
    ):
        got = a.sum(axis).numpy()
        eps = 2.0**-48 if dtype in ("float64", "int32") else float(finfo(dtype).eps)
        error = np.abs(got.astype(np.longdouble) - truth) / np.abs(truth)
        assert np.max(error) <= (eps if dtype != "int32" else 0)


def test_sums_do_not_depend_on_threads():
    x = nd.array(np.random.default_rng(1).standard_normal((1000, 1001), dtype=np.float32))
    before = nd.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            nd.set_num_threads(threads)
            results.append([r.numpy() for r in (x.sum(), x.sum(0), x.sum(1), x[:, :3].sum(0))])
        for one in results[1:]:
            for a, b in zip(results[0], one, strict=True):
                same(a, b)
    finally:
        nd.set_num_threads(before)


@pytest.mark.parametrize("axis", [3, -4, (0, 0), (0, -3), 1.5, "x"])
def test_bad_axes(device, axis):
    with pytest.raises((ValueError, TypeError)):
        nd.ones((2, 3, 4), device=device).sum(axis)


def test_nan_and_empty(device):
    a = nd.array(np.array([[1, np.nan, 3], [4, 5, 6]], np.float32), device=device)
    assert np.isnan(a.max().item()) and a.argmax().item() == 1 and a.max(1).numpy()[1] == 6
    empty = nd.empty((0, 3), device=device)
    assert empty.sum().item() == 0 and empty.prod().item() == 1
    assert empty.max(1).shape == (0,)
    with pytest.raises(ValueError, match=r"shape|zero-size"):
        empty.max(0)
