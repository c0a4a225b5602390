"""Functions for calls on a few elements, beside NumPy."""

import random

import numpy as np
import pytest

from needle import backend_ndarray as nd
from needle.testing import assert_close


def arrays(rng):
    """An array, its strided variants, and NumPy's of each."""
    shape = tuple(rng.choice([1, 2, 3, 4]) for _ in range(rng.randrange(4)))
    x = np.arange(np.prod(shape, dtype=int), dtype="float32").reshape(shape)
    yield x
    yield x.T
    if x.ndim:
        yield x[::-1]
        yield x[..., ::2]
        yield x[:0]


def on(device, x):
    """The array on the device with NumPy's strides."""
    base = x if x.base is None else x.base
    flat = nd.array(base.reshape(-1), "float32", device)
    strides = [s // 4 for s in x.strides]
    offset = (x.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // 4
    return flat.as_strided(x.shape, strides, offset if x.size else 0)


def test_keys_are_numpys(device):
    rng = random.Random(1)
    entries = [None, Ellipsis, 0, -1, 1, slice(None), slice(1, None), slice(None, None, -1)]
    entries += [slice(-1, None, -2), slice(0, 9, 2), slice(2, 1), slice(None, None, 2**62)]
    tried = refused = 0
    for _ in range(400):
        key = tuple(rng.choice(entries) for _ in range(rng.randrange(4)))
        key = key[0] if len(key) == 1 and rng.random() < 0.5 else key
        for x in arrays(rng):
            try:
                expected = x[key]
            except IndexError:
                assert device.kernels.index(on(device, x).view, key) is None
                refused += 1
                continue
            found = device.kernels.index(on(device, x).view, key)
            np.testing.assert_array_equal(device.kernels.to_numpy(found), expected)
            tried += 1
    assert tried > 500 and refused > 50


def test_what_is_not_plain_is_left_to_python(device):
    view = nd.zeros((3, 4), device=device).view
    for key in (True, np.int64(1), 1.0, "x", [0], np.array(0), slice(np.int64(1), None), 2**70):
        assert device.kernels.index(view, key) is None
    for shape in (None, "ab", 2.0, (np.int64(12),), (-1, -1), (5, -1), (13,), (-2,), True):
        assert device.kernels.reshape(view, shape) is None
    for axes in (None, (0,), (0, 0), (0, 2), "ab", (0, 1, 2)):
        assert device.kernels.permute(view, axes) is None
    for axes in ((0,), (1, 1), (0, 5), (0, True)):
        assert device.kernels.transpose(view, axes) is None
    assert device.kernels.roll(view, (1, 2), 0) is None
    assert device.kernels.roll(view, 1, 2) is None
    assert device.kernels.diagonal(view, 0, 1, 1) is None


def test_shapes_and_axes_are_numpys(device):
    rng, tried = random.Random(2), 0
    kernels = device.kernels
    for _ in range(150):
        for x in arrays(rng):
            view = on(device, x).view
            order = rng.sample(range(x.ndim), x.ndim)
            signed = tuple(a - rng.choice([0, x.ndim]) for a in order)
            found = kernels.to_numpy(kernels.permute(view, signed))
            np.testing.assert_array_equal(found, x.transpose(order))
            for shape in ((-1,), (x.size,), (1, -1, 1), (*x.shape, 1), x.shape[::-1], [2, -1]):
                if -1 in shape and (x.size == 0 or x.size % max(-np.prod(shape), 1)):
                    continue
                found = kernels.to_numpy(kernels.reshape(view, shape))
                np.testing.assert_array_equal(found, x.reshape(shape))
            if x.ndim > 1:
                pair = (order[0], order[1])
                found = kernels.to_numpy(kernels.transpose(view, pair))
                np.testing.assert_array_equal(found, x.swapaxes(*pair))
                offset = rng.randrange(-5, 6)
                found = kernels.to_numpy(kernels.diagonal(view, offset, *pair))
                np.testing.assert_array_equal(found, x.diagonal(offset, *pair))
                by = rng.randrange(-9, 10), rng.randrange(-2, 3)
                found = kernels.to_numpy(kernels.roll(view, by, pair))
                np.testing.assert_array_equal(found, np.roll(x, by, pair))
                tried += 1
    assert tried > 100


def test_products_of_vectors_and_blocks_are_numpys(device):
    rng = np.random.default_rng(0)

    def drawn(*shape):
        return rng.normal(size=shape).astype("float32")

    for a, b in ((drawn(5), drawn(5)), (drawn(5), drawn(5, 3)), (drawn(2, 3, 5), drawn(5))):
        found = nd.array(a, device=device) @ nd.array(b, device=device)
        assert_close(found.numpy(), np.asarray(a @ b), 5, scale=1.0)
    for a, b in ((drawn(2, 3), drawn(3, 2)), (drawn(3), drawn(2, 2)), (drawn(0, 2), drawn(1, 2))):
        found = nd.array(a, device=device).kron(nd.array(b, device=device))
        np.testing.assert_array_equal(found.numpy(), np.kron(a, b))
    with pytest.raises(ValueError, match="0-d operand"):
        nd.array(drawn(), device=device) @ nd.array(drawn(3), device=device)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "bool"])
@pytest.mark.parametrize("shape", [(3, 50), (2, 3, 4), (7,), (0, 3), (3, 0)])
def test_softmax_and_means_have_the_formulas(device, dtype, shape):
    x = nd.array(np.random.default_rng(0).normal(0, 3, shape), device=device).astype(dtype)
    wide = x.numpy().astype("float64")
    for axis in range(-1, len(shape)):
        if not x.size:
            assert x.softmax(axis).shape == shape
            continue
        e = np.exp(wide - wide.max(axis, keepdims=True))
        expected = e / e.sum(axis, keepdims=True)
        for log in (False, True):
            found = x.softmax(axis, log)
            wanted = (np.log(expected) if log else expected).astype("float32")
            tolerance = {"float16": 2e-2, "bfloat16": 6e-2}.get(dtype, 2e-5)
            np.testing.assert_allclose(
                found.numpy().astype("float32"), wanted, rtol=tolerance, atol=tolerance
            )
        found = x.mean(axis)
        assert found.dtype == (dtype if "float" in dtype else "float64")
        tolerance = {"float16": 2e-3, "bfloat16": 1e-2}.get(dtype, 1e-5)
        wanted = wide.mean(axis).astype("float32")
        np.testing.assert_allclose(
            found.numpy().astype("float32"), wanted, rtol=tolerance, atol=tolerance
        )
    with pytest.raises(ValueError, match="softmax: axis 9 is out of range"):
        x.softmax(9)
