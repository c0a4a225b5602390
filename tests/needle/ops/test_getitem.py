"""Indexing of Tensors against NumPy: the selected elements, and where their gradients go."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import needle as ndl
from needle import backend_ndarray as nd
from needle.errors import TraceError
from needle.trace import trace

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def keys(draw, shape):
    """Any mixture of ints, slices with any step, None, one Ellipsis, integer arrays and masks."""
    entries, axis, new = [], 0, 0
    while axis < len(shape):
        n = shape[axis]
        kind = draw(st.sampled_from(["int", "slice", "array", "mask", "wide mask", "none", "..."]))
        if kind == "none" and new < 3:
            entries.append(None)
            new += 1
            continue
        if kind == "..." and not any(e is Ellipsis for e in entries):
            entries.append(Ellipsis)
            axis = len(shape) - draw(st.integers(0, len(shape) - axis))
            continue
        if kind == "wide mask" and axis + 1 < len(shape):
            entries.append(draw(hnp.arrays(bool, shape[axis : axis + 2])))
            axis += 2
            continue
        if kind == "int" and n:
            entries.append(draw(st.integers(-n, n - 1)))
        elif kind == "array" and n:
            size = draw(st.sampled_from([(), (0,), (1,), (3,), (2, 1), (2, 3)]))
            dtype = draw(st.sampled_from([np.int64, np.int32]))
            entries.append(draw(hnp.arrays(dtype, size, elements=st.integers(-n, n - 1))))
        elif kind == "mask":
            entries.append(draw(hnp.arrays(bool, n)))
        else:
            entries.append(draw(st.slices(n)))
        axis += 1
    return tuple(entries)


def as_given(draw, device, entry):
    """An index array in one of the forms that a user may pass."""
    if not isinstance(entry, np.ndarray):
        return entry
    kind = draw(st.sampled_from(["numpy", "tensor", "ndarray", "list"]))
    if kind == "tensor":
        return ndl.Tensor(entry, device=device)
    if kind == "ndarray":
        return nd.array(entry, device=device)
    return entry.tolist() if kind == "list" and entry.ndim and entry.size else entry


@given(st.data())
def test_values_and_gradients(data):
    device = data.draw(st.sampled_from([ndl.cpu(), ndl.cpu_numpy()]))
    x = np.arange(np.prod(shape := data.draw(shapes)), dtype=np.float64).reshape(shape)
    key = data.draw(keys(shape))
    given_key = tuple(as_given(data.draw, device, e) for e in key)
    if len(given_key) == 1 and data.draw(st.booleans()):
        (given_key,) = given_key
    leaf = ndl.Tensor(x, device=device)
    try:
        expected = x[key]
    except IndexError:
        with pytest.raises((IndexError, ValueError)):
            leaf[given_key]
        return
    picked = leaf[given_key]
    assert picked.shape == expected.shape and picked.dtype == "float64"
    np.testing.assert_array_equal(picked.numpy(), expected)
    out_grad = 1.0 + np.arange(expected.size, dtype=np.float64).reshape(expected.shape)
    picked.backward(ndl.Tensor(out_grad, device=device))
    gradient = np.zeros_like(x)
    np.add.at(gradient, key, out_grad)
    np.testing.assert_array_equal(leaf.grad.numpy(), gradient)


def test_second_order():
    """Differentiate sum(x[i] ** 3) twice: repeated indices count twice."""
    x = ndl.Tensor(np.array([1.0, 2.0, 3.0]))
    (x[[0, 2, 2]] ** 3).sum().backward(create_graph=True)
    slope, x.grad = x.grad, None
    slope.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [6.0, 0.0, 36.0], rtol=1e-12)


@pytest.mark.parametrize("key, error, words", [
    ([2], IndexError, "index 2 .* extent 2"),
    (([0, 1], [5, 0]), IndexError, "index 5 .* extent 3"),
    (([0, 1], [0, 1, 2]), IndexError, "do not broadcast"),
    ([1.5], IndexError, "must be int"),
    (np.array(["a"]), IndexError, "must be int"),
    (True, IndexError, "single bool"),
    (np.ones(3, bool), IndexError, r"\(3,\).*\(2,\)"),
    (np.ones((2, 2), bool), IndexError, r"\(2, 2\).*\(2, 3\)"),
    (([0], [0], [0], [0]), IndexError, "4 for 3"),
    ((..., [0], ...), IndexError, "one '...'"),
])  # fmt: skip
def test_bad_keys(device, key, error, words):
    with pytest.raises(error, match=words):
        ndl.Tensor(np.zeros((2, 3, 4)), device=device)[key]


def test_an_index_on_another_device():
    x = ndl.Tensor(np.zeros(3), device=ndl.cpu())
    for index in (ndl.Tensor([0], device=ndl.cpu_numpy()), nd.array([0], device=ndl.cpu_numpy())):
        with pytest.raises(ValueError, match="different devices"):
            x[index]


def test_what_tracing_can_know():
    x, i = ndl.Tensor(np.zeros((4, 5))), ndl.Tensor(np.array([1, 1]))
    known = np.array([True, False, True, True])
    graph = trace(lambda a, b: (a[b], a[known], a[..., b], a[b, b]), x, i)
    assert [node.spec.shape for node in graph.outputs] == [(2, 5), (3, 5), (4, 2), (2,)]
    with pytest.raises(TraceError, match="number of True elements"):
        trace(lambda a: a[a > 0], x)
