"""The kernels of layers against the reference device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from needle import backend_ndarray as nd
from needle.backend_ndarray import layers
from tests.needle.backend_ndarray.drawing import NATIVE

# Both devices sum in double, so that only a few roundings of each result remain.
TOLERANCE = {"float32": 4e-6, "float64": 1e-14}
DEVICES = (NATIVE, nd.cpu_numpy())
dtypes = st.sampled_from(sorted(TOLERANCE))
seeds = st.integers(0, 2**31)


def both(rng, dtype, *shapes, layout="compact"):
    """Random arrays of these shapes on each device: ([native ...], [reference ...])."""
    made = []
    for shape in shapes:
        values = rng.standard_normal(shape).astype(dtype)
        if layout == "first axis last":
            stored = np.moveaxis(values, -1, 0).copy()
            made.append(
                [nd.array(stored, device=d).permute((*range(1, values.ndim), 0)) for d in DEVICES]
            )
        else:
            made.append([nd.array(values, device=d) for d in DEVICES])
    return [list(side) for side in zip(*made, strict=True)]


def close(found, expected, dtype, scale=1.0):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        a, b = a.numpy(), b.numpy()
        assert a.shape == b.shape and a.dtype == b.dtype == dtype
        bound = TOLERANCE[dtype] * scale * max(1.0, float(np.abs(b).max(initial=0)))
        np.testing.assert_allclose(a, b, rtol=0, atol=bound)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.sampled_from([0, 1, 3, 16, 33]),
    st.sampled_from(["compact", "first axis last"]),
    dtypes,
    seeds,
)
def test_batch_norm(batch, channels, layout, dtype, seed):
    rng, shape = np.random.default_rng(seed), (*batch, channels)
    (x, *rest), (y, *others) = both(rng, dtype, shape, (channels,), (channels,), layout=layout)
    ours, theirs = layers.batch_norm(x, *rest, 1e-2), layers.batch_norm(y, *others, 1e-2)
    close(ours, theirs, dtype)
    (g,), (h,) = both(rng, dtype, shape, layout=layout)
    # The gradient is as ill-conditioned as division by the standard deviation, which eps bounds.
    close(
        layers.batch_norm_grad(g, x, rest[0], *ours[1:], 1e-2),
        layers.batch_norm_grad(h, y, others[0], *theirs[1:], 1e-2),
        dtype,
        scale=100,
    )


def test_batch_norm_of_many_rows_does_not_depend_on_threads():
    rng = np.random.default_rng(0)
    (x, w, b), _ = both(rng, "float32", (50_000, 17), (17,), (17,))
    results = []
    before = nd.get_num_threads()
    try:
        for threads in (1, 2, 3):
            nd.set_num_threads(threads)
            y, mean, variance = layers.batch_norm(x, w, b, 1e-5)
            parts = layers.batch_norm_grad(y, x, w, mean, variance, 1e-5)
            results.append([a.numpy().tobytes() for a in (y, mean, variance, *parts)])
    finally:
        nd.set_num_threads(before)
    assert results[0] == results[1] == results[2]


def _grouped(x, groups, axis, eps):
    """x in float64 normalized by groups, and the inverse of their deviations."""
    before = int(np.prod(x.shape[:axis]))
    rows = x.astype("float64").reshape(before * groups, -1)
    scale = 1 / np.sqrt(rows.var(1, keepdims=True) + eps)
    return (rows - rows.mean(1, keepdims=True)) * scale, scale


on_cpu = pytest.mark.skipif(
    not hasattr(NATIVE.kernels, "group_norm"), reason="a kernel that the CPU alone has"
)


@given(
    st.integers(1, 4),
    st.sampled_from([(1, 1), (2, 3), (3, 1), (1, 70), (4, 4), (1, 300)]),
    st.sampled_from([(), (1,), (3, 5), (13, 13), (30, 40)]),
    st.sampled_from([0, 1000]),
    dtypes,
    seeds,
)
@on_cpu
def test_group_norm(batch, channels, inner, offset, dtype, seed):
    (groups, each), rng, eps = channels, np.random.default_rng(seed), 1e-2
    n, shape = groups * each, (batch, groups * each, *inner)
    x, g = (offset + rng.standard_normal(shape)).astype(dtype), rng.standard_normal(shape)
    w, b, g = (a.astype(dtype) for a in (rng.standard_normal(n), rng.standard_normal(n), g))
    column, over = (n, *[1] * len(inner)), (0, *range(2, x.ndim))
    normal, scale = _grouped(x, groups, 1, eps)
    y = normal.reshape(shape)
    grads = (g.astype("float64") * w.reshape(column)).reshape(normal.shape)
    along = normal * (grads * normal).mean(1, keepdims=True)
    to_x = (grads - grads.mean(1, keepdims=True) - along) * scale
    native = [nd.array(a, device=NATIVE) for a in (x, w, b, g)]
    found = layers.group_norm(*native[:3], 1, groups, eps)
    arrays = lambda *parts: [nd.array(a.astype(dtype), device=NATIVE) for a in parts]  # noqa: E731
    rounding = 30 + offset / 10  # of x - mean, in a type that holds x to so many digits
    close([found], arrays(y * w.reshape(column) + b.reshape(column)), dtype, rounding)
    back = layers.group_norm_grad(native[3], native[0], native[1], 1, groups, eps)
    expected = to_x.reshape(shape), (g * y).sum(over), g.astype("float64").sum(over)
    close(back, arrays(*expected), dtype, 10 * rounding)


@on_cpu
def test_group_norm_does_not_depend_on_threads():
    rng = np.random.default_rng(0)
    (x, w, b), _ = both(rng, "float32", (40, 12, 50, 7), (12,), (12,))
    results, before = [], nd.get_num_threads()
    try:
        for threads in (1, 2, 3):
            nd.set_num_threads(threads)
            y = layers.group_norm(x, w, b, 1, 3, 1e-5)
            parts = layers.group_norm_grad(y, x, w, 1, 3, 1e-5)
            results.append([a.numpy().tobytes() for a in (y, *parts)])
    finally:
        nd.set_num_threads(before)
    assert results[0] == results[1] == results[2]


@on_cpu
@pytest.mark.parametrize(
    "shapes, axis, groups",
    [
        ([(2, 4, 3), (4,), (4,)], 1, 3),
        ([(2, 4, 3), (4,), (4,)], 1, 0),
        ([(2, 4, 3), (4,), (4,)], 1, 2**62),
        ([(2, 4, 3), (4,), (4,)], 3, 1),
        ([(2, 4, 3), (4,), (4,)], -1, 1),
        ([(2, 4, 3), (4,), (3,)], 1, 2),
        ([(2, 4, 3), (4, 1), (4,)], 1, 2),
    ],
)
def test_group_norm_refuses_what_does_not_fit(shapes, axis, groups):
    views = [nd.empty(shape, device=NATIVE).view for shape in shapes]
    with pytest.raises(ValueError, match="group_norm"):
        NATIVE.kernels.group_norm(*views, axis, groups, 1e-5)
    views[0], views[1:] = nd.empty((2, 4, 3), device=NATIVE).view, views[:2]
    if shapes[1:] == [(4,), (4,)]:
        with pytest.raises(ValueError, match="group_norm_grad"):
            NATIVE.kernels.group_norm_grad(*views, axis, groups, 1e-5)


@given(st.integers(0, 4), st.sampled_from([0, 1, 5, 64, 70]), dtypes, seeds, st.integers(0, 3))
def test_lstm_gates(batch, hidden, dtype, seed, given_parts):
    rng, state = np.random.default_rng(seed), (batch, hidden)
    ours, theirs = both(rng, dtype, (batch, 4 * hidden), state, state, state)
    made = [layers.lstm_gates(*side[:2]) for side in (ours, theirs)]
    close(*made, dtype)
    back = []
    for side, (_, following) in zip((ours, theirs), made, strict=True):
        grads = [side[2] if given_parts & 1 else None, side[3] if given_parts & 2 else None]
        back.append(layers.lstm_gates_grad(*side[:2], following, *grads))
    close(*back, dtype)


@given(
    st.integers(1, 5), st.integers(0, 4), st.sampled_from([0, 1, 5, 33]), dtypes, seeds,
    st.integers(0, 3),
)  # fmt: skip
def test_lstm_sequence(steps, batch, hidden, dtype, seed, given_parts):
    rng, state = np.random.default_rng(seed), (batch, hidden)
    shapes = (steps, batch, 4 * hidden), state, state, (hidden, 4 * hidden)
    ours, theirs = both(rng, dtype, *shapes, (steps, *state), (steps, *state))
    made = [layers.lstm_sequence(*side[:4]) for side in (ours, theirs)]
    scale = max(1, hidden) * steps
    close(*made, dtype, scale)
    back = []
    for side, found in zip((ours, theirs), made, strict=True):
        grads = [side[4] if given_parts & 1 else None, side[5] if given_parts & 2 else None]
        back.append(layers.lstm_sequence_grad(*side[1:4], found, *grads))
    close(*back, dtype, 4 * scale)


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize(
    "name, shapes, options",
    [
        ("batch_norm", [(3, 2), (3,), (2,)], (1e-5,)),
        ("batch_norm", [(2,), (2,), (2,)], (1e-5,)),
        ("batch_norm", [(0, 2), (2,), (2,)], (1e-5,)),
        ("batch_norm_grad", [(3, 1), (3, 2), (2,), (2,), (2,)], (1e-5,)),
        ("lstm_gates", [(2, 9), (2, 2)], ()),
        ("lstm_gates", [(3, 8), (2, 2)], ()),
        ("lstm_gates_grad", [(2, 8), (2, 2), (2, 3), (2, 2), (2, 2)], ()),
        ("lstm_sequence", [(3, 2, 9), (2, 2), (2, 2), (2, 8)], ()),
        ("lstm_sequence", [(0, 2, 8), (2, 2), (2, 2), (2, 8)], ()),
        ("lstm_sequence", [(3, 2, 8), (2, 2), (2, 2), (8, 2)], ()),
    ],
)
def test_what_does_not_fit_is_refused(device, name, shapes, options):
    kernel = getattr(device.kernels, name)
    with pytest.raises(ValueError, match=name):
        kernel(*[nd.empty(shape, device=device).view for shape in shapes], *options)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32"])
def test_other_dtypes_are_computed_in_a_wider_one(dtype):
    x = nd.array(np.arange(12).reshape(6, 2), dtype=dtype)
    w = nd.array(np.ones(2), dtype=dtype)
    y, mean, _ = layers.batch_norm(x, w, w, 1e-5)
    assert y.dtype == dtype and mean.numpy().astype("float64").tolist() == [5, 6]
