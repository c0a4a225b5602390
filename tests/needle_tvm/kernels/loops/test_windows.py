"""Pooling of images, channels first and channels last."""

from itertools import product

import numpy as np
import pytest

from needle.ops.pool import AvgPool, MaxPool
from needle_tvm._tvm.names import TE_NAMESPACE, te, tirx, topi, tvm
from needle_tvm.kernels import cpu
from needle_tvm.kernels.blocks import WRITTEN
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import NODES, module_of, nodes_in
from tests.needle_tvm.kernels.reduce.test_partial import EVERY_WIDTH, TARGETS, run

# (rows, columns) of kernel, stride, dilation, and padding (top, left, bottom, right).
WINDOWS = [
    ((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    ((2, 2), (2, 2), (1, 1), (0, 0, 0, 0)),
    ((2, 2), (2, 2), (1, 1), (1, 1, 0, 0)),
    ((5, 5), (1, 1), (1, 1), (2, 2, 2, 2)),
    ((3, 4), (1, 3), (1, 1), (1, 0, 1, 2)),
    ((4, 3), (2, 2), (1, 3), (0, 3, 0, 3)),
    ((7, 7), (7, 7), (1, 1), (0, 0, 0, 0)),
    ((5, 2), (2, 5), (2, 1), (4, 0, 0, 1)),
    ((1, 3), (1, 2), (1, 1), (0, 1, 0, 1)),
]
SHAPES = [(1, 2, 19, 23), (2, 1, 16, 40), (1, 3, 20, 151)]


def function(shape, window, kind, dtype="float32"):
    kernel, stride, dilation, padding = window
    x = te.placeholder(shape, dtype, name="x")
    plan = (kernel, stride, dilation, padding, kind)
    y = topi.nn.pool2d(x, *plan, layout="NCHW", count_include_pad=False)
    return te.create_prim_func([x, y])


def pooled(x, window, kind):
    """Pooling with NumPy; only elements inside the image count."""
    kernel, stride, dilation, (top, left, bottom, right) = window
    ends = ((0, 0), (0, 0), (top, bottom), (left, right))
    exact = np.pad(x.astype(np.float64), ends)
    inside = np.pad(np.ones(x.shape), ends)
    counts = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, s, d in zip(exact.shape[2:], kernel, stride, dilation, strict=True)
    ]
    taps = []
    for place in product(*map(range, kernel)):
        rows, columns = (
            slice(i * d, i * d + (n - 1) * s + 1, s)
            for i, d, s, n in zip(place, dilation, stride, counts, strict=True)
        )
        taps.append((exact[:, :, rows, columns], inside[:, :, rows, columns]))
    values, seen = (np.stack(each) for each in zip(*taps, strict=True))
    if kind == "max":
        return np.where(seen > 0, values, -np.inf).max(0)
    return values.sum(0) / np.maximum(seen.sum(0), 1)


def computed(fn, x, shape, target="cpu", dtype="float32"):
    target = resolve(target, 2).to_tvm()
    with target:
        built = tvm.compile(module_of(cpu.schedule_function(fn, target)), target=target)
    result = tvm.runtime.tensor(np.zeros(shape, dtype))
    built["main"](tvm.runtime.tensor(x), result)
    return result.numpy()


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_channels_first(shape, window, kind, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    expected = pooled(x, window, kind)
    found = computed(function(shape, window, kind), x, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("window", WINDOWS[:5], ids=str)
def test_every_width_of_vector(window, dtype, target, rng):
    x = rng.integers(-1000, 1000, (1, 3, 17, 37)).astype(dtype)
    expected = pooled(x, window, "max")
    fn = function(x.shape, window, "max", dtype)
    np.testing.assert_array_equal(computed(fn, x, expected.shape, target, dtype), expected)


@pytest.mark.parametrize("target", EVERY_WIDTH, ids=lambda target: target["mcpu"])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_no_element_asks_whether_it_is_inside(kind, target):
    """A condition within a vectorised loop would make TVM run it lane by lane."""
    target = resolve(target, 2).to_tvm()
    fn = cpu.schedule_function(function((1, 8, 56, 56), WINDOWS[0], kind), target)
    assert any(WRITTEN in block.annotations for block in nodes_in(fn.body, NODES.sblock))
    calls = nodes_in(fn.body, NODES.call)
    assert not any(getattr(call.op, "name", "") == "prim.if_then_else" for call in calls)
    for realize in nodes_in(fn.body, NODES.realize):
        assert isinstance(realize.predicate, tirx.IntImm)
    tvm.compile(module_of(fn), target=target)


@pytest.mark.parametrize("channels", [1, 3, 8, 40, 150])
@pytest.mark.parametrize(
    "op",
    [
        MaxPool((3, 3), (2, 2), (1, 1)),
        MaxPool((2, 2), (2, 2)),
        AvgPool((3, 2), (1, 2), (1, 0)),
        MaxPool((3, 2), (1, 1), (1, 1), (2, 1)),
    ],
    ids=lambda op: f"{op.name}{op.kernel}",
)
def test_channels_last(op, channels, rng):
    x = rng.standard_normal((2, 11, 9, channels)).astype(np.float32)
    found, expected = run(op, x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def channels_first(op, shape):
    """A function of needle's pooling between two permutations, and its result's shape."""
    x = te.placeholder(shape, "float32", name="x")
    n, c, h, w = shape
    last = te.compute((n, h, w, c), lambda b, i, j, f: x[b, f, i, j], name="last")
    y = op.emit_te(TE_NAMESPACE, last)
    b, rows, columns, f = (int(extent) for extent in y.shape)
    first = te.compute((b, f, rows, columns), lambda b, f, i, j: y[b, i, j, f], name="first")
    return te.create_prim_func([x, first]), (b, f, rows, columns)


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values_wherever_they_are(value, layout, rng):
    op = MaxPool((3, 3), (2, 2), (1, 1))
    x = rng.standard_normal((1, 20, 21, 19)).astype(np.float32)
    for place in [(0, 0), (0, 20), (19, 0), (19, 20), (7, 11), (10, 10)]:
        x[(0, *place, slice(0, 19, 3))] = value
    x[..., 1] = -np.inf
    if layout == "last":
        found, expected = run(op, x)
    else:
        fn, shape = channels_first(op, (1, 19, 20, 21))
        found = computed(fn, np.ascontiguousarray(x.transpose(0, 3, 1, 2)), shape)
        expected = op.reference(x).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(found, expected)


def test_what_follows_is_done_row_by_row(rng):
    """Average pooling divides by the number of elements inside, and an epilogue may follow."""
    x = te.placeholder((2, 3, 18, 20), "float32", name="x")
    plan = ((3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "avg")
    y = topi.nn.pool2d(x, *plan, layout="NCHW", count_include_pad=False)
    fn = te.create_prim_func([x, topi.nn.relu(topi.add(y, y))])
    given = rng.standard_normal((2, 3, 18, 20)).astype(np.float32)
    expected = np.maximum(2 * pooled(given, WINDOWS[0], "avg"), 0)
    found = computed(fn, given, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
