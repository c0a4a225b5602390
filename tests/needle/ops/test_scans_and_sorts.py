"""Scans, sorts and what follows from them, beside NumPy and PyTorch."""

import numpy as np
import pytest

import needle as ndl
from needle import ops
from needle.errors import ShapeError, TraceError
from needle.trace import trace


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def x(rng):
    """With equal elements in every row."""
    return np.round(rng.normal(size=(3, 4, 50)), 1)


def same(found, wanted):
    np.testing.assert_allclose(found.numpy(), np.asarray(wanted), rtol=1e-9, atol=1e-12)


@pytest.mark.peer
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"])
def test_scans_and_their_gradients(name, axis, x):
    torch = pytest.importorskip("torch")
    a, b = ndl.Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    found, wanted = getattr(ops, name)(a, axis), getattr(torch, name)(b, axis)
    if name in ("cummax", "cummin"):
        same(found[1], wanted[1])
        found, wanted = found[0], wanted[0]
    same(found, wanted.detach())
    weights = np.cos(np.arange(x.size)).reshape(x.shape)
    (found * ndl.Tensor(weights)).sum().backward()
    (wanted * torch.tensor(weights)).sum().backward()
    same(a.grad, b.grad)


@pytest.mark.peer
@pytest.mark.parametrize("reverse", [False, True])
def test_the_gradient_of_logcumsumexp_beside_infinities(reverse):
    torch = pytest.importorskip("torch")
    inf = np.inf
    rows = [[-inf, -inf, 0, 1], [0, -inf, 1, -inf], [-inf] * 4, [1, inf, 2, 3], [-inf, 2, inf, 1]]
    x = np.array(rows, "float64")
    a, b = ndl.Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    turned = b.flip(1) if reverse else b
    wanted = torch.logcumsumexp(turned, 1)
    wanted = wanted.flip(1) if reverse else wanted
    found = ops.logcumsumexp(a, 1, reverse)
    same(found, wanted.detach())
    weights = np.array([1, -2, 3, 0.5])
    found.backward(ndl.Tensor(np.broadcast_to(weights, x.shape)))
    wanted.backward(torch.tensor(np.broadcast_to(weights, x.shape).copy()))
    # PyTorch has NaN before the first finite element, where exp(x) and so every term is 0.
    leading = np.isneginf(found.numpy())
    assert leading.sum() >= 5 and np.isnan(b.grad.numpy()[leading]).all()
    np.testing.assert_array_equal(a.grad.numpy()[leading], 0)
    np.testing.assert_allclose(a.grad.numpy()[~leading], b.grad.numpy()[~leading], rtol=1e-12)


@pytest.mark.peer
def test_searches_in_lines(rng):
    torch = pytest.importorskip("torch")
    lines = np.round(rng.normal(size=(2, 3, 9)), 1).astype("float32")
    values = np.round(rng.normal(size=(2, 3, 5)), 1).astype("float32")
    values[0, 0, 0] = np.nan
    order = lines.argsort(-1)
    ordered = np.take_along_axis(lines, order, -1)
    for given in ({}, {"right": True}, {"side": "left"}, {"side": "right"}, {"out_int32": True}):
        for line, wanted, more in (
            (ordered, values, {}),
            (lines, values, {"sorter": order}),
            (ordered[0, 0], values, {}),
            (ordered[0, 0], values[:, 0].T, {}),  # strided
            (ordered[0, 0], 0.25, {}),
        ):
            ours, theirs = (
                {**given, **{k: make(v) for k, v in more.items()}}
                for make in (ndl.Tensor, torch.from_numpy)
            )
            mine = wanted if isinstance(wanted, float) else ndl.Tensor(wanted)
            other = wanted if isinstance(wanted, float) else torch.from_numpy(wanted).contiguous()
            found = ops.searchsorted(ndl.Tensor(line), mine, **ours)
            expected = torch.searchsorted(torch.from_numpy(line), other, **theirs)
            assert found.dtype == str(expected.dtype).removeprefix("torch.")
            np.testing.assert_array_equal(found.numpy(), expected.numpy())
    found = ops.bucketize(ndl.Tensor(values), ndl.Tensor(ordered[0, 0]), out_int32=True)
    expected = torch.bucketize(*map(torch.from_numpy, (values, ordered[0, 0])), out_int32=True)
    assert found.dtype == "int32"
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_searches_that_do_not_fit():
    line, values = ndl.zeros(2, 3), ndl.zeros(2, 4)
    for call, error, message in (
        (lambda: ops.searchsorted(line, values, side="up"), ValueError, "side 'up'"),
        (lambda: ops.searchsorted(line, values, True, side="left"), ValueError, "contradicts"),
        (lambda: ops.searchsorted(line, ndl.zeros(3, 4)), ShapeError, "same axes as the values"),
        (lambda: ops.searchsorted(line, 1.0), ShapeError, "same axes as the values"),
        (
            lambda: ops.searchsorted(line, values, sorter=ndl.Tensor([0])),
            ShapeError,
            r"sorter has shape \(1,\)",
        ),
        (lambda: ops.bucketize(values, line), ShapeError, r"boundaries have shape \(2, 3\)"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_the_gradient_of_a_product_with_zeros():
    a = ndl.Tensor(np.array([2.0, 0.0, 3.0, 0.0]), requires_grad=True)
    ops.prod(a).backward()
    same(a.grad, [0, 0, 0, 0])
    a = ndl.Tensor(np.array([2.0, 0.0, 3.0]), requires_grad=True)
    ops.prod(a).backward()
    same(a.grad, [0, 6, 0])


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_long_sums_of_every_kind(dtype, rng):
    x = rng.integers(0, 2, (3, 1 << 16)).astype(dtype)
    found = ops.cumsum(ndl.Tensor(x), 1)
    np.testing.assert_array_equal(found.numpy(), np.cumsum(x, 1, dtype="int64"))


@pytest.mark.peer
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_sort_is_stable_and_nan_is_largest(axis, descending, x):
    torch = pytest.importorskip("torch")
    x[0, 1, 3] = x[0, 1, 7] = x[2, 1, 3] = np.nan
    found = ops.sort(ndl.Tensor(x), axis, descending)
    wanted = torch.sort(torch.tensor(x), stable=True, dim=axis, descending=descending)
    same(found[0], wanted[0])
    same(found[1], wanted[1])


@pytest.mark.peer
def test_choices_from_an_order(x):
    torch = pytest.importorskip("torch")
    a, b = ndl.Tensor(x), torch.tensor(x)
    for largest in (True, False):
        same(ops.topk(a, 2, 1, largest)[0], b.topk(2, 1, largest)[0])
    same(ops.kthvalue(a, 2, 1)[0], b.kthvalue(2, 1)[0])
    same(ops.median(a, 1), b.median(1)[0])
    same(ops.quantile(a, [0.1, 0.5, 1], (0, 2)), np.quantile(x, [0.1, 0.5, 1], (0, 2)))
    edges = np.array([-1.0, 0, 0.5])
    for right in (False, True):
        wanted = torch.bucketize(b, torch.tensor(edges), right=right)
        same(ops.bucketize(a, ndl.Tensor(edges), right), wanted)


def test_reductions(x):
    a = ndl.Tensor(x)
    same(ops.argmin(a, 1), x.argmin(1))
    same(ops.any(a, 0), x.any(0))
    same(ops.all(a, 2), x.all(2))
    same(ops.count_nonzero(a, (0, 1)), np.count_nonzero(x, axis=(0, 1)))
    same(ops.std(a, 2, correction=1), x.std(2, ddof=1))
    same(ops.prod(a, (0, 1), keepdims=True), x.prod((0, 1), keepdims=True))
    for order in (0, 1, 2, 3, np.inf, -np.inf):
        same(ops.norm(a, order, 1), np.linalg.norm(x, order, 1))


def test_the_norm_of_zeros_has_a_gradient():
    a = ndl.Tensor(np.zeros(3), requires_grad=True)
    ops.norm(a).backward()
    same(a.grad, [0, 0, 0])


def test_counts(x, rng):
    numbers = rng.integers(0, 9, 50)
    weights = rng.normal(size=50)
    same(ops.bincount(ndl.Tensor(numbers), minlength=12), np.bincount(numbers, minlength=12))
    found = ops.bincount(ndl.Tensor(numbers), ndl.Tensor(weights), length=9)
    same(found, np.bincount(numbers, weights, 9))
    for span in (None, (-1.0, 1.0)):
        for found, wanted in zip(
            ops.histogram(ndl.Tensor(x), 7, span), np.histogram(x, 7, span), strict=True
        ):
            same(found, wanted)


def test_refusals(x):
    a = ndl.Tensor(x)
    with pytest.raises(ShapeError, match=r"topk: k 51 is not within 0\.\.50"):
        ops.topk(a, 51)
    with pytest.raises(ShapeError, match=r"kthvalue: k 0 is not within 1\.\.50"):
        ops.kthvalue(a, 0)
    with pytest.raises(ValueError, match=r"q 1\.5 is not a number within"):
        ops.quantile(a, 1.5)
    with pytest.raises(IndexError, match="negative"):
        ops.bincount(ndl.Tensor(np.array([1, -1])))


def test_what_values_decide_is_refused_in_a_trace():
    with pytest.raises(TraceError, match=r"bincount: .* needs length="):
        trace(ops.bincount, np.array([1, 2]))
    with pytest.raises(TraceError, match=r"histogram: .* needs range="):
        trace(ops.histogram, np.ones(3))
