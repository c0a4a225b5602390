"""Matmul by our own kernels, and by the BLAS if one was found, against float64."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from needle import backend_ndarray as nd
from needle.backend_ndarray.dtypes import finfo
from tests import ROOT
from tests.needle.backend_ndarray.drawing import (
    DTYPES,
    FLOATS,
    HALVES,
    NATIVE,
    layouts,
    plain,
    same,
    seeds,
    values,
)

SIZES = [0, 1, 2, 3, 7, 8, 9, 15, 31, 33, 48, 64, 65]


def close(got, x, y):
    """Check to within the roundings of a dot product of k terms, which is in float32 and rounded
    for halves; integers and bools exactly."""
    dtype = x.dtype
    truth_type = np.float64 if dtype.name in FLOATS else dtype
    with np.errstate(all="ignore"):
        truth = np.matmul(x.astype(truth_type), y.astype(truth_type))
        scale = np.matmul(np.abs(plain(x)).astype(truth_type), np.abs(plain(y)).astype(truth_type))
    if dtype.name not in FLOATS:
        return same(got, truth)
    got = got.numpy()
    assert got.dtype == dtype and got.shape == truth.shape
    finite = np.isfinite(scale)
    accumulated = "float32" if dtype.name in HALVES else dtype.name
    bound = (x.shape[-1] + 2) * float(finfo(accumulated).eps) * scale[finite]
    if dtype.name in HALVES:
        half = finfo(dtype.name)
        bound += float(half.eps) / 2 * (np.abs(truth[finite]) + bound)
        bound += float(half.smallest_subnormal) / 2
    assert (np.abs(got[finite] - truth[finite]) <= bound).all()
    np.testing.assert_array_equal(np.isnan(plain(got)), np.isnan(truth))


@given(st.data())
def test_batched_matmul(data):
    """Shapes, broadcast batches, layouts, special values."""
    rng = np.random.default_rng(data.draw(seeds))
    dtype = data.draw(st.sampled_from(DTYPES))
    m, k, n = (data.draw(st.sampled_from(SIZES[:10])) for _ in range(3))
    batch = data.draw(st.lists(st.integers(0, 3), max_size=2))
    sides = []
    for rows, columns in ((m, k), (k, n)):
        lead = [1 if rng.random() < 0.3 else b for b in batch][data.draw(st.integers(0, 2)) :]
        flip = data.draw(st.booleans())
        shape = (*lead, columns, rows) if flip else (*lead, rows, columns)
        x = values(rng, shape, dtype, extremes=dtype not in FLOATS)
        a = nd.array(x, device=NATIVE)
        if flip:
            order = (*range(len(lead)), len(lead) + 1, len(lead))
            x, a = x.transpose(order), a.permute(order)
        sides.append((x, a))
    (x, a), (y, b) = sides
    close(a @ b, x, y)


@given(st.data())
def test_strided_matmul(data):
    """Any strides: sliced, flipped, broadcast operands."""
    rng = np.random.default_rng(data.draw(seeds))
    x, a = data.draw(layouts(values(rng, (9, 10), "float32", extremes=False)))
    x, a = x.reshape(x.shape or (1,)), a.reshape(a.shape or (1,))
    while x.ndim < 2:
        x, a = x[None], a[None]
    y = values(rng, (x.shape[-1], 5), "float32", extremes=False)
    close(a @ nd.array(y, device=NATIVE), x, y)


def check_sizes():
    """Check square, tall and flat matmuls across every blocking boundary, in all transpositions."""
    rng = np.random.default_rng(0)
    shapes = [(8, 512, 512), (1, 300, 700), (700, 300, 1), (257, 259, 261), (80, 512, 130),
              (33, 1, 33), (5, 600, 33), (512, 512, 512)]  # fmt: skip
    for m, k, n in shapes:
        for dtype in FLOATS:
            x, y = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n))
            y = y.astype(dtype)
            a, b = nd.array(x), nd.array(y)
            close(a @ b, x, y)
            close(nd.array(x.T.copy()).permute(1, 0) @ b, x, y)
            close(a @ nd.array(y.T.copy()).permute(1, 0), x, y)
            close(a[:, ::-1] @ b[::-1], x, y)


def test_sizes():
    check_sizes()


@pytest.mark.parametrize("choice", ["own", "blas"])
@pytest.mark.parametrize("isa", ["generic", ""])
def test_sizes_by_each_kernel(choice, isa):
    done = subprocess.run(
        [sys.executable, "-c", f"import {__name__} as t; t.check_sizes()"],
        cwd=ROOT,
        env={**os.environ, "NEEDLE_GEMM": choice, "NEEDLE_CPU_ISA": isa},
        capture_output=True, text=True,
    )  # fmt: skip
    if "no BLAS was found" in done.stderr:
        pytest.skip("this build has no BLAS")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("shapes", [((2, 3), (4, 5)), ((2, 2, 3), (3, 3, 4)), ((), (2, 2)),
                                    ((3,), (4,)), ((2, 3), (2,))])  # fmt: skip
def test_bad_shapes(device, shapes):
    a, b = (nd.ones(s, device=device) for s in shapes)
    with pytest.raises(ValueError):
        a @ b


def test_vectors(device):
    x = np.arange(12, dtype=np.float64).reshape(3, 4)
    a = nd.array(x, device=device)
    same(a @ a[0], x @ x[0])
    same(a[:, 0] @ a, x[:, 0] @ x)
    same(a[0] @ a[1], x[0] @ x[1])
