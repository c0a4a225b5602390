"""Forks while other threads load: the children load too, and no lock of ours is taken in them."""

import ast
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import needle
import needle_tvm
from needle.backend_ndarray.locks import fork_safe_lock, lock_of_one_object
from needle_runtime.process.forks import Unforked
from tests.needle_tvm.conftest import make_mlp, tensor

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

ROOT = Path(needle.__file__).parent.parent
LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "Event"}
LOCKS = {f"threading.{name}" for name in LOCKS} | {"_thread.allocate_lock"}

# C++ files whose mutexes need no hook of their own.
WITHOUT_HOOK = {
    "src/cpu/blocks.cc": "taken by try_lock alone",
    "src/cuda": "CUDA itself does not work in a forked child",
    "needle_tvm/kernels/dense/gpu/cublas_gemm.cc": "CUDA itself does not work in a forked child",
}

LOADS = """
import os, signal, sys, threading
import numpy as np
import needle_runtime
forks, *paths = sys.argv[1:]
x = np.linspace(-1, 1, 16 * 32, dtype=np.float32).reshape(16, 32)
wanted, stop, loads = {}, threading.Event(), [0] * len(paths)

def load(number):
    while not stop.is_set():
        needle_runtime.load(paths[number])
        loads[number] += 1

# The first loads import and dlopen: fork during those as well.
threads = [threading.Thread(target=load, args=(n,), daemon=True) for n in range(len(paths))]
for thread in threads:
    thread.start()
for number in range(int(forks)):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # rather than hang
        found = needle_runtime.load(paths[number % len(paths)])(x)
        os._exit(0 if np.isfinite(found).all() and found.any() else 1)
    ended = os.waitpid(child, 0)[1]
    assert ended == 0, f"fork {number}: {ended}"
stop.set()
for thread in threads:
    thread.join()
assert all(loads), loads
"""


@pytest.mark.parametrize("forks", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_children_load_while_threads_of_the_parent_do(tmp_path, forks):
    paths = [
        needle_tvm.compile(make_mlp(32, width, 8), tensor(np.ones((16, 32), np.float32))).export(
            tmp_path / str(width)
        )
        for width in (40, 48, 56)
    ]
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", LOADS, str(forks)]
    done = subprocess.run(
        [*command, *map(str, paths)], cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kind", [fork_safe_lock, lock_of_one_object, Unforked])
@pytest.mark.parametrize("mine", [False, True])
def test_a_lock_of_another_thread_is_free_in_a_child(kind, mine):
    """And one that the forking thread holds stays its own, on both sides."""
    lock, taken, go = kind(), threading.Event(), threading.Event()

    def hold():
        with lock:
            taken.set()
            go.wait(0.2)

    holder = threading.Thread(target=hold)
    if mine:
        lock.__enter__()
    else:
        holder.start()
        taken.wait()
    child = os.fork()
    if mine:
        lock.__exit__(None, None, None)
    if child == 0:
        other = threading.Thread(target=lambda: (lock.__enter__(), os._exit(0)))
        other.start()
        other.join(30)
        os._exit(1)
    go.set()
    assert os.waitpid(child, 0)[1] == 0
    if not mine:
        holder.join()
    with lock:
        pass


def constructed(source):
    """The names of kinds of locks that a Python source uses."""
    tree = ast.parse(source)
    names = {  # as `from threading import Lock` gives them
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)):
            name = names.get(ast.unparse(node), ast.unparse(node))
            if name in LOCKS:
                yield name


def unhooked(files):
    """Those of the sources whose locks have no hook at forks, as "path: lock"."""
    for path, source in files:
        if path.endswith(".py"):
            hooked = "register_at_fork" in source or "loading" in source
            if not hooked:
                yield from (f"{path}: {name}" for name in constructed(source))
        elif re.search(r"std::(recursive_|shared_)?mutex|pthread_mutex_t|call_once", source):
            known = "pthread_atfork" in source or any(map(path.startswith, WITHOUT_HOOK))
            if not known:
                yield f"{path}: mutex"


def test_every_lock_has_a_hook():
    """A file that constructs a lock hooks it at forks, or calls what does. Locks of the standard
    library that it makes for others are among them: `cached_property`'s, before Python 3.12."""
    files = [
        (str(file.relative_to(ROOT)), file.read_text())
        for folder in ("needle", "needle_tvm", "src")
        for pattern in ("*.py", "*.cc", "*.cu", "*.h")
        for file in sorted((ROOT / folder).rglob(pattern))
    ]
    assert len(files) > 500
    assert list(unhooked(files)) == []
    planted = [
        ("needle/new.py", "import threading\nlock = threading.Lock()\n"),
        ("needle/newer.py", "from threading import RLock as R\nlock = field(default_factory=R)\n"),
        ("src/cpu/new.cc", "std::mutex the;"),
    ]
    assert [each.partition(":")[0] for each in unhooked(planted)] == [path for path, _ in planted]
    cached = [
        path for path, source in files if re.search(r"@(functools\.)?cached_property", source)
    ]
    assert cached == []
