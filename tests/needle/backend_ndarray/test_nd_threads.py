"""The thread pool: many callers, forks, and the number of threads."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from needle import backend_ndarray as nd
from tests.needle.backend_ndarray.drawing import same


def work(seed):
    """An elementwise op, a reduction, a matmul and a copy, large enough to run on many threads."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((300, 400), dtype=np.float32)
    a = nd.array(x, device=nd.cpu())
    out = [(a * 2.0 + a), a.sum(0), a @ a.permute(1, 0), a.permute(1, 0).compact()]
    return [o.numpy() for o in out]


def test_many_python_threads():
    expected = [work(seed) for seed in range(4)]
    failures = []

    def run(seed):
        for _ in range(10):
            for got, want in zip(work(seed % 4), expected[seed % 4], strict=True):
                if not np.array_equal(got, want):
                    failures.append(seed)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_one_array_from_many_threads():
    """All threads make and drop views at once; reference counts stay right."""
    a = nd.ones((64, 64), device=nd.cpu())

    def run():
        for _ in range(2000):
            b = a[1:, ::2].permute(1, 0)
            del b
        assert a.sum().item() == 4096

    threads = [threading.Thread(target=run) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def test_thread_count():
    before = nd.get_num_threads()
    assert before >= 1
    try:
        expected = work(0)
        for n in (1, 3, 8):
            nd.set_num_threads(n)
            assert nd.get_num_threads() == n
            for got, want in zip(work(0), expected, strict=True):
                same(got, want)
    finally:
        nd.set_num_threads(before)
    for bad in (0, -1, 1.5, "2"):
        with pytest.raises((ValueError, TypeError)):
            nd.set_num_threads(bad)


def run_python(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_environment_and_affinity():
    count = "from needle import backend_ndarray as nd; print(nd.get_num_threads())"
    assert run_python(count, NEEDLE_NUM_THREADS="5") == "5"
    if hasattr(os, "sched_setaffinity"):
        pin = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        assert run_python(pin + count, NEEDLE_NUM_THREADS="") == "1"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_fork():
    """After a fork with a running pool, the child computes with its own threads and the parent
    continues, even if other threads were computing at the time."""
    code = """
import os, threading
import numpy as np
from needle import backend_ndarray as nd
nd.set_num_threads(3)
a = nd.ones((1000, 1000))
b = (a + a).sum().item()
stop = False
def busy():
    while not stop:
        (a * 2.0).sum()
threads = [threading.Thread(target=busy) for _ in range(2)]
for t in threads: t.start()
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        ok = (a + a).sum().item() == 2e6 and (a @ a)[0, 0].item() == 1000
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
stop = True
for t in threads: t.join()
assert (a + a).sum().item() == 2e6
"""
    run_python(code, PYTHONWARNINGS="ignore")


def test_exit_with_a_running_pool():
    """Exit is clean while threads spin or another thread computes."""
    run_python("""
import threading
from needle import backend_ndarray as nd
nd.set_num_threads(4)
a = nd.ones((1000, 1000))
def busy():
    while True:
        a + a
threading.Thread(target=busy, daemon=True).start()
(a + a).sum()
""")
