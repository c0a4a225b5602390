"""`needle.scan` beside PyTorch's loops, and what it takes and refuses."""

import collections
import os
import resource
import threading

import numpy as np
import pytest

import needle as ndl
from needle import nn
from needle.errors import ShapeError, TraceError
from tests.needle.directional import check_gradients
from tests.needle.loops.rows import ROWS


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def h(rng):
    return ndl.Tensor(rng.normal(size=3))


@pytest.fixture
def x(rng):
    return ndl.Tensor(rng.normal(size=(5, 3)))


def same(found, wanted):
    np.testing.assert_allclose(found.numpy(), np.asarray(wanted), rtol=1e-9, atol=1e-12)


def total(m, values):
    return sum((value * m.cos(value)).sum() for value in values)


# Beside PyTorch


def with_scan(cell, states, xs, w, reverse):
    after, ys = ndl.scan(lambda s, x: cell(ndl, s, x, w), list(states), xs, reverse=reverse)
    return [*after, *ys]


def with_loop(torch, cell, states, xs, w, reverse):
    states, kept = list(states), []
    for x in reversed(list(xs)) if reverse else xs:
        states, ys = cell(torch, states, x, w)
        kept.append(ys)
    stacked = zip(*(kept[::-1] if reverse else kept), strict=True)
    return [*states, *[torch.stack(ys) for ys in stacked]]


@pytest.mark.peer
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_values_and_gradients(row, reverse, rng):
    torch = pytest.importorskip("torch")
    arrays = [rng.normal(size=s) for s in [(3,)] * row.states + [(5, 3), (3, 3)]]
    a = [ndl.Tensor(each) for each in arrays]
    b = [torch.tensor(each, requires_grad=True) for each in arrays]
    found = with_scan(row.cell, a[:-2], *a[-2:], reverse)
    wanted = with_loop(torch, row.cell, b[:-2], *b[-2:], reverse)
    for one, other in zip(found, wanted, strict=True):
        same(one, other.detach())
    for order in (1, 2):
        ours, theirs = total(ndl, found), total(torch, wanted)
        if not theirs.requires_grad:
            break
        more = order == 1
        wanted = torch.autograd.grad(theirs, b, create_graph=more, allow_unused=True)
        used = [n for n, grad in enumerate(wanted) if grad is not None]
        wanted = [wanted[n] for n in used]
        found = ndl.autograd.grad(ours, [a[n] for n in used], create_graph=more)
        for one, other in zip(found, wanted, strict=True):
            same(one, other.detach())


@pytest.mark.parametrize(
    "outputs",
    [slice(0, 1), slice(1, 2), slice(3, 4), slice(1, 4)],
    ids=["a state", "the other state", "one result", "several"],
)
def test_gradients_through_some_results(outputs, rng):
    def function(*tensors):
        a, b, x, w = tensors
        (a, b), ys = ndl.scan(
            lambda s, x: ((ndl.tanh(s[1] + x @ w), s[0] * s[1]), (s[0] * x, s[1].sum())), (a, b), x
        )
        return ndl.concat([each.reshape(-1) for each in (a, b, *ys)[outputs]])

    check_gradients(function, *[rng.normal(size=s) for s in ((3,), (3,), (4, 3), (3, 3))])


def test_gradients_of_third_order(rng):
    @ndl.enable_grad()
    def function(h, x):
        last, _ = ndl.scan(lambda s, x: (ndl.tanh(s * 0.9 + x) * x, s), h, x)
        return ndl.autograd.grad(last.sum(), [h], create_graph=True)[0]

    check_gradients(function, rng.normal(size=3), rng.normal(size=(4, 3)))


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_computed_in_a_cell(create_graph, rng):
    """Of a state and of what is around it."""

    def cell(s, x, w):
        a, b = ndl.autograd.grad((s * s * x * w).sum(), [s, w], create_graph=create_graph)
        return s * 0.5 + 0.1 * a, b * s

    def by_hand(s, x, w):
        a, b = 2 * s * x * w, s * s * x
        if not create_graph:
            a, b = a.detach(), b.detach()
        return s * 0.5 + 0.1 * a, b * s

    arrays, found = [rng.normal(size=s) for s in ((3,), (5, 3), (3,))], []
    for each in (cell, by_hand):
        h, x, w = leaves = [ndl.Tensor(a) for a in arrays]
        last, ys = ndl.scan(lambda s, x, each=each, w=w: each(s, x, w), h, x)
        total(ndl, (last, ys)).backward()
        found.append([last, ys, *(each.grad for each in leaves if each.grad is not None)])
    for one, other in zip(*found, strict=True):
        same(one, other.numpy())


def test_scans_in_scans(rng):
    def function(h, x, w):
        def third(p, u):
            return p * 0.5 + u * w, None

        def second(q, z):
            return ndl.scan(lambda p, u: third(p, u * q), q, ndl.stack([z, q]))[0], q.sum() * z

        return ndl.scan(lambda s, x: ndl.scan(second, s, ndl.stack([x, x * s])), h, x)[1]

    arrays = [rng.normal(size=s) * 0.5 for s in ((3,), (3, 3), (3,))]
    h, x, w = arrays
    s, kept = h, []
    for x_t in x:
        zs, inner = (x_t, x_t * s), []
        for z in zs:
            q = p = s
            inner.append(q.sum() * z)
            for u in (z, q):
                p = p * 0.5 + u * q * w
            s = p
        kept.append(inner)
    same(function(*map(ndl.Tensor, arrays)), kept)
    check_gradients(function, *arrays)


# What it takes


def test_trees(h, x):
    Pair = collections.namedtuple("Pair", "a b")
    state, ys = ndl.scan(
        lambda s, x: (
            {"d": [s["d"][0], None], "c": Pair(s["c"].b + x[0], s["c"].a)},
            Pair(x, None),
        ),
        {"c": Pair(h, h * 2), "d": [h, None]},
        [x, {"z": x}],
    )
    assert list(state) == ["c", "d"] and state["d"][1] is None and ys.b is None
    same(state["c"].a, h.numpy() * 2 + x.numpy()[[0, 2, 4]].sum(0))
    same(ys.a[1]["z"], x.numpy())


@pytest.mark.parametrize(
    ("state", "dtype"),
    [
        (0, "int64"),
        (0.0, "float32"),
        (True, "bool"),
        (np.float64(0), "float64"),
        (np.int8(0), "int8"),
    ],
)
def test_numbers_are_states(state, dtype, x):
    last, ys = ndl.scan(lambda s, x: (s, s), state, x)
    assert (last.dtype, last.shape, ys.dtype, ys.shape) == (dtype, (), dtype, (5,))


def test_numbers_are_on_the_device_of_the_slices(x):
    xs = ndl.Tensor(x.numpy(), device=ndl.cpu_numpy())
    count, last = ndl.scan(lambda s, x: ((s[0] + 1, s[1] + x.sum()), None), (0, np.float64(1)), xs)[
        0
    ]
    assert (count.item(), count.device) == (5, last.device)
    assert last.device == xs.device


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "float16", "bfloat16"])
def test_dtypes_of_states(dtype):
    """Small integers wrap around, and halves are rounded, in each step."""
    first = ndl.Tensor(np.array([1, 100])).astype(dtype)
    last, ys = ndl.scan(lambda s, _: ((s * 3 + s).astype(dtype), s), first, length=9)
    s = first
    for t in range(9):
        np.testing.assert_array_equal(ys[t].numpy(), s.numpy())
        s = (s * 3 + s).astype(dtype)
    np.testing.assert_array_equal(last.numpy(), s.numpy())


def test_lengths(h, x):
    cell = lambda s, x: (s * 0.5 + x, (s, x @ x))  # noqa: E731
    for count in (0, 1):
        last, (states, products) = ndl.scan(cell, h, x[:count])
        assert (states.shape, products.shape) == ((count, 3), (count,))
        last.sum().backward()
        same(last, h.numpy() * 0.5**count + x.numpy()[:count].sum(0))
        same(h.grad, np.full(3, 0.5**count))
        h.grad = None
    assert ndl.scan(lambda s, _: (s, s), h, length=np.int64(0))[1].shape == (0, 3)
    assert ndl.scan(lambda s, x: (s, x), (), x)[1].shape == (5, 3)
    assert ndl.scan(lambda s, x: (None, None), None, length=3) == (None, None)


def test_arrays_of_others(h):
    torch = pytest.importorskip("torch")
    for xs in (np.ones((2, 3)), torch.ones(2, 3, dtype=torch.float64)):
        same(ndl.scan(lambda s, x: (s + x, None), h, xs)[0], h.numpy() + 2)


def test_gradients_of_maxima():
    """The largest element is found among the values that it was found in."""
    x = ndl.Tensor(np.array([[0.3, 0.1], [0.1, 0.2]]))
    _, ys = ndl.scan(lambda s, x: (s, ndl.amax(ndl.tanh(x + s), 0)), ndl.zeros(2), x)
    ys.sum().backward()
    same(x.grad, np.where(x.numpy() > 0.15, 1 - np.tanh(x.numpy()) ** 2, 0))


def test_inputs_that_require_no_gradient(h, x):
    index = np.array([2, 0, 1, 1, 0])
    fixed = ndl.Tensor(x.numpy(), requires_grad=False)
    last, _ = ndl.scan(lambda s, x: (s * 0.5 + x[0] * s[x[1]], None), h, (fixed, index))
    last.sum().backward()
    assert fixed.grad is None and h.grad is not None
    table = ndl.Tensor(np.ones(3))
    wide = ndl.broadcast_to(table[:1], (3,))
    last, _ = ndl.scan(lambda s, x: (s * wide + x, None), h.detach(), fixed)
    last.sum().backward()
    assert table.grad.numpy()[0] != 0 and not table.grad.numpy()[1:].any()


def test_modules_are_cells(rng):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm, self.drop = nn.Linear(3, 3), nn.LayerNorm(3), nn.Dropout(0.5)

        def forward(self, h, x):
            h = self.drop(ndl.tanh(self.norm(self.linear(h) + x)))
            return h, h

    cell, h, x = Cell().eval(), ndl.zeros(2, 3), ndl.randn(4, 2, 3)
    last, ys = ndl.scan(cell, h, x)
    for t in range(4):
        h, _ = cell(h, x[t])
        np.testing.assert_allclose(ys[t].numpy(), h.numpy(), rtol=1e-5, atol=1e-6)
    last.sum().backward()
    assert all(p.grad is not None for p in cell.parameters())
    with pytest.raises(TraceError, match=r"Dropout.*random"):
        ndl.scan(cell.train(), h, x)
    layer = nn.BatchNorm1d(3)
    with pytest.raises(TraceError, match="BatchNorm1d"):
        ndl.scan(lambda s, x: (layer(s) + x, None), h, x)
    assert layer.running_mean.numpy().tolist() == [0, 0, 0]


# What it refuses


CASES = [
    (TypeError, "cell returns Tensor", lambda s, x: s),
    (TypeError, "cell returns tuple", lambda s, x: (s, s, s)),
    (TypeError, "cell returns NoneType", lambda s, x: None),
    (TypeError, "state is a tuple, expected a tensor", lambda s, x: ((s, s), s)),
    (TypeError, "state is None, expected a tensor", lambda s, x: (None, s)),
    (ShapeError, r"float64\[3\] at first and float64\[2\]", lambda s, x: (s[:2], s)),
    (TypeError, r"float64\[3\] at first and float32\[3\]", lambda s, x: (s.astype("float32"), s)),
    (TraceError, "reads the value", lambda s, x: (s + float(x[0]), s)),
    (TraceError, "reads the value", lambda s, x: (s if x[0] > 0 else -s, s)),
    (TraceError, "reads the value", lambda s, x: (s + x.numpy(), s)),
    (TraceError, "draws random numbers", lambda s, x: (s + ndl.randn(3), s)),
    (TraceError, "only in eager code", lambda s, x: (s, ndl.linalg.inv(x.reshape(1, 3)))),
    (ZeroDivisionError, "by zero", lambda s, x: 1 / 0),
]


@pytest.mark.parametrize(("kind", "text", "cell"), CASES)
def test_refused_cells(kind, text, cell, h, x):
    with pytest.raises(kind, match=text):
        ndl.scan(cell, h, x)
    assert ndl.scan(lambda s, x: (s + x, s), h, x)[1].shape == (5, 3)  # nothing is left behind


@pytest.mark.parametrize(
    ("kind", "text", "xs", "length"),
    [
        (TypeError, "give xs or length", None, None),
        (ShapeError, "xs has no axis", np.float64(1), None),
        (
            ShapeError,
            "xs_1 has 3 elements along axis 0, not 5",
            [np.ones((5, 3)), np.ones(3)],
            None,
        ),
        (ShapeError, "xs has 5 elements along axis 0, not 4", np.ones((5, 3)), 4),
        (ValueError, "length=-1", None, -1),
        (TypeError, "float", None, 2.5),
    ],
)
def test_refused_lengths(kind, text, xs, length, h):
    with pytest.raises(kind, match=text):
        ndl.scan(lambda s, x: (s, s), h, xs, length)


def test_values_of_a_cell_do_not_leave_it(h, x):
    kept = []
    ndl.scan(lambda s, x: (kept.append(s) or s + x, s), h, x)
    for use in (lambda: kept[0] + 1, lambda: ndl.scan(lambda s, x: (s + kept[0], s), h, x)):
        with pytest.raises(TraceError, match="made while tracing and has no value"):
            use()


# Time, memory, threads


def test_long_loops(rng):
    h, x = ndl.Tensor(rng.normal(size=4)), ndl.Tensor(rng.normal(size=(10_000, 4)))
    _, ys = ndl.scan(lambda s, x: (ndl.tanh(s * 0.9 + x), s), h, x)
    ys.sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


def test_loops_without_gradients_keep_no_states():
    h, x = ndl.randn(256, 256), ndl.randn(2000, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ndl.no_grad():
        ndl.scan(lambda s, x: (s * 0.9 + x, None), h, x)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # of 524 MB


def test_threads(rng):
    wrong = []

    def run(factor):
        h, x = rng.normal(size=3), rng.normal(size=(5, 3))
        s = h
        for x_t in x:
            s = np.tanh(s * factor + x_t)
        for _ in range(50):
            a = ndl.Tensor(h)
            last, ys = ndl.scan(lambda s, x: (ndl.tanh(s * factor + x), s), a, ndl.Tensor(x))
            ys.sum().backward()
            if not np.allclose(last.numpy(), s):
                wrong.append(factor)

    threads = [threading.Thread(target=run, args=(factor,)) for factor in (0.5, 0.7, 0.9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_forks(h, x):
    wanted = ndl.scan(lambda s, x: (ndl.tanh(s + x), s), h, x)[0].numpy()
    child = os.fork()
    if not child:
        found = ndl.scan(lambda s, x: (ndl.tanh(s + x), s), h, x)[0].numpy()
        os._exit(0 if np.allclose(found, wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0
