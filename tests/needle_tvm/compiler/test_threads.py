"""Threads compile at once, through every door: results are right, each key is compiled once."""

import os
import signal
import threading
import time

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import nn
from needle_runtime.process import turns
from needle_tvm.lower import build


class Layer(nn.Module):
    """tanh(x @ w), normalised over its last axis and summed over the first."""

    def __init__(self, weight):
        super().__init__()
        self.w = nn.Parameter(ndl.Tensor(weight))
        self.norm = nn.LayerNorm1d(weight.shape[1])

    def forward(self, x):
        return ndl.summation(self.norm(ndl.tanh(x @ self.w)), 0)


def expected(x, weight):
    wide = np.tanh(x.astype(np.float64) @ weight)
    wide = wide - wide.mean(-1, keepdims=True)
    return (wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)).sum(0)


def by_compile(weight, x, folder):
    return needle_tvm.compile(Layer(weight).eval(), x)


def by_jit(weight, x, folder):
    return needle_tvm.jit(Layer(weight).eval())


def by_load(weight, x, folder):
    return needle_tvm.load(folder)


def by_onnx(weight, x, folder):
    onnx = pytest.importorskip("onnx")
    helper, given = onnx.helper, onnx.numpy_helper.from_array
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("LayerNormalization", ["b", "one"], ["c"]),
        helper.make_node("ReduceSum", ["c", "zero"], ["y"], keepdims=0),
    ]
    values = {"w": weight, "one": np.ones(weight.shape[1], "float32"), "zero": np.array([0])}
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", 1, x.shape)],
        [helper.make_tensor_value_info("y", 1, weight.shape[1:])],
        [given(value, name) for name, value in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return needle_tvm.compile_onnx(model, x)


def by_torch(weight, x, folder):
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor(weight))

        def forward(self, x):
            wide = torch.tanh(x @ self.w)
            return torch.nn.functional.layer_norm(wide, wide.shape[1:]).sum(0)

    return needle_tvm.compile_torch(Model().eval(), torch.tensor(x))


DOORS = {"compile": by_compile, "jit": by_jit, "load": by_load, "onnx": by_onnx}


def at_once(works):
    """Call the functions in threads that begin together; raise the first of their errors."""
    start, errors = threading.Barrier(len(works)), []

    def run(work):
        try:
            start.wait()
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 400  # a deadlock is a failure
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    if errors:
        raise errors[0]


@pytest.fixture
def builds(monkeypatch, tmp_path):
    """The list of the folders that libraries are written to, in an empty cache."""
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    folders, write = [], build.write_library

    def noted(module, target, folder):
        folders.append(folder)
        return write(module, target, folder)

    monkeypatch.setattr(build, "write_library", noted)
    return folders


def program(number):
    rng = np.random.default_rng(number)
    rows, inputs, outputs = 2 + number % 3, 3 + number, 5 + number % 7
    return [rng.standard_normal(s).astype("float32") for s in [(rows, inputs), (inputs, outputs)]]


def check_doors(doors, programs, threads, builds, tmp_path):
    """The threads take the programs in turn, each through one of the doors."""
    chosen = [(*program(n), doors[n % len(doors)], tmp_path / f"out{n}") for n in range(programs)]
    for x, weight, door, folder in chosen:
        if door is by_load:
            by_compile(weight, x, None).export(folder)
    loads = sum(door is by_load for _, _, door, _ in chosen)
    assert len(builds) == loads

    def work(x, weight, door, folder):
        found = door(weight, x, folder)(x)
        # Five operations on float32 of up to 50 terms each, of results of some 10.
        np.testing.assert_allclose(found.numpy(), expected(x, weight), rtol=1e-4, atol=1e-4)

    at_once([lambda n=n: work(*chosen[n % programs]) for n in range(threads)])
    assert len(builds) == programs


def test_threads_compile_through_all_doors(builds, tmp_path):
    """Twice as many threads as programs: the second of each pair finds what the first made."""
    check_doors(list(DOORS.values()), 8, 16, builds, tmp_path)


@pytest.mark.slow
@pytest.mark.peer
def test_64_threads_compile_40_programs(builds, tmp_path):
    pytest.importorskip("torch")
    check_doors([*DOORS.values(), by_torch], 40, 64, builds, tmp_path)


def test_who_waits_for_one_that_fails_compiles_itself(builds, monkeypatch):
    x, weight = program(1)
    write, failures = build.write_library, [RuntimeError("no memory"), KeyboardInterrupt()]

    def failing(*args):
        if failures:
            time.sleep(0.1)  # for the others to wait
            raise failures.pop()
        return write(*args)

    monkeypatch.setattr(build, "write_library", failing)
    raised = []

    def work():
        try:
            found = by_compile(weight, x, None)(x).numpy()
        except (RuntimeError, KeyboardInterrupt) as error:
            raised.append(error)
        else:
            np.testing.assert_allclose(found, expected(x, weight), rtol=1e-4, atol=1e-4)

    at_once([work] * 6)
    assert len(raised) == 2 and len(builds) == 1


def test_an_interrupt_ends_the_wait_for_another_thread(builds):
    """And leaves every lock as it was."""
    x, weight = program(2)
    taken, done = threading.Event(), threading.Event()

    def hold():
        with turns.compiling:
            taken.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    main = threading.main_thread().ident
    interrupt = threading.Timer(0.3, signal.pthread_kill, [main, signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        needle_tvm.compile(Layer(weight).eval(), x, progress=lambda text: interrupt.start())
    done.set()
    holder.join()
    found = by_compile(weight, x, None)(x).numpy()
    np.testing.assert_allclose(found, expected(x, weight), rtol=1e-4, atol=1e-4)


def test_compiling_while_compiling(builds):
    """From the function that is told of progress, which any thread may do."""
    x, weight = program(3)
    inner = []

    def told(text):
        if not inner:
            inner.append(None)
            inner.append(needle_tvm.compile(Layer(weight).eval(), x))

    outer = needle_tvm.compile(Layer(weight).eval(), x, progress=told)
    for compiled in (outer, inner[1]):
        np.testing.assert_allclose(compiled(x).numpy(), expected(x, weight), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_compiles_what_its_parent_was_compiling(builds):
    x, weight = program(4)
    forked, go = threading.Event(), threading.Event()

    def told(text):  # while the turn of the key is taken
        go.set()
        forked.wait(60)

    thread = threading.Thread(
        target=needle_tvm.compile, args=(Layer(weight).eval(), x), kwargs={"progress": told}
    )
    thread.start()
    go.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(100)  # rather than hang
        code = 1
        try:
            found = by_compile(weight, x, None)(x).numpy()
            code = int(not np.allclose(found, expected(x, weight), rtol=1e-4, atol=1e-4))
        finally:
            os._exit(code)
    forked.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
