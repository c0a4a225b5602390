"""Products of vectors and matrices against NumPy's of the same name, with gradients."""

import numpy as np
import pytest

import needle as ndl
from needle import ops
from needle.errors import ShapeError
from tests.needle.directional import check_gradients

METHODS = {"bmm", "outer", "dot", "kron", "trace", "cross"}

# name, shapes, further arguments
CASES = [
    ("bmm", [(2, 3, 4), (2, 4, 5)], ()),
    ("tensordot", [(2, 3, 4), (3, 4, 5)], ()),
    ("tensordot", [(2, 3, 4), (4, 5)], (1,)),
    ("tensordot", [(2, 3), (4,)], (0,)),
    ("tensordot", [(2, 3, 4), (4, 3, 5)], (([1, 2], [1, 0]),)),
    ("tensordot", [(2, 3, 4), (4, 5)], ((-1, 0),)),
    ("tensordot", [(2, 3), (2, 3)], ()),
    ("outer", [(3,), (4,)], ()),
    ("outer", [(3, 2), (4,)], ()),
    ("dot", [(3,), (3,)], ()),
    ("dot", [(2, 3), (3,)], ()),
    ("dot", [(2, 3), (3, 4)], ()),
    ("dot", [(2, 3, 4), (5, 4, 6)], ()),
    ("dot", [(2, 3, 4), (4,)], ()),
    ("dot", [(), (3,)], ()),
    ("kron", [(2, 3), (4, 5)], ()),
    ("kron", [(3,), (4, 5)], ()),
    ("kron", [(2, 3, 2), (4,)], ()),
    ("kron", [(), (4,)], ()),
    ("trace", [(3, 4)], ()),
    ("trace", [(3, 4, 5)], (1, 0, 2)),
    ("trace", [(3, 4)], (-2,)),
    ("cross", [(2, 3), (2, 3)], ()),
    ("cross", [(2, 3), (3,)], ()),
    ("cross", [(3, 4), (3, 4)], (0,)),
]


def expected(name, arrays, arguments):
    if name == "bmm":
        return np.matmul(*arrays)
    if name == "cross":
        return np.cross(*arrays, axis=arguments[0] if arguments else -1)
    return getattr(np, name)(*arrays, *arguments)


@pytest.mark.parametrize(("name", "shapes", "arguments"), CASES)
def test_is_numpys(name, shapes, arguments, device):
    rng = np.random.default_rng(0)
    for dtype in ("float64", "int32"):
        arrays = [(rng.standard_normal(shape) * 9).astype(dtype) for shape in shapes]
        want = expected(name, arrays, arguments)
        xs = [ndl.Tensor(a, device=device) for a in arrays]
        calls = [getattr(ops, name)]
        assert getattr(ndl, name) is calls[0]
        if name in METHODS:
            calls.append(getattr(ndl.Tensor, name))
        for call in calls:
            got = call(*xs, *arguments)
            assert got.shape == want.shape
            assert got.dtype == want.dtype.name
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "shapes", "arguments"), CASES)
def test_gradients(name, shapes, arguments):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    check_gradients(lambda *xs: getattr(ops, name)(*xs, *arguments), *arrays)


def test_norm_is_a_method():
    x = np.random.default_rng(0).standard_normal((3, 4))
    t = ndl.Tensor(x)
    np.testing.assert_allclose(t.norm().item(), np.linalg.norm(x))
    np.testing.assert_allclose(ndl.norm(t, 1, 1).numpy(), np.linalg.norm(x, 1, 1))


@pytest.mark.parametrize(
    ("name", "shapes", "arguments", "match"),
    [
        ("bmm", [(3, 4), (4, 5)], (), "do not both have 3 axes"),
        ("bmm", [(2, 3, 4), (2, 5, 6)], (), r"not \(batch, n, m\) and \(batch, m, p\)"),
        ("bmm", [(1, 3, 4), (2, 4, 6)], (), r"not \(batch, n, m\) and \(batch, m, p\)"),
        ("tensordot", [(2, 3), (2, 3)], (1,), "have extents 3 and 2"),
        ("tensordot", [(2, 3), (2, 3)], (3,), "do not both have 3 axes"),
        ("tensordot", [(2, 3), (2, 3)], (([0], [0, 1]),), "1 axes of a do not pair with 2"),
        ("tensordot", [(2, 3), (2, 3)], (([0], [2]),), "out of range"),
        ("dot", [(2, 3), (2, 3)], (), "do not match"),
        ("dot", [(3,), (1,)], (), r"\(3,\) and \(1,\) differ in extent"),
        ("dot", [(2, 3, 4), (2, 3)], (), "have extents 4 and 2"),
        ("cross", [(2, 4), (2, 4)], (), "extent 4, not 3"),
        ("cross", [(2, 3), (3, 3)], (), "do not broadcast"),
        ("trace", [(3,)], (), "out of range"),
    ],
)
def test_refused(name, shapes, arguments, match):
    with pytest.raises(ShapeError, match=match):
        getattr(ops, name)(*[ndl.ones(*shape) for shape in shapes], *arguments)


@pytest.mark.parametrize("name", ["bmm", "tensordot", "outer", "dot", "kron", "cross"])
def test_only_tensors(name):
    with pytest.raises(TypeError, match=rf"{name}: b is a ndarray, not a Tensor"):
        getattr(ops, name)(ndl.ones(3), np.ones(3))
