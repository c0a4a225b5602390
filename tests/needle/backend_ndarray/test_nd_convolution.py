"""The native convolutions against the reference device and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from needle import backend_ndarray as nd
from needle.backend_ndarray import convolution
from tests.needle.backend_ndarray.drawing import NATIVE

DTYPES = {"float32": 2e-6, "float64": 1e-14}


@st.composite
def problems(draw):
    """(image (N, H, W, C), kernel, O, stride, padding, dilation) for which a window fits."""
    axes = []
    for _ in range(2):
        kernel, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        padding, stride = draw(st.integers(0, 4)), draw(st.integers(1, 4))
        least = max(1, dilation * (kernel - 1) + 1 - 2 * padding)
        axes.append((draw(st.integers(least, least + 9)), kernel, stride, padding, dilation))
    sizes, kernel, stride, padding, dilation = zip(*axes, strict=True)
    n, c = draw(st.integers(0, 3)), draw(st.sampled_from([0, 1, 2, 3, 5, 16, 33]))
    outputs = draw(st.sampled_from([0, 1, 3, 16, 31, 32, 33, 70]))
    return (n, *sizes, c), kernel, outputs, stride, padding, dilation


def _arrays(shape, dtype, layout, rng):
    """The same values on both devices, in one of several layouts."""
    values = rng.standard_normal(shape).astype(dtype)
    if layout == "channels first":
        stored = np.ascontiguousarray(values.transpose(0, 3, 1, 2))
        return [nd.array(stored, device=d).permute((0, 2, 3, 1)) for d in (NATIVE, nd.cpu_numpy())]
    if layout == "reversed":
        stored = np.ascontiguousarray(values[::-1, ::-1, ::-1, ::-1])
        return [
            nd.array(stored, device=d)[::-1, ::-1, ::-1, ::-1] for d in (NATIVE, nd.cpu_numpy())
        ]
    return [nd.array(values, device=d) for d in (NATIVE, nd.cpu_numpy())]


def _same(ours, reference, terms, dtype):
    a, b = ours.numpy(), reference.numpy()
    assert a.shape == b.shape and a.dtype == b.dtype
    np.testing.assert_allclose(a, b, rtol=0, atol=DTYPES[dtype] * 4 * max(1.0, terms**0.5) * 3)


@given(
    problems(),
    st.sampled_from(sorted(DTYPES)),
    st.sampled_from(["compact", "channels first", "reversed"]),
    st.integers(0, 2**31),
)
def test_the_kernels_agree_with_the_reference(problem, dtype, layout, seed):
    shape, kernel, outputs, *window = problem
    rng = np.random.default_rng(seed)
    x = _arrays(shape, dtype, layout, rng)
    w = _arrays((*kernel, shape[3], outputs), dtype, layout, rng)
    y = [convolution.conv2d(a, b, *window) for a, b in zip(x, w, strict=True)]
    _same(*y, np.prod(kernel) * shape[3], dtype)
    g = _arrays(y[0].shape, dtype, layout, rng)
    back = [convolution.conv2d_input(a, b, shape[1:3], *window) for a, b in zip(g, w, strict=True)]
    _same(*back, np.prod(kernel) * outputs, dtype)
    taps = [convolution.conv2d_weight(a, b, kernel, *window) for a, b in zip(x, g, strict=True)]
    _same(*taps, np.prod(g[0].shape[:3]), dtype)


@pytest.mark.parametrize(
    "size, kernel, stride, padding", [(1, 3, 1, 1), (32, 7, 4, 3), (9, 3, 2, 1)]
)
def test_large_enough_for_threads(size, kernel, stride, padding):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, size, size, 24)).astype("float32")
    w = rng.standard_normal((kernel, kernel, 24, 40)).astype("float32")
    window = (stride, stride), (padding, padding), (1, 1)
    tx = torch.from_numpy(x.transpose(0, 3, 1, 2).astype("float64")).requires_grad_()
    tw = torch.from_numpy(w.transpose(3, 2, 0, 1).astype("float64")).requires_grad_()
    ty = torch.nn.functional.conv2d(tx, tw, stride=stride, padding=padding)
    g = rng.standard_normal(ty.permute(0, 2, 3, 1).shape).astype("float32")
    ty.backward(torch.from_numpy(g.transpose(0, 3, 1, 2).astype("float64")))
    a, b, c = nd.array(x), nd.array(w), nd.array(g)
    found = [
        convolution.conv2d(a, b, *window),
        convolution.conv2d_input(c, b, (size, size), *window),
        convolution.conv2d_weight(a, c, (kernel, kernel), *window),
    ]
    expected = [ty.permute(0, 2, 3, 1), tx.grad.permute(0, 2, 3, 1), tw.grad.permute(2, 3, 1, 0)]
    terms = [w[..., 0].size, w[..., 0, :].size, g[..., 0].size]
    for ours, theirs, n in zip(found, expected, terms, strict=True):
        np.testing.assert_allclose(
            ours.numpy(), theirs.detach().numpy(), rtol=0, atol=1e-6 * n**0.5 * 4
        )


@pytest.mark.parametrize("device", [NATIVE, nd.cpu_numpy()], ids=str)
@pytest.mark.parametrize(
    "x, w, window",
    [
        ((1, 4, 4, 3), (2, 2, 4, 1), ((1, 1), (0, 0), (1, 1))),
        ((1, 4, 4, 3), (5, 2, 3, 1), ((1, 1), (0, 0), (1, 1))),
        ((1, 4, 4, 3), (2, 2, 3, 1), ((0, 1), (0, 0), (1, 1))),
        ((1, 4, 4, 3), (2, 2, 3, 1), ((1, 1), (-1, 0), (1, 1))),
        ((1, 4, 4, 3), (2, 2, 3, 1), ((1, 1), (0, 0), (1, 0))),
        ((4, 4, 3), (2, 2, 3, 1), ((1, 1), (0, 0), (1, 1))),
    ],
)
def test_what_does_not_fit_is_refused(device, x, w, window):
    with pytest.raises(ValueError, match="conv2d"):
        convolution.conv2d(nd.empty(x, device=device), nd.empty(w, device=device), *window)


@pytest.mark.parametrize("window", [((1, 1), (2**31, 2**31), (1, 1)), ((1, 1), (2**62, 1), (1, 1))])
def test_more_than_memory_is_refused(window):
    x, w = nd.empty((1, 4, 4, 1)), nd.empty((1, 1, 1, 1))
    with pytest.raises((ValueError, MemoryError)):
        convolution.conv2d(x, w, *window)


def test_other_dtypes_are_refused_by_name():
    x = nd.array(np.ones((1, 2, 2, 1), "int32"))
    with pytest.raises(TypeError, match="conv2d is not defined for int32"):
        convolution.conv2d(x, nd.array(np.ones((1, 1, 1, 1), "int32")), (1, 1), (0, 0), (1, 1))
