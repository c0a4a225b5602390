"""Matmuls of any shape in tiles of any size, run on the same GPU as checks.py."""

import os
import random

import numpy as np
import pytest

import needle as ndl
from needle import ops
from needle_tvm.kernels.dense.gpu import tiles as gpu_tiles
from tests.needle_tvm.emulated_gpu.checks import program

DRAWS = int(os.environ.get("NEEDLE_PRODUCTS", "8"))


def dense(draw):
    m, k, n = draw(1, 200), draw(16, 300), draw(5, 150)
    return lambda x, w, b: ops.relu(x @ w + b), [(m, k), (k, n), (1, n)]


def transposed(draw):
    m, k, n = draw(1, 100), draw(16, 200), draw(5, 100)

    def apply(x, w):
        return ops.permute(x, (1, 0)) @ ops.permute(w, (1, 0)) * 2.0

    return apply, [(k, m), (n, k)]


def batched(draw):
    b, m, k, n = draw(1, 10), draw(1, 60), draw(8, 100), draw(3, 60)
    return lambda x, w: x @ w, [(b, m, k), (b, k, n)]


def heads(draw):
    b, s, h, e = draw(1, 3), draw(2, 20), draw(1, 4), draw(4, 16)

    def apply(x, w):
        return ops.permute(ops.reshape(x @ w, (b, s, h, e)), (0, 2, 1, 3))

    return apply, [(b, s, 64), (64, h * e)]


def convolution(draw):
    images, each, out, groups = draw(1, 4), draw(1, 20), draw(1, 40), draw(1, 3)
    kernel, stride, padding, dilation = draw(1, 5), draw(1, 2), draw(0, 2), draw(1, 2)
    size = draw(1, 10) + dilation * (kernel - 1)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    shapes = [(images, size, size, groups * each), (kernel, kernel, each, groups * out)]
    return lambda x, w: ops.relu(ops.conv(x, w, **options)), shapes


def drawn(kind, random_, seed):
    """A matmul of a kind, and arrays and tensors to multiply."""

    def draw(low, high):  # half of the extents are multiples of a vector
        number = random_.randint(low, high)
        return number if random_.random() < 0.5 else min(high, -(-number // 8) * 8)

    function, shapes = kind(draw)
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    return function, arrays, [ndl.Tensor(array, requires_grad=False) for array in arrays]


@pytest.mark.parametrize("seed", range(DRAWS))
@pytest.mark.parametrize("kind", [dense, transposed, batched, heads, convolution])
def test_any_tile_computes_the_product(kind, seed, tmp_path, monkeypatch):
    random_ = random.Random(f"{kind.__name__} {seed}")
    function, arrays, tensors = drawn(kind, random_, seed)
    # Any existing tile, and not the one that would be chosen.
    monkeypatch.setattr(gpu_tiles, "cycles", lambda product, tile: random_.random())
    _, ready = program(function, tensors, "tuned", tmp_path / "program")
    (found,) = ready.run(arrays)
    with ndl.no_grad():
        exact = function(*[ndl.Tensor(a.astype(np.float64)) for a in arrays]).numpy()
    # At most 500 float32 terms, each with a rounding error of random sign.
    np.testing.assert_allclose(found, exact, atol=4e-6 * np.abs(exact).max())


def attention(q, k, v, mask=None):
    """softmax(q k^T / 4 + mask) v."""
    scores = q @ ops.permute(k, (0, 1, 3, 2)) * 0.25
    return ops.softmax(scores if mask is None else scores + mask) @ v


@pytest.mark.parametrize("seed", range(2 * DRAWS))
def test_attention_of_any_shape(seed, tmp_path):
    random_ = random.Random(f"attention {seed}")
    batch, heads, queries = (random_.randint(1, n) for n in (3, 4, 70))
    keys, features, values = (random_.randint(1, n) for n in (100, 70, 70))
    shapes = [(batch, heads, n, f) for n, f in ((queries, features), (keys, features))]
    shapes.append((batch, heads, keys, values))
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    if seed % 2:  # a mask that broadcasts, and hides the first keys from most queries
        full = (batch, heads, queries, keys)
        mask = rng.standard_normal([random_.choice((1, n)) for n in full]).astype(np.float32)
        if seed % 4 == 1 and mask.shape[-1] > 1:
            mask[..., : keys - 1] = -np.inf
        arrays.append(mask)
    tensors = [ndl.Tensor(array, requires_grad=False) for array in arrays]
    _, ready = program(attention, tensors, "tuned", tmp_path / "program")
    assert [name for name in kernels(ready) if "attention" in name]
    (found,) = ready.run(arrays)
    with ndl.no_grad():
        exact = attention(*[ndl.Tensor(a.astype(np.float64)) for a in arrays]).numpy()
    # Weights are exponentials of scores, which are sums of up to 70 float32 terms.
    np.testing.assert_allclose(found, exact, atol=1e-5 * np.abs(exact).max())


def test_a_row_that_a_mask_hides_is_nan_and_no_other(tmp_path):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, 2, 20, 8), dtype=np.float32) for _ in range(3)]
    mask = np.zeros((20, 20), np.float32)
    mask[3] = -np.inf
    tensors = [ndl.Tensor(array, requires_grad=False) for array in (*arrays, mask)]
    _, ready = program(attention, tensors, "tuned", tmp_path / "program")
    (found,) = ready.run([*arrays, mask])
    assert np.isnan(found[:, :, 3]).all()
    assert np.isfinite(np.delete(found, 3, axis=2)).all()


def kernels(ready):
    """Names of a program's kernels."""
    return [kernel["kernel"] for kernel in ready.artifact.manifest["kernels"]]
