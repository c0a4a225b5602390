"""Integers of 8 and 16 bits in compiled code: results, wraps and dtypes as NumPy's."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import ops
from needle.backend_ndarray.dtypes import (
    DTYPES,
    SMALL_INTEGER,
    astype,
    finfo,
    is_floating,
    result_type,
)
from needle_tvm.stages import STAGES

# Few compilations: all dtypes are inputs of one model. Quotients are checked in the registry tests.
OTHERS = [dtype for dtype in DTYPES if dtype != "bool"]


def compiled(model, *inputs, **options):
    return needle_tvm.compile(model.eval(), *inputs, **options)


def ends(dtype, rng):
    """Twelve numbers, the ends of an integer's range among them."""
    if dtype not in SMALL_INTEGER:
        return astype(rng.integers(0, 100, 12).astype("float64"), dtype)
    limits = np.iinfo(dtype)
    small = rng.integers(limits.min, limits.max, 9, endpoint=True)
    return np.concatenate([[limits.min, limits.max, 1], small]).astype(dtype)


class Pairs(ndl.nn.Module):
    """Sums and products with every other dtype, and casts to them."""

    def forward(self, x, *others):
        mixed = [f(x, y) for y in others for f in (ops.add, ops.multiply, ops.maximum)]
        return (*mixed, *[x.astype(y.dtype) for y in others], *[y.astype(x.dtype) for y in others])


@pytest.mark.parametrize("stage", [STAGES[0], pytest.param(STAGES[-1], marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", SMALL_INTEGER)
def test_mixed_operands_and_casts(dtype, stage):
    rng = np.random.default_rng(0)
    arrays = [ends(dtype, rng), *[ends(other, rng) for other in OTHERS]]
    inputs = [ndl.Tensor(a, dtype=a.dtype.name, requires_grad=False) for a in arrays]
    model = Pairs()
    results = compiled(model, *inputs, stage=stage)(*inputs)
    for got, want in zip(results, model(*inputs), strict=True):
        assert got.dtype == want.dtype
        rtol = float(finfo(got.dtype).eps) if is_floating(got.dtype) else 0
        got, want = (v.numpy().astype("float64") for v in (got, want))
        np.testing.assert_allclose(got, want, rtol=rtol)
    for (name, array), got in zip(
        zip(OTHERS, arrays[1:], strict=True), results[: 3 * len(OTHERS) : 3], strict=True
    ):
        assert got.dtype == result_type(dtype, name)
        if name in SMALL_INTEGER:
            np.testing.assert_array_equal(got.numpy(), arrays[0] + array)


class Wraps(ndl.nn.Module):
    def forward(self, x, y):
        return x + y, x * 3, -x, x - y, ops.matmul(x.reshape((3, 4)), y.reshape((4, 3))), x.sum()


@pytest.mark.parametrize("dtype", SMALL_INTEGER)
def test_results_wrap_as_those_of_numpy(dtype):
    rng = np.random.default_rng(1)
    x, y = ends(dtype, rng), ends(dtype, rng)[::-1].copy()
    inputs = [ndl.Tensor(a, requires_grad=False) for a in (x, y)]
    with np.errstate(all="ignore"):
        wanted = [x + y, x * 3, -x, x - y, x.reshape(3, 4) @ y.reshape(4, 3)]
    wanted.append(np.sum(x, dtype="int64"))
    for results in (Wraps()(*inputs), compiled(Wraps(), *inputs)(*inputs)):
        for got, want in zip(results, wanted, strict=True):
            assert got.dtype == want.dtype.name
            np.testing.assert_array_equal(got.numpy(), want)


class Scalar(ndl.nn.Module):
    def forward(self, x):
        return x + 200


def test_a_scalar_that_the_dtype_does_not_hold_is_refused():
    x = ndl.Tensor(np.ones(3, "int8"), requires_grad=False)
    with pytest.raises(OverflowError, match="200 is out of bounds for int8"):
        Scalar()(x)
    with pytest.raises(Exception, match="200 is out of bounds for int8"):
        compiled(Scalar(), x)


class Taken(ndl.nn.Module):
    def forward(self, x, index):
        return ops.take(x, index, 0), x[index]


def test_small_integers_are_indices():
    x = np.arange(300, dtype="float32").reshape(100, 3)
    index = np.array([[0, 99], [-1, 5]], "int8")
    inputs = [ndl.Tensor(a, requires_grad=False) for a in (x, index)]
    for results in (Taken()(*inputs), compiled(Taken(), *inputs)(*inputs)):
        for got in results:
            np.testing.assert_array_equal(got.numpy(), x[index])
