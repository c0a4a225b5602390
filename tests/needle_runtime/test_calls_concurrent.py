"""Calls from many threads, of changing weights and inputs, interrupted, and after a fork."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import nn
from tests.needle.test_concurrent import in_threads
from tests.needle_runtime.ways import (
    compiled,
    described,
    drawn,
    like,
    native_way,
    outcome,
    python_way,
)
from tests.needle_tvm.conftest import make_mlp, tensor

X = drawn(16, 32)


@contextlib.contextmanager
def repeated(work):
    """Repeat `work(number)` on another thread during this context; its error is raised."""
    stop, errors = threading.Event(), []

    def run():
        number = 0
        try:
            while not stop.is_set():
                work(number)
                number += 1
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if errors:
        raise errors[0]


def answers(calls, allowed):
    """Check that each of the calls, by 16 threads, has one of the allowed results, bit for bit.

    The threads repeat them until there have been different ones."""
    seen = set()

    def work(_):
        for _ in range(200):
            for call in calls:
                bits = np.asarray(call()).tobytes()
                assert bits in allowed
                seen.add(bits)
            if len(seen) > 1:
                return

    in_threads(work)
    assert len(seen) > 1


def numpy(result):
    return result.numpy() if isinstance(result, ndl.Tensor) else result


def test_several_models_on_sixteen_threads():
    models = [make_mlp(32, width, 8) for width in (8, 16, 24, 40)]
    callees = [callee for model in models for callee in compiled(model, tensor(X))]
    parallel = needle_tvm.compile(make_mlp(32, 400, 400, 8), tensor(X), threads=2)
    assert "T.parallel" in parallel.script
    callees += [parallel, parallel.program]
    inputs = [like(drawn(16, 32, seed=seed), 4 * seed) for seed in range(3)]
    expected = [[numpy(callee(x)).tobytes() for x in inputs] for callee in callees]

    def work(i):
        for number in range(150):
            which, given = (i + number) % len(callees), number % len(inputs)
            x = inputs[given] if i % 2 else tensor(inputs[given])
            assert numpy(callees[which](x)).tobytes() == expected[which][given]

    in_threads(work)


def test_machines_are_made_one_at_a_time(monkeypatch):
    """Machines share their executable, and TVM changes it while it initialises one."""
    executor = needle_tvm.compile(make_mlp(32, 8), tensor(X)).program.executor
    inside = []

    def initialize(*_):
        inside.append(None)
        time.sleep(0.01)  # lets other threads in
        assert len(inside) == 1
        inside.pop()

    monkeypatch.setattr(executor, "_executable", lambda: {"vm_initialization": initialize})
    in_threads(lambda _: executor.new_machine())


def test_set_params_during_calls():
    model = make_mlp(32, 24, 8)
    made, program = compiled(model, tensor(X))
    states = [
        {name: each.numpy() * scale for name, each in model.state_dict().items()}
        for scale in (1, 0.5, -2)
    ]
    for callee in (program, made):
        allowed = set()
        for state in states:
            callee.set_params(state)
            allowed.add(numpy(callee(X)).tobytes())
        assert len(allowed) == 3
        with repeated(lambda n, c=callee: c.set_params(states[n % 3])):
            answers([lambda c=callee: numpy(c(X))] * 300, allowed)


def test_training_and_loading_during_calls():
    """Models of one weight each, which no call may see half written."""

    class Scale(nn.Module):
        def __init__(self, *shape):
            super().__init__()
            self.w = nn.Parameter(tensor(np.ones(shape, np.float32)))

        def forward(self, x):
            return x * self.w

    for write in ("load", "replace", "data"):
        model = Scale(16, 32).eval()
        made, _ = compiled(model, tensor(X))

        def change(number, model=model, write=write):
            value = tensor(np.full((16, 32), number % 5, np.float32))
            if write == "load":
                model.load_state_dict({"w": value})
            elif write == "replace":
                model.w = nn.Parameter(value)
            else:
                model.w.data = value

        allowed = {(X * np.float32(number)).tobytes() for number in range(5)}
        with repeated(change):
            answers([lambda m=made: m(X).numpy()] * 200, allowed)
        change(3)
        np.testing.assert_array_equal(made(X).numpy(), X * 3)


def test_an_inputs_value_is_replaced_during_calls():
    made, program = compiled(lambda x: x * 2, tensor(X))
    x, values = tensor(X), [tensor(X * k) for k in range(4)]

    def change(number):
        x.data = values[number % 4]

    allowed = {(X * 2 * k).tobytes() for k in range(4)}
    for callee in (made, program):
        with repeated(change):
            answers([lambda c=callee: numpy(c(x))] * 200, allowed)


def test_first_calls_of_many_threads():
    for _ in range(5):
        callees = compiled(lambda x: (x + 1, x), tensor(X))
        expected = [outcome(lambda c=c: c(X)) for c in callees]

        def work(_, callees=callees, expected=expected):
            for callee, wanted in zip(callees, expected, strict=True):
                assert outcome(partial(callee, X)) == wanted

        in_threads(work)


@pytest.mark.parametrize("way", [native_way, python_way])
def test_an_interrupt_leaves_the_next_call_right(way):
    made, program = compiled(make_mlp(32, 400, 400, 8), tensor(X), stage="tuned")
    for callee in (made, program):
        expected = described(callee(X))
        with way(callee):
            for number in range(10):
                timer = threading.Timer(0.002 * number, signal.raise_signal, [signal.SIGINT])
                with pytest.raises(KeyboardInterrupt):
                    timer.start()
                    while True:
                        callee(X)
                timer.join()
                assert described(callee(X)) == expected


def test_a_handler_of_signals_may_call():
    """It runs between any two steps of a call in Python."""
    made, program = compiled(lambda x, y: (x - y, x), tensor(X), tensor(X))
    other = like(X * 3, 4)
    inside = []

    def handle(*_):
        inside.append([numpy(each).tobytes() for each in callee(other, X)])

    before = signal.signal(signal.SIGALRM, handle)
    try:
        for callee in (made, program):
            wanted = [numpy(each).tobytes() for each in callee(other, X)]
            mine = [numpy(each).tobytes() for each in callee(X, X)]
            there = ndl.Tensor(X, device=ndl.cpu_numpy())  # read by Python code
            signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
            while len(inside) < 50:
                for y in (X, there):
                    assert [numpy(each).tobytes() for each in callee(X, y)] == mine
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert all(each == wanted for each in inside)
            del inside[:]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_process_calls(threads):
    """While no other thread calls: TVM's allocator has a lock, which the child would find taken."""
    made = needle_tvm.compile(make_mlp(32, 400, 400, 8), tensor(X), threads=threads)
    program = made.program
    assert ("T.parallel" in made.script) is (threads > 1)
    for callee in (made, program):
        expected = numpy(callee(X)).tobytes()
        for _ in range(3):
            child = os.fork()
            if child == 0:
                signal.alarm(60)  # rather than hang
                same = all(numpy(callee(x)).tobytes() == expected for x in (X, like(X, 4)) * 5)
                os._exit(0 if same and outcome(callee)[0].__name__ == "InputError" else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert numpy(callee(X)).tobytes() == expected


ENDING = """
import sys, threading, time
import numpy as np
import needle_runtime
program = needle_runtime.load(sys.argv[1])
x = np.ones((16, 32), np.float32)
kept = program(x)

def call():
    while True:
        program(x)

for _ in range(4):
    threading.Thread(target=call, daemon=True).start()
time.sleep(0.2)
"""


def test_the_process_ends_during_calls_of_other_threads(tmp_path):
    path = needle_tvm.compile(make_mlp(32, 200, 8), tensor(X)).export(tmp_path / "model")
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", ENDING, str(path)],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0 and not done.stderr, done.stderr
