"""Draws arrays for the property tests: any dtype, shape, layout, and special values."""

import numpy as np
from hypothesis import strategies as st

from needle import backend_ndarray as nd

DTYPES = nd.DTYPES
FLOATS = ("float32", "float64")

seeds = st.integers(0, 2**32 - 1)
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def values(rng, shape, dtype):
    """Small numbers, with NaN, infinities and both zeros among floats and extremes among ints."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    small = rng.integers(-4, 5, shape)
    if dtype not in FLOATS:
        extremes = np.iinfo(dtype)
        picks = np.array([extremes.min, extremes.max, 0, -1], dtype)
        return np.where(rng.random(shape) < 0.1, rng.choice(picks, shape), small.astype(dtype))
    x = (small / 2 + rng.standard_normal(shape)).astype(dtype)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], dtype)
    return np.where(rng.random(shape) < 0.15, rng.choice(special, shape), x).astype(dtype)


@st.composite
def layouts(draw, x):
    """The same random view of a NumPy array and of its NDArray copy."""
    a = nd.array(x, device=nd.cpu())
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["permute", "slice", "broadcast", "flip", "new"]))
        if kind == "permute":
            order = draw(st.permutations(range(x.ndim)))
            x, a = x.transpose(order), a.permute(tuple(order))
        elif kind == "slice" and x.ndim:
            key = tuple(draw(st.slices(n)) for n in x.shape)
            x, a = x[key], a[key]
        elif kind == "broadcast" and x.ndim < 4:
            shape = (draw(st.integers(0, 3)), *x.shape)
            x, a = np.broadcast_to(x, shape), a.broadcast_to(shape)
        elif kind == "flip":
            x, a = np.flip(x), a.flip()
        elif kind == "new" and x.ndim < 4:
            x, a = x[..., None], a[..., None]
    return x, a


@st.composite
def arrays(draw, dtypes=DTYPES, shape=None):
    """(NumPy array, NDArray) with equal elements in equal layouts."""
    rng = np.random.default_rng(draw(seeds))
    dtype = draw(st.sampled_from(dtypes))
    return draw(layouts(values(rng, draw(shapes) if shape is None else shape, dtype)))


def same(got, expected):
    """Equal dtype, shape and elements; NaN equals NaN and -0 differs from 0."""
    got = got.numpy() if isinstance(got, nd.NDArray) else got
    expected = np.asarray(expected)
    assert got.dtype == expected.dtype, (got.dtype, expected.dtype)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    np.testing.assert_array_equal(got, expected)
    if got.dtype.kind == "f":
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(expected)[numbers])
