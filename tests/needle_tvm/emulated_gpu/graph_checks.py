"""Compiled models captured as CUDA graphs never use another call's data or stale data.

test_cuda_graph.py runs these like checks.py.
"""

import threading

import numpy as np
import pytest

import needle as ndl
import needle_runtime
import needle_tvm
from needle_runtime import cuda_driver, device_clock
from needle_runtime.errors import CaptureError
from needle_runtime.target import gpu
from needle_tvm.lower import cuda_graph
from tests.needle_tvm.emulated_gpu.checks import EMULATED, program

WIDTH = 8


@pytest.fixture(autouse=True)
def always_captured(monkeypatch):
    """Capture small models as well, which gain nothing by it."""
    monkeypatch.setattr(cuda_graph, "_pays", lambda main: True)


class Layers(ndl.nn.Module):
    """A chain of linear layers, one kernel each; each program has its own weights."""

    def __init__(self, count=3):
        super().__init__()
        self.layers = [ndl.nn.Linear(WIDTH, WIDTH) for _ in range(count)]

    def forward(self, x):
        for layer in self.layers:
            x = ndl.ops.tanh(layer(x))
        return x


def compiled(model, inputs, folder, stage="tuned"):
    if isinstance(model, ndl.nn.Module):
        model.eval()
    graph, ready = program(model, inputs, stage, folder)
    ready.set_params({leaf.name: leaf.value.numpy() for leaf in graph.params})
    assert ready.artifact.manifest["functions"]["main"]["graph"] is not None
    return ready


def arrays(count, rows=4, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((rows, WIDTH), dtype=np.float32) for _ in range(count)]


def called(ready, values):
    """Results as tensors on the GPU."""
    return ready.executor.call(ready.executor.convert(values))


def read(ready, tensors):
    """The first of such results."""
    return ready.executor.to_arrays(tensors)[0]


def eager(model, x):
    return model(ndl.Tensor(x)).numpy()


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_each_call_has_its_own_inputs_and_results(tmp_path):
    model = Layers()
    data = arrays(4)
    ready = compiled(model, [ndl.Tensor(data[0])], tmp_path / "a")
    tensors = [called(ready, [x]) for x in data]  # all kept, read afterwards
    copies = [ready.run([x])[0] for x in data]
    for x, tensor, copy in zip(data, tensors, copies, strict=True):
        close(read(ready, tensor), eager(model, x))
        close(copy, eager(model, x))
    assert ready.executor._local.replay.nodes == len(model.layers)
    assert len({tensor[0].data_ptr() for tensor in tensors}) == len(tensors)


def test_inputs_that_are_written_to_afterwards_do_not_count(tmp_path):
    model = Layers()
    (x,) = arrays(1)
    expected = eager(model, x)
    ready = compiled(model, [ndl.Tensor(x)], tmp_path / "a")
    changing = x.copy()
    found = []
    for _ in range(3):
        changing[...] = x
        found.append(called(ready, [changing]))
        changing[...] = 7
    for each in found:
        close(read(ready, each), expected)


def test_other_weights_are_used_from_the_next_call_on(tmp_path):
    model = Layers()
    (x,) = arrays(1)
    ready = compiled(model, [ndl.Tensor(x)], tmp_path / "a")
    for factor in (1.0, 3.0, -2.0):
        state = {name: value.numpy() * factor for name, value in model.state_dict().items()}
        model.load_state_dict(state)
        ready.set_params(state)
        for _ in range(2):
            close(ready.run([x])[0], eager(model, x))
            close(read(ready, called(ready, [x])), eager(model, x))


def test_weights_that_are_packed_at_load_are_packed_anew(tmp_path):
    layers = (ndl.nn.Conv(3, 4, 3), ndl.nn.BatchNorm2d(4), ndl.nn.ReLU(), ndl.nn.Conv(4, 2, 3))
    model = ndl.nn.Sequential(*layers).eval()
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4), dtype=np.float32)
    ready = compiled(model, [ndl.Tensor(x)], tmp_path / "a")
    assert ready.artifact.manifest["functions"]["main"]["transform"] is not None
    for factor in (1.0, 2.0, 0.5):
        state = {name: value.numpy() * factor for name, value in model.state_dict().items()}
        model.load_state_dict(state)
        ready.set_params(state)
        close(ready.run([x])[0], eager(model, x))


def many(x, index, flags, nothing):
    """Results of several dtypes: one returned twice, a view, a scalar, an empty one, an input."""
    y = ndl.ops.exp(x) + ndl.ops.embedding(index, x)
    z = ndl.ops.where(flags, y, ndl.ops.negate(y))
    wide = ndl.ops.tanh(nothing)
    return y, y, y.reshape((2 * WIDTH,)), z.sum(), z > x, x, wide, index


@pytest.mark.parametrize("stage", ["noopt", "tuned"])
def test_inputs_and_results_of_any_kind(tmp_path, stage):
    rng = np.random.default_rng(0)

    def fresh():
        return [
            rng.standard_normal((2, WIDTH), dtype=np.float32),
            rng.integers(0, 2, 2).astype(np.int32),
            rng.integers(0, 2, (2, WIDTH)).astype(bool),
            np.zeros((0, 3), np.float32),
        ]

    def tensors(values):
        return [ndl.Tensor(value, requires_grad=False) for value in values]

    ready = compiled(many, tensors(fresh()), tmp_path / "a", stage)
    kept = []
    for _ in range(3):
        values = fresh()
        expected = [np.asarray(each.numpy()) for each in many(*tensors(values))]
        kept.append((expected, called(ready, values)))
        kept.append((expected, ready.run(values)))
    for expected, found in kept:
        for want, have in zip(expected, found, strict=True):
            if not isinstance(have, np.ndarray):
                have = read(ready, [have])
            assert have.shape == want.shape and have.dtype == want.dtype
            close(have, want)


def test_programs_and_threads_do_not_disturb_each_other(tmp_path):
    models = [Layers(), Layers(2)]
    data = arrays(6)
    ready = [
        compiled(model, [ndl.Tensor(data[0])], tmp_path / str(number))
        for number, model in enumerate(models)
    ]
    expected = [[eager(model, x) for x in data] for model in models]
    failures = []

    def work(first):
        try:
            for turn in range(12):
                which, at = (turn + first) % 2, (turn * 5 + first) % len(data)
                tensors = called(ready[which], [data[at]])
                close(ready[which].run([data[at - 1]])[0], expected[which][at - 1])
                close(read(ready[which], tensors), expected[which][at])
        except Exception as error:  # any: it is raised where the test sees it
            failures.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_each_gpu_has_its_own(tmp_path):
    if not EMULATED and len(gpu.gpus()) < 2:
        pytest.skip("one GPU")
    model = Layers()
    data = arrays(3)
    first = compiled(model, [ndl.Tensor(data[0])], tmp_path / "a")
    second = needle_runtime.Program(first.artifact, device=1)
    second.set_params({name: -value.numpy() for name, value in model.state_dict().items()})
    other = Layers()
    other.load_state_dict({name: -value.numpy() for name, value in model.state_dict().items()})
    for x in data:
        kept = called(first, [x]), called(second, [x])
        close(second.run([x])[0], eager(other, x))
        close(first.run([x])[0], eager(model, x))
        close(read(first, kept[0]), eager(model, x))
        close(read(second, kept[1]), eager(other, x))


def test_streams_take_turns(tmp_path):
    model = Layers()
    data = arrays(4)
    ready = compiled(model, [ndl.Tensor(data[0])], tmp_path / "a")
    streams = [0, *(stream_of(ready) for _ in range(2))]
    kept = []
    for turn, x in enumerate([*data, *data]):
        tensors = ready.executor.convert([x])
        ready.executor.synchronize()
        stream = streams[turn % len(streams)]
        with ready.executor.memory.on_stream(stream):
            # The next stream has to wait for it.
            kept.append((stream, x, ready.executor.call(tensors)))
    for stream, x, found in kept:
        with ready.executor.memory.on_stream(stream):
            close(read(ready, found), eager(model, x))
    with ready.executor.memory.on_stream(streams[1]):
        close(ready.run([data[1]])[0], eager(model, data[1]))


def stream_of(ready):
    """A new stream that waits for no other."""
    import ctypes

    driver, stream = cuda_driver.of(ready.executor.device), ctypes.c_void_p()
    driver.enter()
    driver._do("cuStreamCreate", ctypes.byref(stream), 1)
    return stream.value


def test_what_cannot_be_captured_runs_kernel_by_kernel(tmp_path, monkeypatch):
    model = Layers()
    data = arrays(3)
    ready = compiled(model, [ndl.Tensor(data[0])], tmp_path / "a")
    driver = cuda_driver.of(0)
    stream = stream_of(ready)
    capture = cuda_driver.Driver.capture

    def waits(self, submit):
        def submit_and_wait(stream):
            submit(stream)
            self.synchronize(stream)

        return capture(self, submit_and_wait)

    monkeypatch.setattr(cuda_driver.Driver, "capture", waits)
    with pytest.raises(CaptureError, match="CUDA graph: CUDA device 0: cuStreamSynchronize failed"):
        driver.capture(lambda stream: None)
    with pytest.warns(UserWarning, match="kernels are launched one by one"):
        close(ready.run([data[0]])[0], eager(model, data[0]))
    for x in data:
        close(ready.run([x])[0], eager(model, x))
        close(read(ready, called(ready, [x])), eager(model, x))
    driver.synchronize(stream)  # others go on


def test_it_can_be_turned_off(tmp_path):
    model = Layers()
    (x,) = arrays(1)
    plain = needle_tvm.compile(model.eval(), x, target="cuda", disable=("cuda_graph",))
    assert plain.manifest["functions"]["main"]["graph"] is None
    close(plain(x).numpy(), eager(model, x))
    with_graph = needle_tvm.compile(model, x, target="cuda")
    assert with_graph.manifest["functions"]["main"]["graph"] is not None
    close(with_graph(x).numpy(), eager(model, x))


def test_results_stay_on_the_gpu_if_all_inputs_are_there(tmp_path):
    model = Layers()
    x, y = arrays(2)
    ready = compiled(model, [ndl.Tensor(x)], tmp_path / "a")
    there = ready.executor.convert([x])
    found = ready(*there)
    assert ready.executor.holds([found]) and not ready.executor.holds([x])
    close(read(ready, [found]), eager(model, x))
    close(ready.run([y])[0], eager(model, y))  # an array in, an array out
    close(read(ready, ready.run([found])), eager(model, eager(model, x)))


def test_calls_are_timed_by_the_device(tmp_path):
    x, model = arrays(1)[0], Layers()
    ready = compiled(model, [ndl.Tensor(x)], tmp_path / "a")
    there = ready.executor.convert([x])
    call, outputs, clock = device_clock.contestant(
        lambda: ready(*there), ready.executor.synchronize, lambda: [read(ready, [ready(*there)])]
    )
    call()
    assert clock(5) > 0
    close(outputs()[0], eager(model, x))
