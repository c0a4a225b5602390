"""x.at[key].set, add, max and min against NumPy's assignments, and where gradients go."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import needle as ndl
from needle.errors import TraceError
from needle.testing import assert_close
from needle.trace import trace
from tests.needle.ops.test_getitem import as_given, keys, shapes

HOW = ["set", "add", "max", "min"]


def numpys(how, x, key, value):
    """What NumPy makes of a copy of x."""
    out = x.copy()
    if how == "set":
        out[key] = value
    else:
        # Broadcast here: NumPy 2.4 reads behind a value of fewer dimensions than an index array.
        whole = np.broadcast_to(value, x[key].shape).copy()
        {"add": np.add, "max": np.maximum, "min": np.minimum}[how].at(out, key, whole)
    return out


@given(st.data())
def test_values_and_gradients(data):
    """All are piecewise linear in x and v together: y = (dy/dx) x + (dy/dv) v, so that <g, y> is
    the sum of both products with gradients."""
    device = data.draw(st.sampled_from([ndl.cpu(), ndl.cpu_numpy()]))
    shape = data.draw(shapes)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.permutation(1 + np.arange(np.prod(shape), dtype=np.float64)).reshape(shape)
    key = data.draw(keys(shape))
    try:
        taken = x[key]
    except IndexError:
        return
    given_key = tuple(as_given(data.draw, device, e) for e in key)
    lead = data.draw(st.integers(0, taken.ndim))
    v_shape = tuple(data.draw(st.sampled_from([n, n, 1])) for n in taken.shape[lead:])
    v = rng.standard_normal(v_shape) * 10
    how = data.draw(st.sampled_from(HOW))
    leaf, value = ndl.Tensor(x, device=device), ndl.Tensor(v, device=device)
    got = getattr(leaf.at[given_key], how)(value)
    want = numpys(how, x, key, v)
    np.testing.assert_array_equal(got.numpy(), want)
    np.testing.assert_array_equal(leaf.numpy(), x)
    g = rng.standard_normal(shape)
    got.backward(ndl.Tensor(g, device=device))
    dx, dv = leaf.grad.numpy(), value.grad.numpy()
    assert_close(np.asarray((dx * x).sum() + (dv * v).sum()), np.asarray((g * want).sum()),
                 1 + x.size, scale=1 + np.abs(want).sum() * 10)  # fmt: skip
    if how == "add":
        np.testing.assert_array_equal(dx, g)
    if how == "set":
        kept = np.ones(shape, bool)
        kept[key] = False
        np.testing.assert_array_equal(dx, np.where(kept, g, 0))


@pytest.mark.parametrize("how", ["max", "min"])
def test_equal_elements_share_a_gradient(device, how):
    x, v = ndl.Tensor(np.zeros(3), device=device), ndl.Tensor(np.zeros(3), device=device)
    getattr(x.at[[1, 1, 2]], how)(v).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [1, 1 / 3, 1 / 2])
    np.testing.assert_allclose(v.grad.numpy(), [1 / 3, 1 / 3, 1 / 2])


def test_second_order(device):
    """sum(y ** 3) for y = x with [v0, v1, v2] at [0, 2, 2], of which v2 stays."""
    x = ndl.Tensor(np.array([1.0, 2.0, 3.0, 4.0]), device=device)
    v = ndl.Tensor(np.array([5.0, 6.0, 7.0]), device=device)
    (x.at[[0, 2, 2]].set(v) ** 3).sum().backward(create_graph=True)
    slope = x.grad.sum() + v.grad.sum()
    x.grad = v.grad = None
    slope.backward()
    np.testing.assert_allclose(x.grad.numpy(), [0, 12, 0, 24])
    np.testing.assert_allclose(v.grad.numpy(), [30, 0, 42])


def test_numbers_and_dtypes(device):
    x = ndl.Tensor(np.arange(6).reshape(2, 3), device=device)
    assert x.at[0].set(2.7).dtype == "int64" and x.at[0].set(2.7).numpy()[0, 0] == 2
    with pytest.raises(ValueError, match="outside the range of int64"):
        x.at[0].set(float("nan"))
    half = ndl.Tensor(np.ones(3, "f"), dtype="float16", device=device)
    total = half.at[[0, 0, 0]].add(ndl.Tensor(np.full(3, 2.0**-11), device=device))
    # Each term alone is lost in float16; their sum is taken in float32 and rounded once.
    assert total.dtype == "float16" and total.numpy()[0] == np.float16(1 + 3 * 2.0**-11)
    flags = ndl.Tensor(np.array([True, False]), device=device)
    np.testing.assert_array_equal(flags.at[1].set(True).numpy(), [True, True])


def test_masks_while_tracing():
    x = ndl.Tensor(np.zeros((3, 4)))
    graph = trace(lambda a, m: (a.at[a > 0].set(1.0), a.at[m].add(a[0])), x,
                  ndl.Tensor(np.ones(3, bool)))  # fmt: skip
    assert [node.spec.shape for node in graph.outputs] == [(3, 4), (3, 4)]
    with pytest.raises(TraceError, match="number of True elements"):
        trace(lambda a: a.at[a > 0].set(ndl.zeros(1, 3, 5)), x)
