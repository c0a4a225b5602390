"""A program's code is unloaded with the program, but not while anything can still run it."""

import subprocess
import sys

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import nn
from tests.needle_tvm.conftest import tensor

BEGIN = """
import gc, sys, threading
import numpy as np
import needle_runtime

path = sys.argv[1]
x = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)

def mapped():
    with open("/proc/self/maps") as maps:
        return [line for line in maps if "needle-load" in line]

def lines():
    with open("/proc/self/maps") as maps:
        return len(maps.readlines())

first = needle_runtime.load(path)
want = first(x)
assert mapped()
del first
assert not mapped(), mapped()
"""


class WithConstant(nn.Module):
    """Has two results: one of several parallel kernels, and one that is the library's constant."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 32))

    def forward(self, x):
        return self.layers(x), ndl.Tensor(np.arange(7.0), requires_grad=False)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "model"
    x = tensor(np.zeros((64, 48), np.float32))
    needle_tvm.compile(WithConstant().eval(), x, threads=2).export(path)
    return path


def runs(exported, code):
    command = [sys.executable, "-c", BEGIN + code, str(exported)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_loading_fifty_times_maps_nothing_more(exported):
    runs(
        exported,
        """
before = lines()
for _ in range(50):
    program = needle_runtime.load(path)
    program(x)
    del program
    assert not mapped()
assert lines() <= before + 5, (before, lines())
""",
    )


def test_loading_again_takes_no_more_memory(exported):
    pytest.importorskip("psutil")
    runs(
        exported,
        """
import psutil
def used(loads):
    for _ in range(loads):
        needle_runtime.load(path)(x)
    return psutil.Process().memory_info().rss
used(50)  # the allocators come to their size
before = used(50)
assert used(300) - before < 1 << 20  # 60 kB stayed of each load
""",
    )


def test_results_outlive_the_code(exported):
    runs(
        exported,
        """
program = needle_runtime.load(path)
results = program(x)
tensors = program.executor.call(program.executor.convert([x]))
del program
gc.collect()
assert not mapped()
for result, expected in zip(results, want, strict=True):
    assert result.tobytes() == expected.tobytes()
for tensor, expected in zip(tensors, want, strict=True):
    assert np.from_dlpack(tensor).tobytes() == expected.tobytes()
del tensor, tensors, result, results
""",
    )


def test_a_machine_keeps_the_code(exported):
    runs(
        exported,
        """
executor = needle_runtime.load(path).executor
main, arguments = executor.new_machine()["main"], executor.convert([x])
arguments += executor.weights
del executor
gc.collect()
assert mapped()
assert np.from_dlpack(main(*arguments)[0]).tobytes() == want[0].tobytes()
del main
assert not mapped()
""",
    )


def test_programs_are_dropped_while_other_threads_call_them(exported):
    runs(
        exported,
        """
wrong, stop = [], threading.Event()
shared = [needle_runtime.load(path)]

def call():
    while not stop.is_set():
        if shared[0](x)[0].tobytes() != want[0].tobytes():
            wrong.append(True)

threads = [threading.Thread(target=call) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(100):
    shared[0] = needle_runtime.load(path)
stop.set()
for thread in threads:
    thread.join()
assert not wrong
del shared[:]
gc.collect()
assert not mapped(), mapped()
""",
    )
