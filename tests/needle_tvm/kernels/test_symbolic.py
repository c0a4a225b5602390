"""Kernels of symbolic extents against NumPy and PyTorch: each rule and the default schedule."""

from __future__ import annotations

import numpy as np
import pytest

from needle_tvm._tvm.names import relax
from needle_tvm.kernels.conv import winograd
from tests.needle_tvm.symbolic import (
    SIZES,
    Compiled,
    functions_of,
    module_of,
    normal,
    variable,
)

N, M, K = map(variable, "nmk")
op = relax.op


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def layer_norm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def normalised(x):
    unused = relax.const(np.ones(1, "float32"))
    return op.nn.layer_norm(x, unused, unused, axes=[-1], center=False, scale=False)


# The shape, the arrays' shape at a size, the operator, and NumPy's.
CASES = {
    "elementwise": ((N, 50), lambda k: (k, 50), op.exp, np.exp),
    "all symbolic": ((N, M), lambda k: (k, k + 3), op.exp, np.exp),
    "softmax of rows": ((N, 37), lambda k: (k, 37), lambda x: op.nn.softmax(x, -1), softmax),
    "softmax": ((12, N), lambda k: (12, k), lambda x: op.nn.softmax(x, -1), softmax),
    "softmax across": (
        (N, 40),
        lambda k: (k, 40),
        lambda x: op.nn.softmax(x, 0),
        lambda x: softmax(x, 0),
    ),
    "sum of rows": ((12, N), lambda k: (12, k), lambda x: op.sum(x, -1), lambda x: x.sum(-1)),
    "sum of columns": ((N, 40), lambda k: (k, 40), lambda x: op.sum(x, 0), lambda x: x.sum(0)),
    "max of all": ((N, M), lambda k: (k, k + 3), lambda x: op.max(x), lambda x: x.max()),
    "mean between": (
        (N, 30, M),
        lambda k: (3, 30, k),
        lambda x: op.mean(x, [1]),
        lambda x: x.mean(1),
    ),
    "transposed": (
        (N, M),
        lambda k: (k, k + 5),
        lambda x: op.permute_dims(x, [1, 0]),
        np.transpose,
    ),
    "padded": (
        (N, M),
        lambda k: (k, k + 1),
        lambda x: op.nn.pad(x, [1, 2, 0, 3]),
        lambda x: np.pad(x, [(1, 2), (0, 3)]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_right_at_every_size(name, tmp_path):
    shape, sizes, operator, expected = CASES[name]
    compiled = Compiled(module_of(lambda emit, x: emit(operator(x)), shape), tmp_path)
    for size in SIZES:
        x = normal(*sizes(size))
        np.testing.assert_allclose(compiled(x), expected(x), rtol=2e-5, atol=2e-6)


def test_layer_norm_of_symbolic_rows(tmp_path):
    def function(emit, x, scale, shift):
        return emit(op.nn.layer_norm(x, scale, shift, axes=[-1], epsilon=1e-5))

    compiled = Compiled(module_of(function, (N, M, 96), (96,), (96,), params=2), tmp_path)
    scale, shift = normal(96), normal(96, seed=1)
    for size in SIZES:
        x = normal(size, 3, 96)
        found = compiled(x, scale, shift)
        np.testing.assert_allclose(found, layer_norm(x) * scale + shift, rtol=1e-4, atol=1e-5)


def test_products_of_batches(tmp_path):
    module = module_of(lambda emit, x, y: emit(op.matmul(x, y)), (N, M, 32), (N, 32, M))
    compiled = Compiled(module, tmp_path)
    for size in SIZES:
        x, y = normal(2, size, 32), normal(2, 32, size)
        np.testing.assert_allclose(compiled(x, y), x @ y, rtol=1e-4, atol=2e-5)


def test_concatenation_and_gather(tmp_path):
    def function(emit, index, x, table):
        return emit(op.concat([emit(op.take(table, index, axis=0)), x]))

    module = module_of(function, (N,), (M, 24), (50, 24), params=1, dtypes=["int64"])
    compiled, table = Compiled(module, tmp_path), normal(50, 24)
    for size in SIZES:
        index, x = np.arange(size) % 50, normal(size + 1, 24)
        expected = np.concatenate([table[index], x])
        np.testing.assert_array_equal(compiled(index, x, table), expected)


@pytest.mark.parametrize("padding", [0, 1])
def test_pooling_of_symbolic_images(torch, padding, tmp_path):
    def function(emit, x):
        options = {"pool_size": [3, 3], "strides": [2, 2], "padding": [padding] * 2}
        return emit(op.nn.max_pool2d(x, **options, layout="NHWC"))

    compiled = Compiled(module_of(function, (N, M, 12, 16)), tmp_path)
    for size in (3, 4, 7, 8, 16, 17):
        x = normal(2, size, 12, 16)
        images = torch.from_numpy(x).permute(0, 3, 1, 2)
        expected = torch.nn.functional.max_pool2d(images, 3, 2, padding).permute(0, 2, 3, 1)
        np.testing.assert_array_equal(compiled(x), expected.numpy())


BATCH, IMAGE, ROWS, ALL = (N, 14, 14), (1, N, M), (2, N, 9), (K, N, M)


def convolution(shape, channels, outputs, window, planar=False, **options):
    """A module of a convolution, a bias and a ReLU, whose image may come as planes."""
    size = (*window, channels // options.get("groups", 1), outputs)

    def function(emit, x, w, bias):
        x = emit(op.permute_dims(x, [0, 2, 3, 1])) if planar else x
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        product = emit(op.nn.conv2d(x, w, **options, **layouts))
        return emit(op.nn.relu(emit(op.add(product, bias))))

    batch, *image = shape
    x = (batch, channels, *image) if planar else (batch, *image, channels)
    bounds = dict.fromkeys("nmk", 20)
    return size, module_of(function, x, size, (outputs,), params=2, most=bounds)


@pytest.mark.parametrize(
    ("shape", "channels", "outputs", "window", "options"),
    [
        (BATCH, 8, 24, (3, 3), {"padding": 1}),
        (BATCH, 8, 24, (3, 3), {"padding": 1, "strides": 2}),
        (IMAGE, 8, 24, (3, 3), {"padding": 1}),
        (IMAGE, 8, 24, (3, 3), {"padding": 1, "strides": 2}),
        (IMAGE, 3, 20, (5, 3), {"padding": (2, 0, 2, 2), "planar": True}),
        (ROWS, 16, 16, (3, 3), {"padding": (0, 1, 2, 1), "groups": 16}),
        (ROWS, 16, 16, (1, 1), {"padding": 1, "groups": 16}),
        (ROWS, 8, 24, (1, 1), {"padding": (2, 0, 1, 0)}),
        (ROWS, 8, 24, (3, 3), {"padding": (4, 1, 3, 1)}),
        (ROWS, 16, 32, (3, 1), {"padding": (2, 0, 2, 0), "dilation": 2, "groups": 2}),
        (ALL, 8, 24, (3, 3), {"padding": 1}),
        (ALL, 8, 24, (1, 1), {}),
        (ALL, 8, 24, (1, 1), {"strides": 2}),
    ],
)
def test_convolutions(torch, shape, channels, outputs, window, options, tmp_path):
    size, module = convolution(shape, channels, outputs, window, **options)
    compiled = Compiled(module, tmp_path)
    assert "pack_weight" in functions_of(compiled.module)
    w, bias = normal(*size) / 8, normal(outputs)
    for number in (1, 2, 3, 7, 8, 13, 14, 15):
        values = {N: number, M: number + 2, K: 1 + number % 3}
        x = normal(*(values.get(extent, extent) for extent in shape), channels)
        given = np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if "planar" in options else x
        expected = np.maximum(convolved(torch, x, w, **options) + bias, 0)
        np.testing.assert_allclose(compiled(given, w, bias), expected, rtol=1e-4, atol=1e-5)


def convolved(torch, x, w, padding=0, strides=1, dilation=1, groups=1, planar=False):
    """PyTorch's convolution of NHWC images and HWIO weights."""
    sides = (padding,) * 4 if isinstance(padding, int) else padding
    top, left, bottom, right = sides
    images = torch.from_numpy(x).permute(0, 3, 1, 2)
    images = torch.nn.functional.pad(images, (left, right, top, bottom))
    weights = torch.from_numpy(w).permute(3, 2, 0, 1)
    result = torch.nn.functional.conv2d(
        images, weights, stride=strides, dilation=dilation, groups=groups
    )
    return result.permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("shape", [BATCH, IMAGE, ROWS, ALL])
def test_winograd(torch, shape, m, monkeypatch, tmp_path):
    monkeypatch.setattr(winograd, "tile_size", lambda *_: m)
    size, module = convolution(shape, 16, 32, (3, 3), padding=1)
    compiled = Compiled(module, tmp_path)
    assert "winograd_input" in functions_of(compiled.module)
    w, bias = normal(*size) / 16, normal(32)
    for number in (1, 2, 3, 4, 5, 9, 16):
        values = {N: number, M: number + 2, K: 1 + number % 3}
        x = normal(*(values.get(extent, extent) for extent in shape), 16)
        expected = np.maximum(convolved(torch, x, w, padding=1) + bias, 0)
        # Sums of 144 products and the transforms' coefficients, as in conv/test_winograd.py.
        np.testing.assert_allclose(
            compiled(x, w, bias), expected, rtol=0, atol=2e-5 * np.abs(expected).max()
        )


HEADS, SIZE = 4, 16


def attention(queries, keys):
    """Attention of (N, T, 64) queries to (N, S, 64) keys and values, with a mask (T, S)."""

    def heads(emit, x, length):
        apart = emit(op.reshape(x, (N, length, HEADS, SIZE)))
        return emit(op.permute_dims(apart, [0, 2, 1, 3]))

    def function(emit, q, k, v, mask):
        q, k, v = (heads(emit, x, t) for x, t in ((q, queries), (k, keys), (v, keys)))
        scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
        scores = emit(op.add(emit(op.multiply(scores, relax.const(0.25))), mask))
        mixed = emit(op.matmul(emit(op.nn.softmax(scores, -1)), v))
        together = emit(op.permute_dims(mixed, [0, 2, 1, 3]))
        return emit(op.reshape(together, (N, queries, HEADS * SIZE)))

    width = HEADS * SIZE
    return module_of(function, (N, queries, width), *[(N, keys, width)] * 2, (queries, keys))


@pytest.mark.parametrize(
    ("queries", "keys", "sizes"),
    [
        (M, variable("s"), lambda k: (k, k + 5)),
        (M, M, lambda k: (k, k)),
        (20, 20, lambda k: (20, 20)),
    ],
    ids=["other keys", "itself", "batch alone"],
)
def test_attention(torch, queries, keys, sizes, tmp_path):
    compiled = Compiled(attention(queries, keys), tmp_path)
    assert "attention" in functions_of(compiled.module)
    for size in (1, 2, 7, 8, 16, 31, 32, 33, 64):
        t, s = sizes(size)
        batch = size if queries is not M else 2
        q, k, v = (normal(batch, n, 64, seed=i) for i, n in enumerate((t, s, s)))
        mask = normal(t, s)
        a, b, c = (
            torch.from_numpy(x).reshape(batch, -1, HEADS, SIZE).transpose(1, 2) for x in (q, k, v)
        )
        expected = torch.nn.functional.scaled_dot_product_attention(
            a, b, c, torch.from_numpy(mask), scale=0.25
        )
        expected = expected.transpose(1, 2).reshape(batch, t, 64).numpy()
        np.testing.assert_allclose(compiled(q, k, v, mask), expected, rtol=1e-4, atol=1e-5)
