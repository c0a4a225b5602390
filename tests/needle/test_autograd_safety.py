"""Autograd when its saved values are overwritten, when it runs twice, and in several threads."""

import gc
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import needle as ndl
from needle import nn, ops
from needle.errors import ShapeError


def tensor(values, device=None, **kwargs):
    return ndl.Tensor(np.asarray(values, "float64"), device=device or ndl.cpu(), **kwargs)


def in_threads(work, count=16):
    failures = []

    def guarded(i):
        try:
            work(i)
        except Exception as error:  # raised again below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


# Writes in place

X = np.arange(1.0, 13.0).reshape(3, 4)
SMALL = X / 12


def step(kind, **options):
    def write(x):
        x.grad = tensor(np.ones(x.shape), x.device)
        kind([x], lr=0.1, **options).step()

    return write


WRITES = {
    "item": lambda x: x.cached_data.__setitem__((0, 0), 5),
    "rows": lambda x: x.cached_data.__setitem__(slice(1, 3), 5),
    "picked": lambda x: x.cached_data.__setitem__([0, 2], 5),
    "masked": lambda x: x.cached_data.__setitem__(x.numpy() > 3, 0),
    "added": lambda x: x.cached_data.add_at([0, 0], 1),
    "filled": lambda x: x.cached_data.fill(3),
    "view": lambda x: x.cached_data[1:].permute((1, 0)).fill(3),
    "detached": lambda x: x.detach().cached_data.reshape(12).fill(3),
    "data": lambda x: x.data.cached_data.fill(3),
    "sgd": step(ndl.optim.SGD),
    "momentum": step(ndl.optim.SGD, momentum=0.9),
    "adam": step(ndl.optim.Adam),
    "adamw": step(ndl.optim.AdamW),
}
# The operand of an op: the leaf itself, or a view of it.
READ = {
    "leaf": lambda x: x,
    "slice": lambda x: x[1:],
    "transposed": lambda x: ops.transpose(x),
    "reshaped": lambda x: x.reshape((2, 6)),
    "split": lambda x: ops.split(x, 0)[1],
    "broadcast": lambda x: ops.broadcast_to(x, (2, 3, 4)),
}


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_noticed_through_every_view(write, read, device):
    x = tensor(X, device)
    y = READ[read](x)
    loss = (y * y).sum()
    WRITES[write](x)
    x.grad = None
    with pytest.raises(RuntimeError, match=r"multiply needs .* changed in place"):
        loss.backward()
    assert x.grad is None


@pytest.mark.parametrize("write", WRITES)
def test_a_write_to_what_no_gradient_reads_is_harmless(write, device):
    x = tensor(X, device)
    loss = (x * 3.0 + x[1:].sum()).sum()
    WRITES[write](x)
    x.grad = None
    loss.backward()
    expected = np.full((3, 4), 3.0)
    expected[1:] += 12
    np.testing.assert_array_equal(x.grad.numpy(), expected)


def test_a_write_to_a_kept_output_is_noticed(device):
    y = ops.exp(tensor(X, device))
    y.cached_data[0] = 0
    with pytest.raises(RuntimeError, match=r"exp needs .* changed in place"):
        y.sum().backward()


@pytest.mark.parametrize("read", READ)
def test_a_parameter_given_new_data_has_the_gradient_of_the_old(read, device):
    x = tensor(X, device)
    y = READ[read](x)
    loss = (y * y).sum()
    x.data = tensor(X * 100, device)
    loss.backward()
    z = tensor(X, device)
    again = READ[read](z)
    (again * again).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), z.grad.numpy())


def test_a_failed_backward_changes_no_leaf(device):
    a, b = tensor(X, device), tensor(X, device)
    loss = (a * 2.0).sum() + (b * b).sum()
    b.cached_data.fill(0)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()
    assert a.grad is None and b.grad is None


def test_leaves_have_gradients_of_their_own(device):
    """A gradient shares no memory, even if an op passes it to two inputs or as a view."""
    a, b, c = (tensor(X, device) for _ in range(3))
    weights = tensor(X, device)
    (a + b + ops.transpose(ops.transpose(c))).backward(weights)
    a.grad.cached_data.fill(0)
    for other in (b.grad, c.grad, weights):
        np.testing.assert_array_equal(other.numpy(), X)
    a.grad = None
    a.sum().backward()
    a.grad.cached_data[0, 0] = 5  # a full array of ones, and not one broadcast number
    assert a.grad.numpy().sum() == 5 + 11


VIEWS = {
    "none": (lambda x: x, lambda x: x),
    "rows": (lambda x: x[1:], lambda x: x[1:]),
    "column": (lambda x: x[:, 1:2], lambda x: x[:, 1:2]),
    "transposed": (lambda x: ops.transpose(x), lambda x: x.transpose(-1, -2)),
    "flat": (lambda x: x.reshape((12,)), lambda x: x.reshape(12)),
}
FUNCTIONS = {
    "square": (lambda y: y * y, lambda y: y * y),
    "exp": (ops.exp, lambda y: y.exp()),
    "log": (ops.log, lambda y: y.log()),
    "tanh": (ops.tanh, lambda y: y.tanh()),
    "relu": (ops.relu, lambda y: y.relu()),
    "shift": (lambda y: y + 1.0, lambda y: y + 1.0),
    "scale": (lambda y: y * 2.0, lambda y: y * 2.0),
    "sum": (lambda y: y.sum(), lambda y: y.sum()),
}


@pytest.mark.peer
@settings(deadline=None, max_examples=150)
@given(
    read=st.sampled_from(sorted(VIEWS)),
    function=st.sampled_from(sorted(FUNCTIONS)),
    written=st.sampled_from(["nothing", "leaf", "view", "result"]),
    through=st.sampled_from(["none", "rows", "column"]),
)
def test_writes_are_refused_where_torch_refuses_them(read, function, written, through):
    """needle raises whenever torch does, and otherwise has torch's gradient."""
    torch = pytest.importorskip("torch")
    x, z = tensor(SMALL), torch.tensor(SMALL, requires_grad=True)
    y, w = VIEWS[read][0](x), VIEWS[read][1](z)
    out, expected = FUNCTIONS[function][0](y), FUNCTIONS[function][1](w)
    pairs = {"leaf": (x, z), "view": (y, w), "result": (out, expected)}
    if written != "nothing":
        mine, theirs = pairs[written]
        part = through if mine.ndim == 2 else "none"
        VIEWS[part][0](mine.detach()).cached_data.fill(0.5)
        with torch.no_grad():
            VIEWS[part][1](theirs).fill_(0.5)
    try:
        expected.sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        with pytest.raises(RuntimeError, match="changed in place"):
            out.sum().backward()
    else:
        out.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), z.grad.numpy(), rtol=1e-12)


# Backward twice, and its arguments


@pytest.mark.peer
@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f != "scale"])
def test_a_second_backward_is_refused_where_torch_refuses_it(function):
    # "scale" is left out: torch keeps the number it multiplies by as a tensor.
    torch = pytest.importorskip("torch")
    x, z = tensor(SMALL), torch.tensor(SMALL, requires_grad=True)
    y, w = FUNCTIONS[function][0](x).sum(), FUNCTIONS[function][1](z).sum()
    y.backward(retain_graph=True)
    w.backward(retain_graph=True)
    y.backward()
    w.backward()
    try:
        w.backward()
    except RuntimeError as error:
        assert "a second time" in str(error)
        with pytest.raises(RuntimeError, match="retain_graph=True"):
            y.backward()
    else:
        y.backward()
    np.testing.assert_allclose(x.grad.numpy(), z.grad.numpy(), rtol=1e-12)


def test_a_graph_shared_by_two_losses(device):
    x = tensor(X, device)
    y = ops.exp(x)
    first, second = (y * 2.0).sum(), (y * 3.0).sum()
    first.backward()
    with pytest.raises(RuntimeError, match=r"exp: an earlier backward"):
        second.backward()


def test_kept_values_go_while_backward_runs(device):
    """Saved values are released while backward runs, so that its peak is near its start."""
    x = tensor(np.ones((256, 256)), device)
    y = x
    for _ in range(20):
        y = ops.tanh(y)
    loss = y.sum()
    del y
    device.reset_peak_memory_stats()
    before = device.memory_allocated()
    loss.backward()
    size = 256 * 256 * 8
    assert device.memory_allocated() <= before - 18 * size
    assert device.max_memory_allocated() <= before + 5 * size


def test_what_out_grad_must_be(device):
    x = tensor(X, device)
    y = x * 2.0
    with pytest.raises(ShapeError, match=r"\(4,\)"):
        y.backward(tensor(np.ones(4), device))
    other = ndl.cpu() if device is not ndl.cpu() else ndl.cpu_numpy()
    with pytest.raises(ValueError, match="different devices"):
        y.backward(tensor(X, other))
    assert x.grad is None
    y.backward(ndl.Tensor(X.astype("float32"), device=device))  # cast, as torch does
    assert x.grad.dtype == "float64"
    y = x * 2.0
    y.backward()  # not a scalar: starts from ones, as in the course
    np.testing.assert_array_equal(x.grad.numpy(), 2 * X + 2)
    constant = tensor(X, device, requires_grad=False)
    with pytest.raises(RuntimeError, match="does not require a gradient"):
        constant.sum().backward()


# Threads


def test_no_sum_is_lost_when_threads_share_a_leaf(device):
    size = 40_000 if device is ndl.cpu() else 100  # kernels this large let other threads run
    w = tensor(np.ones(size), device)

    def work(i):
        for _ in range(10):
            (w * float(i + 1)).sum().backward()

    in_threads(work)
    np.testing.assert_array_equal(w.grad.numpy(), np.full(size, 10.0 * sum(range(1, 17))))


def test_threads_train_models_of_their_own():
    def losses(seed):
        rng = np.random.default_rng(seed)
        weights = [tensor(rng.normal(size=(40, 40))), tensor(rng.normal(size=(40, 1)))]
        x = tensor(rng.normal(size=(900, 40)), requires_grad=False)
        optimizer = ndl.optim.Adam(weights, lr=0.01)
        found = []
        for _ in range(5):
            optimizer.reset_grad()
            loss = (ops.tanh(x @ weights[0]) @ weights[1]).mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    alone = [losses(seed) for seed in range(16)]
    together = [None] * 16

    def work(i):
        with ndl.no_grad():  # for this thread only
            assert not (tensor([1.0]) * 2.0).requires_grad
        together[i] = losses(i)

    in_threads(work)
    assert together == alone


# Memory after many steps


def training(device):
    ndl.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16, device=device), nn.BatchNorm1d(16, device=device), nn.ReLU(),
        nn.Dropout(0.2), nn.LayerNorm1d(16, device=device), nn.Linear(16, 4, device=device),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    x = ndl.Tensor(rng.normal(size=(32, 8)).astype("float32"), device=device, requires_grad=False)
    y = ndl.Tensor(rng.integers(0, 4, 32), device=device)
    loss_of = nn.SoftmaxLoss()
    optimizer = ndl.optim.Adam(model.parameters(), lr=1e-3)

    def step():
        optimizer.reset_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def test_a_step_leaves_no_cycles(device):
    step = training(device)
    step()
    gc.collect()
    gc.disable()
    try:
        step()
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("steps", [500, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_long_loop_does_not_grow(steps):
    psutil = pytest.importorskip("psutil")
    device = ndl.cpu()
    step = training(device)
    for _ in range(100):
        step()
    process = psutil.Process()
    gc.collect()
    live, grown = device.memory_allocated(), []
    for _ in range(
        3
    ):  # a leak grows every time; what other threads of the process do, now and then
        resident = process.memory_info().rss
        for _ in range(steps):
            step()
        gc.collect()
        grown.append(process.memory_info().rss - resident)
    assert device.memory_allocated() == live
    assert min(grown) <= 2**20  # a leak of 1 KB a step would be 10 MB
