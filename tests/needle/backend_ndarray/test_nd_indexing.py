"""Indexing, assignment and views: native against NumPy, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from needle import backend_ndarray as nd
from tests.needle.backend_ndarray.drawing import NATIVE, arrays, same, seeds, values


@st.composite
def keys(draw, shape):
    """A key with arrays and masks on some axes, basic entries on the others."""
    entries = []
    axis = 0
    while axis < len(shape):
        n = shape[axis]
        kind = draw(st.sampled_from(["int", "slice", "array", "mask", "none", "full"]))
        if kind == "none":
            entries.append(None)
            continue
        if kind == "int" and n:
            entries.append(draw(st.integers(-n, n - 1)))
        elif kind == "array" and n:
            size = draw(st.sampled_from([(), (1,), (3,), (2, 1), (2, 3)]))
            entries.append(draw(hnp.arrays(np.int64, size, elements=st.integers(-n, n - 1))))
        elif kind == "mask":
            rng = np.random.default_rng(draw(seeds))
            entries.append(rng.integers(0, 2, n).astype(bool))
        elif kind == "slice":
            entries.append(draw(st.slices(n)))
        else:
            entries.append(slice(None))
        axis += 1
        if len(entries) > 6:
            break
    return tuple(entries)


@given(st.data())
def test_basic_getitem(data):
    x, a = data.draw(arrays())
    key = data.draw(hnp.basic_indices(x.shape, allow_newaxis=True, max_dims=8))
    same(a[key], x[key])


@given(st.data())
def test_advanced_getitem(data):
    x, a = data.draw(arrays())
    key = data.draw(keys(x.shape))
    try:
        expected = x[key]
    except IndexError:
        with pytest.raises(IndexError):
            a[key]
        return
    same(a[key], expected)


@given(st.data())
def test_setitem(data):
    rng = np.random.default_rng(data.draw(seeds))
    shape = data.draw(st.lists(st.integers(0, 4), max_size=3).map(tuple))
    dtype = data.draw(st.sampled_from(nd.DTYPES))
    x = values(rng, shape, dtype)
    a = nd.array(x, device=NATIVE)
    order = data.draw(st.permutations(range(x.ndim)))
    x, a = x.transpose(order), a.permute(tuple(order))
    key = data.draw(
        st.one_of(hnp.basic_indices(x.shape, allow_newaxis=True, max_dims=6), keys(x.shape))
    )
    try:
        target = x[key]
    except IndexError:
        with pytest.raises(IndexError):
            a[key] = 1
        return
    source_shape = tuple(1 if rng.random() < 0.3 else n for n in target.shape)
    source = values(rng, source_shape, data.draw(st.sampled_from(["int32", dtype])))
    with np.errstate(all="ignore"):
        x[key] = source
    a[key] = nd.array(source, device=NATIVE)
    same(a, x)


@given(st.data())
def test_overlapping_assignment(data):
    """x[k1] = x[k2] reads everything before it writes anything."""
    rng = np.random.default_rng(data.draw(seeds))
    n = data.draw(st.integers(1, 12))
    x = values(rng, (n, 3), "float32")
    a = nd.array(x, device=NATIVE)
    length = data.draw(st.integers(1, n))
    at, to = data.draw(st.integers(0, n - length)), data.draw(st.integers(0, n - length))
    step = data.draw(st.sampled_from([1, -1]))
    x[to : to + length] = x[at : at + length][::step].copy()
    a[to : to + length] = a[at : at + length][::step]
    same(a, x)


@given(st.data())
def test_reshape(data):
    x, a = data.draw(arrays())
    factors = data.draw(st.permutations([n for n in x.shape if n > 0]))
    shape = tuple(factors) if x.size else (*factors, 0)
    if data.draw(st.booleans()) and len(shape) > 1 and x.size:
        shape = (shape[0] * shape[1], *shape[2:])
    if data.draw(st.booleans()):
        shape = (*shape, 1)
    same(a.reshape(shape), x.reshape(shape))
    if x.size and shape:
        same(a.reshape(-1, *shape[1:]), x.reshape(-1, *shape[1:]))


@given(st.data())
def test_pad_and_compact(data):
    x, a = data.draw(arrays())
    widths = tuple(data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in x.shape)
    same(a.pad(widths), np.pad(x, widths) if widths else x)
    compact = a.compact()
    assert compact.is_compact
    same(compact, x)


@pytest.mark.parametrize(
    "key", [2, (0, 0, 0, 0), (0, 5), [7], (..., ...), "x", 1.5, True, np.zeros(3, bool), [[9], [0]]]
)
def test_bad_keys(device, key):
    a = nd.zeros((2, 3, 4), device=device)
    with pytest.raises(IndexError):
        a[key]
    with pytest.raises(IndexError):
        a[key] = 1
    assert not a.numpy().any()


def test_repeated_indices(device):
    a = nd.zeros((4, 2), device=device)
    a[[1, 1, 1]] = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert a.numpy()[1].tolist() == [4, 5]  # the last write wins
    a.add_at([1, 1, 3], 1.0)
    assert a.numpy().tolist() == [[0, 0], [6, 7], [0, 0], [1, 1]]


def test_views_share_memory(device):
    a = nd.zeros((3, 4), device=device)
    a.permute(1, 0)[1:3][:, ::-1].fill(7)
    assert a.numpy()[:, 1:3].min() == 7 and a.numpy().sum() == 42
    same(a.reshape(4, 3).reshape(2, 6)[1], a.numpy().reshape(2, 6)[1])
