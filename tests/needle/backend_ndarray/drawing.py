"""Draws arrays for the property tests: any dtype, shape, layout, and special values."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

from needle import backend_ndarray as nd
from needle.backend_ndarray.dtypes import FLOATING as FLOATS
from needle.backend_ndarray.dtypes import HALVES

# The native device under test; see --device in tests/conftest.py.
NATIVE = nd.cuda() if getattr(pytest, "needle_device", None) == "cuda" else nd.cpu()
if NATIVE.name == "cuda" and not NATIVE.enabled():
    pytest.skip("--device cuda: there is no CUDA device", allow_module_level=True)

DTYPES = nd.DTYPES
# Kernels of integers; those of bits take bools, too.
OF_BITS = ("bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor")
OF_INTEGERS = (*OF_BITS, "left_shift", "right_shift")
NUMPY_DTYPES = tuple(dtype for dtype in DTYPES if dtype != "bfloat16")  # NumPy's own

seeds = st.integers(0, 2**32 - 1)
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def plain(x):
    """x with halves in float32, for NumPy functions that do not take bfloat16."""
    return x.astype("float32") if x.dtype.name in HALVES else x


def values(rng, shape, dtype, extremes=True):
    """Small numbers; floats include NaN, infinities and both zeros. `extremes` adds the largest,
    the smallest and subnormal floats, and the ends of the integers' range."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    small = rng.integers(-4, 5, shape)
    if dtype not in FLOATS:
        ends = np.iinfo(dtype)
        picks = np.array([ends.min, ends.max, 0, -1] if extremes else [0, -1]).astype(dtype)
        return np.where(rng.random(shape) < 0.1, rng.choice(picks, shape), small.astype(dtype))
    x = (small / 2 + rng.standard_normal(shape)).astype(dtype)
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0]
    if extremes:
        f = (ml_dtypes if dtype == "bfloat16" else np).finfo(dtype)
        special += [f.max, f.min, f.tiny, -f.tiny, f.smallest_subnormal, f.tiny / 3]
    special = np.array(special, dtype)
    return np.where(rng.random(shape) < 0.15, rng.choice(special, shape), x).astype(dtype)


@st.composite
def layouts(draw, x):
    """The same random view of a NumPy array and of its NDArray copy."""
    a = nd.array(x, device=NATIVE)
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["permute", "slice", "broadcast", "flip", "new", "windows"]))
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
        elif kind == "windows" and 0 < x.ndim < 4 and x.shape[-1]:
            width = draw(st.integers(1, x.shape[-1]))
            x = np.lib.stride_tricks.sliding_window_view(x, width, axis=-1)
            *outer, step = a.strides
            a = a.as_strided(x.shape, (*outer, step, step))  # neighbours share memory
    return x, a


@st.composite
def arrays(draw, dtypes=DTYPES, shape=None, extremes=True):
    """(NumPy array, NDArray) with equal elements in equal layouts."""
    rng = np.random.default_rng(draw(seeds))
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(shapes) if shape is None else shape
    return draw(layouts(values(rng, shape, dtype, extremes)))


def same(got, expected):
    """Equal dtype, shape and elements; NaN equals NaN and -0 differs from 0."""
    got = got.numpy() if isinstance(got, nd.NDArray) else got
    expected = np.asarray(expected)
    assert got.dtype == expected.dtype, (got.dtype, expected.dtype)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    got, expected = plain(got), plain(expected)
    np.testing.assert_array_equal(got, expected)
    if got.dtype.kind == "f":
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(expected)[numbers])
