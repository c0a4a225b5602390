"""Mixed devices, many threads, forks and interrupts, over the registry where possible."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import needle as ndl
from needle import data, nn, optim
from needle.ops import REGISTRY
from needle.testing import examples

HERE = Path(__file__).parent
OWN = sorted(name for name, op in REGISTRY.items() if op.__module__.startswith("needle."))
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def sampled(op_class, device, dtype="float32"):
    """(op, inputs that require gradients) for each sample the op accepts."""
    for sample in op_class.samples:
        op = op_class(**sample.attributes)
        arrays = [examples.draw(arg, dtype, np.random.default_rng(0)) for arg in sample.inputs]
        try:
            op.infer(*[examples.spec(a, None) for a in arrays])
        except (TypeError, ValueError):
            continue
        yield op, [examples.tensor(a, device, True) for a in arrays]


def mixtures(here, there):
    """The inputs with one of them, or one part of a tuple, taken from `there`."""
    for i, x in enumerate(here):
        if isinstance(x, ndl.TensorTuple) and len(x) > 1:
            yield [
                *here[:i],
                ndl.ops.make_tuple(*list(x)[:-1], there[i][len(x) - 1]),
                *here[i + 1 :],
            ]
        if len(here) > 1:
            yield [*here[:i], there[i], *here[i + 1 :]]


@pytest.mark.parametrize("name", [name for name in OWN if not REGISTRY[name].structural])
def test_inputs_on_different_devices(name):
    """The op and `infer` refuse inputs of which one is on another device than the rest."""
    for op, here in sampled(REGISTRY[name], ndl.cpu()):
        there = [examples.tensor(examples.numpy(x), ndl.cpu_numpy(), True) for x in here]
        for mixed in mixtures(here, there):
            with pytest.raises(ValueError, match="different devices"):
                op(*mixed)
            with pytest.raises(ValueError, match="different devices"):
                op.infer(*[x.spec for x in mixed])


def test_devices_mixed_elsewhere():
    here, there = (ndl.Tensor(np.ones((2, 2)), device=d) for d in (ndl.cpu(), ndl.cpu_numpy()))
    calls = [
        lambda: here + there, lambda: here @ there, lambda: here < there, lambda: here / there,
        lambda: ndl.ops.stack([here, there], 0), lambda: ndl.ops.concat([here, there], 0),
        lambda: nn.Linear(2, 2)(there), lambda: nn.LayerNorm1d(2)(there),
        lambda: nn.BatchNorm1d(2)(there), lambda: nn.LSTMCell(2, 2)(there),
        lambda: nn.SoftmaxLoss()(here, ndl.Tensor([0, 1], device=ndl.cpu_numpy())),
        lambda: (here * 2).backward(there),
        lambda: here.cached_data.__setitem__(0, there.cached_data[0]),
        lambda: setattr(here, "grad", there), lambda: ndl.ops.where(here > 0, there, here),
        lambda: nn.Embedding(3, 2)(ndl.Tensor([0], device=ndl.cpu_numpy())),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError, match="different devices"):
            call()
    assert here.numpy().tolist() == [[1, 1], [1, 1]]


def in_threads(work, count=16):
    """Run work(i) on `count` threads started together; re-raise the first failure."""
    barrier, failures = threading.Barrier(count), []

    def run(i):
        barrier.wait()
        try:
            work(i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def forward_and_backward(name):
    """Bytes of every output and gradient of every sample of an op."""
    found = []
    for op, inputs in sampled(REGISTRY[name], ndl.cpu(), "float64"):
        out = op(*inputs)
        parts = list(out) if isinstance(out, ndl.TensorTuple) else [out]
        found += [part.numpy().tobytes() for part in parts]
        for part in parts:
            if part.requires_grad and getattr(op, "has_gradient", True):
                ones = np.ones(part.shape, part.dtype)
                part.backward(ndl.Tensor(ones, requires_grad=False), retain_graph=True)
        for x in inputs:
            if isinstance(x, ndl.Tensor) and x.grad is not None:
                found.append(x.grad.numpy().tobytes())
    return found


def test_every_op_on_sixteen_threads():
    serial = {name: forward_and_backward(name) for name in OWN}

    def work(i):
        for name in OWN[i:] + OWN[:i]:
            assert forward_and_backward(name) == serial[name], name

    in_threads(work)


def train(seed):
    """Weights and losses of a small training run whose data loader has workers."""
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((64, 40), dtype=np.float32), rng.integers(0, 5, 64)
    np_weights = [rng.standard_normal(s, dtype=np.float32) / 6 for s in ((40, 300), (300, 5))]
    model = nn.Sequential(nn.Linear(40, 300), nn.ReLU(), nn.Linear(300, 5))
    for module, weight in zip((model.modules[0], model.modules[2]), np_weights, strict=True):
        module.weight.data = ndl.Tensor(weight)
        module.bias.data = ndl.Tensor(np.zeros(module.bias.shape, np.float32))
    optimizer, loss_fn = optim.Adam(model.parameters(), lr=0.01), nn.SoftmaxLoss()
    loader = data.DataLoader(
        data.NDArrayDataset(x, y), batch_size=16, shuffle=True, seed=seed, workers=2
    )
    losses = []
    for _ in range(3):
        for batch, labels in loader:
            optimizer.reset_grad()
            loss = loss_fn(model(batch), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, [p.numpy().tobytes() for p in model.parameters()]


def test_training_on_sixteen_threads():
    serial = [train(seed) for seed in range(4)]

    def work(i):
        assert train(i % 4) == serial[i % 4]

    in_threads(work)


def test_one_leaf_read_by_sixteen_threads():
    """Each thread has its own graph over one shared tensor, which is only read."""
    shared = ndl.Tensor(np.arange(6.0).reshape(2, 3), requires_grad=False)

    def work(i):
        for _ in range(50):
            own = ndl.Tensor(np.full((2, 3), float(i)))
            (own * shared + shared[[1, 0]]).sum().backward()
            assert np.array_equal(own.grad.numpy(), np.arange(6.0).reshape(2, 3))

    in_threads(work)


def run_python(code, timeout=120):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=HERE, capture_output=True, text=True,
        timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_fork
def test_fork_during_training():
    """A child continues training from the forked state and reaches the parent's weights."""
    run_python("""
import os, sys, threading
import needle as ndl
import test_concurrent as t
expected = t.train(0)
stop = False
def busy():
    while not stop: t.train(1)
threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if t.train(0) == expected else 1)
    assert os.waitpid(pid, 0)[1] == 0
stop = True
for thread in threads: thread.join()
assert t.train(0) == expected
""")


def test_interrupted_again_and_again():
    """Ctrl-C at any moment raises KeyboardInterrupt, and afterwards everything still works."""
    assert (
        run_python("""
import random, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy as np, needle as ndl
import test_concurrent as t
from needle import backend_ndarray as nd
signal.signal(signal.SIGALRM, signal.default_int_handler)
nd.set_num_threads(3)
expected = t.train(0)
big = nd.ones((400, 400))
rng, caught = random.Random(0), 0
for _ in range(60):
    try:
        # Again after a while: Python drops what is raised in a __del__ or a weakref's callback.
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0005, 0.01), 2)
        while True:
            (big @ big).sum()
            x = ndl.Tensor(np.ones((50, 50)))
            (x @ x).sum().backward()
            t.train(2)
    except (KeyboardInterrupt, RuntimeError) as error:
        # CPython's own Condition, interrupted, may release a lock that it has not acquired.
        assert isinstance(error, KeyboardInterrupt) or "lock" in str(error), error
        caught += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert (big @ big)[0, 0].item() == 400
assert t.train(0) == expected
print(caught)
""")
        == "60"
    )


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupted_program_ends(tmp_path):
    """Ctrl-C ends a training loop: none of our threads keeps the process alive."""
    from tests.waiting import interrupt  # the program imports this file as a module of no package

    code = "import test_concurrent as t\nprint('on', flush=True)\nwhile True: t.train(0)"
    program = subprocess.Popen(
        [sys.executable, "-c", code], cwd=HERE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert program.stdout.readline() == "on\n"
        time.sleep(0.5)
        _, errors = interrupt(program)
    finally:
        program.kill()
        program.communicate()
    assert "KeyboardInterrupt" in errors and program.returncode in (130, -signal.SIGINT, 1)
