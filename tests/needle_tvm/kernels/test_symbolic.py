"""Kernels of symbolic extents against NumPy and PyTorch: each rule and the default schedule."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from needle_tvm._tvm.names import relax
from tests.needle_tvm.symbolic import (
    SIZES,
    Compiled,
    functions_of,
    module_of,
    normal,
    variable,
)

N, M = variable("n"), variable("m")
op = relax.op


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
        index, x = np.arange(size) % 50 - 3, normal(size + 1, 24)
        expected = np.concatenate([table[index], x])
        np.testing.assert_array_equal(compiled(index, x, table), expected)


@pytest.mark.parametrize("padding", [0, 1])
def test_pooling_of_symbolic_images(padding, tmp_path):
    def function(emit, x):
        options = {"pool_size": [3, 3], "strides": [2, 2], "padding": [padding] * 2}
        return emit(op.nn.max_pool2d(x, **options, layout="NHWC"))

    compiled = Compiled(module_of(function, (N, M, 12, 16)), tmp_path)
    for size in (3, 4, 7, 8, 16, 17):
        x = normal(2, size, 12, 16)
        images = torch.from_numpy(x).permute(0, 3, 1, 2)
        expected = torch.nn.functional.max_pool2d(images, 3, 2, padding).permute(0, 2, 3, 1)
        np.testing.assert_array_equal(compiled(x), expected.numpy())


@pytest.mark.parametrize("shape", [(N, 14, 14, 8), (1, N, M, 8)], ids=["batch", "image"])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions(shape, stride, tmp_path):
    def function(emit, x, w, bias):
        options = {"strides": stride, "padding": 1, "data_layout": "NHWC", "kernel_layout": "HWIO"}
        product = emit(op.nn.conv2d(x, w, **options))
        return emit(op.nn.relu(emit(op.add(product, bias))))

    compiled = Compiled(module_of(function, shape, (3, 3, 8, 24), (24,), params=2), tmp_path)
    packed = shape[0] is N
    assert ("pack_weight" in functions_of(compiled.module)) == packed
    w, bias = normal(3, 3, 8, 24) / 8, normal(24)
    for size in (1, 2, 3, 7, 8, 13):
        x = normal(size, 14, 14, 8) if packed else normal(1, size, size + 2, 8)
        images, weights = torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(w)
        expected = torch.nn.functional.conv2d(
            images, weights.permute(3, 2, 0, 1), torch.from_numpy(bias), stride, padding=1
        )
        expected = expected.relu().permute(0, 2, 3, 1).numpy()
        np.testing.assert_allclose(compiled(x, w, bias), expected, rtol=1e-4, atol=1e-5)


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
def test_attention(queries, keys, sizes, tmp_path):
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
