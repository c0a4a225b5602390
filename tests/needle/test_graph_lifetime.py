"""Deep graphs, the lifetime of saved values, and threads."""

import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import needle as ndl
from needle import ops
from needle.autograd import topological_order


def tensor(values, device):
    return ndl.Tensor(np.asarray(values, "float64"), device=device)


def test_a_chain_of_50000_ops(device):
    x = tensor([1.0], device)
    y = x
    for _ in range(50_000):
        y = y + 1.0
    assert len(topological_order([y.node])) == 50_001
    y.sum().backward()
    assert x.grad.numpy() == 1
    del y
    gc.collect()


def test_a_chain_is_freed_on_a_small_stack():
    """Freeing must not recurse either; 256 KiB of stack would overflow quickly."""
    code = """
import threading, numpy as np, needle as ndl
def work():
    y = x = ndl.Tensor(np.ones(1))
    for _ in range(50_000):
        y = ndl.ops.exp(y * 0.0)
    y.sum().backward()
    del y
threading.stack_size(256 * 1024)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", done.stderr[-2000:]


def test_values_that_no_gradient_reads_are_released(device):
    x = tensor(np.ones((4, 4)), device)
    y = x + 1.0
    kept = weakref.ref(y.cached_data)
    z = y + x  # add reads nothing
    del y
    assert kept() is None
    y = x + 1.0
    kept = weakref.ref(y.cached_data)
    w = y * x  # multiply reads its inputs
    del y
    assert kept() is not None
    with pytest.raises(RuntimeError, match=r"released: .* reads"):
        z.inputs[0].numpy()
    assert z.inputs[0].shape == (4, 4)
    (z + w).sum().backward()
    # z = (x + 1) + x, w = (x + 1) * x
    np.testing.assert_allclose(x.grad.numpy(), 2 + 2 * x.numpy() + 1)


def test_a_graph_is_freed_without_the_garbage_collector(device):
    gc.collect()
    gc.disable()
    try:
        x = tensor(np.ones(3), device)
        y = ops.exp(x * x)
        node = y.node
        loss = y.sum()
        loss.backward()
        before = sys.getrefcount(node)
        del y, loss
        assert sys.getrefcount(node) < before
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_no_grad_is_per_thread_and_reentrant(device):
    x = tensor([1.0], device)
    seen = []
    with ndl.no_grad():
        thread = threading.Thread(target=lambda: seen.append((x * 2).requires_grad))
        thread.start()
        thread.join()
        with ndl.enable_grad():
            assert (x * 2).requires_grad
        with ndl.no_grad():
            pass
        assert not (x * 2).requires_grad and not ndl.is_grad_enabled()
    assert seen == [True] and ndl.is_grad_enabled()
    with pytest.raises(ZeroDivisionError), ndl.no_grad():
        _ = 1 / 0
    assert ndl.is_grad_enabled()

    @ndl.no_grad()
    def double(t):
        return t * 2

    assert not double(x).requires_grad


def test_threads_do_not_disturb_each_other(device):
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        a = rng.normal(size=(8, 8))
        for _ in range(20):
            x = tensor(a, device)
            (ops.tanh(x @ x) * x).sum().backward()
            t = np.tanh(a @ a)
            slope = (1 - t**2) * a
            expected = t + slope @ a.T + a.T @ slope
            if not np.allclose(x.grad.numpy(), expected):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
