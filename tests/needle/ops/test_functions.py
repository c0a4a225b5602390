"""Functions that are made of ops, against NumPy's or PyTorch's of the same name, with gradients."""

import numpy as np
import pytest

import needle as ndl
from needle import ops
from needle.errors import ShapeError
from needle.trace import trace


def rows(*names):
    return [pytest.param(*row, id=row[0]) for row in names]


# name, needle's arguments after the tensors, NumPy's equal, shapes
NUMPY = rows(
    ("moveaxis", (0, 2), None, (2, 3, 4)),
    ("moveaxis", ((0, -1), (1, 0)), None, (2, 3, 4)),
    ("swapaxes", (0, -1), None, (2, 3, 4)),
    ("flatten", (1, 2), lambda x: x.reshape(2, 12), (2, 3, 4)),
    ("flatten", (), lambda x: x.reshape(1), ()),
    ("unflatten", (1, (2, -1)), lambda x: x.reshape(3, 2, 2), (3, 4)),
    ("unflatten", (-1, (2, 2)), lambda x: x.reshape(0, 2, 2), (0, 4)),
    ("expand", (2, -1, 4), lambda x: np.broadcast_to(x, (2, 3, 4)), (3, 1)),
    ("tile", ((2, 1, 3),), None, (3, 4)),
    ("tile", ((2,),), None, (3, 4)),
    ("repeat", (2, 3), lambda x: np.tile(x, (2, 3)), (4,)),
    ("repeat", (0, 2), lambda x: np.tile(x, (0, 2)), (3, 4)),
    ("repeat_interleave", (3,), lambda x: np.repeat(x, 3), (2, 3)),
    ("repeat_interleave", (2, 1), lambda x: np.repeat(x, 2, 1), (2, 3)),
    ("repeat_interleave", ([0, 2, 1], 1), lambda x: np.repeat(x, [0, 2, 1], 1), (2, 3)),
    ("roll", (2,), None, (3, 4)),
    ("roll", (-5, 1), None, (3, 4)),
    ("roll", ((1, -1), (0, 1)), None, (3, 4)),
    ("roll", (1, 0), None, (0, 4)),
    ("diagonal", (), None, (3, 4)),
    ("diagonal", (1, 2, 0), None, (3, 2, 4)),
    ("diagonal", (-2, -2, -1), None, (2, 4, 3)),
    ("diagonal", (9,), None, (3, 4)),
    ("tril", (), None, (2, 3, 4)),
    ("tril", (-1,), None, (3, 3)),
    ("triu", (1,), None, (3, 4)),
    ("diag", (), None, (4,)),
    ("diag", (2,), None, (3,)),
    ("diag", (-1,), None, (3,)),
    ("diag", (1,), None, (3, 4)),
    ("diag", (-1,), None, (0,)),
    ("windows", (1, 2, 2), lambda x: np.lib.stride_tricks.sliding_window_view(x, 2, 1)[:, ::2],
     (3, 7)),
)  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "expected", "shape"), NUMPY)
def test_is_numpys(name, arguments, expected, shape, device):
    """All of these are linear in their tensor, so that their gradient is their transpose:
    <g, f(x)> = <gradient, x>. Compiled, they are traced: the graph must compute the same."""
    x = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    want = expected(x) if expected else getattr(np, name)(x, *arguments)
    leaf = ndl.Tensor(x, device=device)
    function = getattr(ops, name)
    got = function(leaf, *arguments)
    assert got.dtype == "float64"
    np.testing.assert_array_equal(got.numpy(), want)
    g = np.random.default_rng(0).standard_normal(want.shape)
    got.backward(ndl.Tensor(g, device=device))
    assert (leaf.grad.numpy() * x).sum() == pytest.approx((g * want).sum())
    integers = ndl.Tensor(x.astype("int32"), device=device)
    assert function(integers, *arguments).dtype == "int32"
    graph = trace(lambda a: function(a, *arguments), leaf)
    (spec,) = graph.outputs[0].specs
    assert spec.shape == want.shape


def test_parts(device):
    x = np.arange(14.0).reshape(2, 7)
    leaf = ndl.Tensor(x, device=device)

    def same(parts, wanted):
        assert len(parts) == len(wanted)
        for part, want in zip(parts, wanted, strict=True):
            np.testing.assert_array_equal(part.numpy(), want)

    same(ops.chunk(leaf, 3, 1), [x[:, :3], x[:, 3:6], x[:, 6:]])
    same(ops.chunk(leaf, 5), [x[:1], x[1:]])
    same(ops.chunk(leaf[:, :0], 2, 1), [x[:, :0]] * 2)
    same(leaf.split(4, 1), [x[:, :4], x[:, 4:]])
    same(leaf.split([1, 0, 6], 1), [x[:, :1], x[:, :0], x[:, 1:]])
    same(leaf.unbind(1), list(x.T))
    with pytest.raises(ShapeError, match="do not add up to 7"):
        leaf.split([1, 5], 1)


def test_making(device):
    options = {"device": device}

    def same(got, want):
        np.testing.assert_array_equal(got.numpy(), want)
        assert got.device is device and got.dtype == want.dtype.name

    same(ndl.eye(3, 4, 1, **options), np.eye(3, 4, 1, dtype="f"))
    same(ndl.tri(3, k=-1, dtype="int32", **options), np.tri(3, k=-1, dtype="int32"))
    same(ndl.arange(5, **options), np.arange(5))
    same(ndl.arange(2, -7, -3, **options), np.arange(2, -7, -3))
    same(ndl.arange(3, 1, **options), np.arange(3, 1))
    same(ndl.arange(1, 2, 0.25, **options), np.arange(1, 2, 0.25, dtype="f"))
    same(ndl.arange(1, 4, dtype="float64", **options), np.arange(1.0, 4))
    same(ndl.linspace(-1, 2, 7, **options), np.linspace(-1, 2, 7, dtype="f"))
    same(ndl.full((2, 3), 7, **options), np.full((2, 3), 7))
    same(ndl.full((), 0.5, **options), np.full((), 0.5, "f"))
    same(ndl.full_like(ndl.full((2,), True, **options), False), np.zeros(2, bool))
    assert (
        ndl.empty(2, 3, dtype="int32", **options).spec
        == ndl.empty_like(ndl.full((2, 3), 1, dtype="int32", **options)).spec
    )
    a, b = ndl.arange(3, **options), ndl.linspace(0, 1, 2, **options)
    for indexing in ("ij", "xy"):
        grids = np.meshgrid(a.numpy(), b.numpy(), indexing=indexing)
        for got, want in zip(ndl.meshgrid(a, b, indexing=indexing), grids, strict=True):
            same(got, want)


def test_random_choices(device):
    ndl.manual_seed(3)
    numbers = ndl.randint(-2, 3, (1000,), device=device)
    assert set(numbers.numpy().tolist()) == {-2, -1, 0, 1, 2} and numbers.dtype == "int64"
    assert set(ndl.randint(2, (50,)).numpy().tolist()) == {0, 1}
    assert sorted(ndl.randperm(9, device=device).numpy().tolist()) == list(range(9))
    p = ndl.Tensor(np.array([0.0, 1.0, 0.25]), device=device)
    mean = np.mean([ndl.bernoulli(p).numpy() for _ in range(400)], 0)
    assert mean[0] == 0 and mean[1] == 1 and abs(mean[2] - 0.25) < 0.1
    weights = ndl.Tensor(np.array([[1.0, 0.0, 3.0], [0.0, 2.0, 2.0]]), device=device)
    for replacement in (False, True):
        drawn = np.stack([ndl.multinomial(weights, 2, replacement).numpy() for _ in range(400)])
        assert drawn.shape == (400, 2, 2) and 1 not in drawn[:, 0] and 0 not in drawn[:, 1]
        assert abs((drawn[:, 0, 0] == 2).mean() - 0.75) < 0.1
        assert replacement or (drawn[..., 0] != drawn[..., 1]).all()
    with pytest.raises(ValueError, match="fewer than 3 weights"):
        ndl.multinomial(weights, 3)
    with pytest.raises(ValueError, match="no integer from 3 to 2"):
        ndl.randint(3, 3, (2,))
    for draw in (lambda x: ndl.randint(3, (2,)), ndl.bernoulli, lambda x: ndl.multinomial(x, 1)):
        with pytest.raises(ndl.TraceError, match="random"):
            trace(lambda x, draw=draw: x + draw(x), weights)


def test_what_values_decide(device):
    x = np.array([[3, 0, 1], [0, 3, 3]])
    a = ndl.Tensor(x, device=device)
    np.testing.assert_array_equal(ndl.nonzero(a).numpy(), np.argwhere(x))
    for got, want in zip(a.nonzero(as_tuple=True), np.nonzero(x), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    for axis in (None, 1):
        wanted = np.unique(x, return_inverse=True, return_counts=True, axis=axis)
        for got, want in zip(ndl.unique(a, True, True, axis), wanted, strict=True):
            np.testing.assert_array_equal(got.numpy(), want.reshape(got.shape))
    leaf = ndl.Tensor(x.astype("f"), device=device)
    picked = leaf.masked_select(leaf > 0)
    np.testing.assert_array_equal(picked.numpy(), x[x > 0])
    picked.sum().backward()
    np.testing.assert_array_equal(leaf.grad.numpy(), x > 0)
    for name, call in (
        ("nonzero", ndl.nonzero),
        ("unique", ndl.unique),
        ("masked_select", lambda x: ndl.masked_select(x, x > 0)),
    ):
        with pytest.raises(ndl.TraceError, match=name):
            trace(call, leaf)


def test_assignment_is_refused():
    x = ndl.Tensor([1.0, 2.0])
    with pytest.raises(TypeError, match=r"x.at\[i\].set\(v\)"):
        x[0] = 3.0


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: ndl.gather(x, ndl.arange(3), 0), TypeError, r"gather\(a, axis, index"),
        (lambda x: ndl.gather(x, 0, ndl.full((1, 5), 0)), ShapeError, "longer than"),
        (lambda x: ndl.scatter(x, 0, ndl.full((1, 4), 3), 1.0), IndexError, "3 is out of bounds"),
        (lambda x: ndl.take_along_axis(x, ndl.full((3, 1), 4), 1), IndexError, "out of bounds"),
        (lambda x: ndl.masked_fill(x, x, 0), TypeError, "mask is a float32"),
        (lambda x: x.at[0].set("a"), TypeError, "source is a str"),
        (lambda x: x.at[0].set([[1.0], [2.0]]), TypeError, "source is a list"),
        (lambda x: x.at[5].set(1.0), IndexError, "index 5"),
        (lambda x: x.at[[0, 3]].add(1.0), IndexError, "index 3"),
        (lambda x: x.at[0].set(ndl.full((3,), 1.0)), ShapeError, r"\(3,\) does not broadcast"),
        (lambda x: (x > 0).at[0].add(True), TypeError, "bool"),
        (lambda x: ndl.roll(x, (1, 2), 0), ShapeError, "not one for each"),
        (lambda x: ndl.repeat(x, 2), ShapeError, "must have one number for each axis"),
        (lambda x: ndl.expand(x, -1, 3, 4), ShapeError, "does not expand"),
        (lambda x: ndl.pixel_shuffle(x, 2), ShapeError, "channels, height"),
        (lambda x: ndl.fold(x, 3, 2), ShapeError, "patches"),
        (lambda x: ndl.arange(1, 2, 0), ValueError, "step must not be 0"),
        (lambda x: ndl.diag(ndl.zeros(1, 2, 3)), ShapeError, "vector nor a matrix"),
    ],
)
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call(ndl.zeros(3, 4))
