"""Features of CUDA devices only: several devices, streams, limits, DLPack streams, failures.

Without a GPU, test_cuda_emulated.py runs these tests on the emulated devices.
"""

import gc
import pickle
import threading

import numpy as np
import pytest

from needle import backend_ndarray as nd


@pytest.fixture
def gpu():
    device = nd.cuda()
    if not device.enabled():
        pytest.skip("there is no CUDA device")
    return device


@pytest.fixture
def two(gpu):
    if gpu.kernels.device_count() < 2:
        pytest.skip("there is one CUDA device")
    return gpu, nd.cuda(1)


@pytest.fixture
def emulated(gpu):
    if not gpu.kernels.emulated:
        pytest.skip("the devices are not emulated")
    return gpu


def test_a_device_that_is_not_there_is_named(gpu):
    far = nd.cuda(gpu.kernels.device_count())
    assert not far.enabled()
    with pytest.raises(RuntimeError, match=f"no CUDA device {far.index}"):
        nd.ones((2,), device=far)


# Several devices


def test_results_are_where_operands_are(two):
    first, second = two
    before = first.memory_allocated()
    a = nd.array(np.arange(6.0), device=second).reshape(2, 3)
    out = ((a + 1) @ a.permute(1, 0)).sum(0)
    assert out.device is second and first.memory_allocated() == before
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(out.numpy(), ((x + 1) @ x.T).sum(0))
    assert a.__dlpack_device__() == (2, 1)


def test_devices_do_not_mix(two):
    a, b = (nd.ones((2, 2), device=d) for d in two)
    with pytest.raises(ValueError, match="different devices"):
        a + b
    kernels = two[0].kernels
    index = nd.array(np.array([0]), device=two[1]).view
    for call in (
        lambda: kernels.add(a.view, b.view),
        lambda: kernels.matmul(a.view, b.view),
        lambda: kernels.copy(a.view, b.view),
        lambda: kernels.where(a.view, b.view, 1.0),
        lambda: kernels.gather(a.view, index, 0),
        lambda: kernels.sgd_step(a.view, b.view, None, 0.1, 0.0, 0.0, 0.0),
    ):
        with pytest.raises(ValueError, match="devices 0 and 1"):
            call()


def test_arrays_move_between_devices(two):
    first, second = two
    x = np.arange(12.0).reshape(3, 4)
    a = nd.array(x, device=first).permute(1, 0)
    b = a.to(second)
    assert b.device is second
    a.fill(0)
    np.testing.assert_array_equal(b.numpy(), x.T)
    np.testing.assert_array_equal(b.to(first).numpy(), x.T)
    np.testing.assert_array_equal(b.to(nd.cpu()).numpy(), x.T)
    again = pickle.loads(pickle.dumps(b))
    assert again.device is second
    np.testing.assert_array_equal(again.numpy(), x.T)


# Streams


def test_a_stream_is_used_inside_with(gpu):
    kernels = gpu.kernels
    assert kernels.current_stream() == 1
    s, t = gpu.stream(), gpu.stream()
    assert s.handle != t.handle
    with s:
        assert kernels.current_stream() == s.handle
        with t:
            assert kernels.current_stream() == t.handle
            with s:
                assert kernels.current_stream() == s.handle
            assert kernels.current_stream() == t.handle
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(kernels.current_stream()))
        thread.start()
        thread.join()
        assert elsewhere == [1]  # the current stream belongs to one thread
    assert kernels.current_stream() == 1
    s.synchronize()
    gpu.synchronize()


def test_cpu_devices_have_no_streams():
    for device in (nd.cpu(), nd.cpu_numpy()):
        device.synchronize()
        with pytest.raises(RuntimeError, match="no streams"):
            device.stream()
        with pytest.raises(RuntimeError, match="no memory limit"):
            device.set_memory_limit(1)
        assert set(device.memory_stats()) == {"allocated", "max_allocated", "cached"}


@pytest.mark.parametrize("seed", range(8))
def test_any_streams_give_the_same_results(gpu, seed):
    """Use arrays on random streams; the emulator refuses use out of order."""
    rng = np.random.default_rng(seed)
    streams = [gpu.stream() for _ in range(3)]
    host = [rng.standard_normal((8, 8)).astype(np.float32) for _ in range(4)]
    arrays = [nd.array(x, device=gpu) for x in host]
    for _ in range(60):
        i, j, k = rng.integers(0, 4, 3)
        with streams[rng.integers(0, 3)]:
            kind = rng.integers(0, 5)
            if kind == 0:
                host[i] = (host[j] + host[k]) / 2
                arrays[i] = (arrays[j] + arrays[k]) / 2
            elif kind == 1:
                host[i] = np.tanh(host[j] @ host[k])
                arrays[i] = (arrays[j] @ arrays[k]).tanh()
            elif kind == 2:
                host[i] = host[i].copy()
                host[i][2:5] = host[j][2:5]
                arrays[i] = arrays[i].copy()
                arrays[i][2:5] = arrays[j][2:5]
            elif kind == 3:
                host[i] = host[j] - host[j].mean(0, keepdims=True)
                arrays[i] = arrays[j] - arrays[j].mean(0, keepdims=True)
            else:
                arrays[i] = nd.array(host[j], device=gpu)  # may reuse memory just released
                host[i] = host[j]
    for x, a in zip(host, arrays, strict=True):
        np.testing.assert_allclose(a.numpy(), x, rtol=1e-4, atol=1e-4)


def test_threads_have_their_streams(gpu):
    x = np.arange(1000, dtype=np.float32)
    shared, wrong = nd.array(x, device=gpu), []

    def work(n):
        with gpu.stream():
            for _ in range(20):
                got = (shared * n + shared).numpy()
                if not (got == x * n + x).all():
                    wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Memory


def test_blocks_are_used_again(gpu):
    def program():
        return (nd.ones((1000,), device=gpu) * 2 + 1).sum().item()

    program()
    before = gpu.memory_stats()
    for _ in range(50):
        assert program() == 3000
    after = gpu.memory_stats()
    assert after["mallocs"] == before["mallocs"] and after["reserved"] == before["reserved"]


def test_the_cache_can_be_emptied(gpu):
    a = nd.ones((1 << 16,), device=gpu)
    del a
    gc.collect()
    assert gpu.memory_cached() > 0
    gpu.empty_cache()
    assert gpu.memory_cached() == 0
    stats = gpu.memory_stats()
    assert stats["reserved"] <= stats["max_reserved"] and stats["limit"] is None


def test_a_limit_is_kept_and_named(gpu):
    gpu.empty_cache()
    used = gpu.memory_stats()["reserved"]
    limit = used + (1 << 20)
    gpu.set_memory_limit(limit)
    try:
        a = nd.empty((1 << 17,), device=gpu)  # half of the limit
        with pytest.raises(MemoryError, match=rf"float32 array of shape \(1, 524288\).*{limit}"):
            nd.empty((1, 1 << 19), device=gpu)
        del a
        b = nd.empty((7 << 15,), device=gpu)  # cached memory is released for it
        assert gpu.memory_stats()["reserved"] <= limit
        del b
        with pytest.raises(ValueError, match="-1 is below 0"):
            gpu.set_memory_limit(-1)
    finally:
        gpu.set_memory_limit(None)
    assert nd.empty((1 << 20,), device=gpu).size == 1 << 20


def test_more_than_the_device_has(gpu):
    with pytest.raises(MemoryError, match=r"bytes free"):
        nd.empty((1 << 42,), device=gpu)
    a = nd.ones((1,), device=gpu).broadcast_to((1 << 21, 1 << 21))
    with pytest.raises(MemoryError, match="float32"):
        a + 1
    assert (nd.ones((3,), device=gpu) + 1).sum().item() == 6


# Indices that the host has not seen


def test_bad_indices_change_nothing(gpu):
    a = nd.zeros((4, 3), device=gpu)
    for bad in (4, -5):
        index = nd.array(np.array([1, bad, 2]), device=gpu)
        with pytest.raises(IndexError, match=f"index {bad} is out of bounds for an axis of extent"):
            gpu.kernels.scatter_add(a.view, index.view, nd.ones((3, 3), device=gpu).view, 0)
        # The index is made on the device, so its range is unknown.
        with pytest.raises(IndexError, match=f"index {bad} "):
            gpu.kernels.gather(a.view, (index + 0).view, 0)
    assert (a.numpy() == 0).all()


def test_an_index_may_change_after_it_was_checked(gpu):
    a, index = nd.zeros((4,), device=gpu), nd.array(np.array([0, 1]), device=gpu)
    gpu.kernels.gather(a.view, index.view, 0)
    index[1:] = 7
    with pytest.raises(IndexError):
        gpu.kernels.gather(a.view, index.view, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 5000), (4000, 7), (1, 3000), (2,)])
def test_many_repeated_positions(gpu, dtype, shape):
    rng = np.random.default_rng(0)
    rows, n = shape[0], 3000
    index = rng.integers(-rows, rows, n)
    source = rng.integers(-2, 3, (n, *shape[1:2][:0])).astype(np.float32)
    target, added = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    target[index] = source
    np.add.at(added, index, source)
    for kernel, expected in (("scatter", target), ("scatter_add", added)):
        a = nd.zeros((rows,), dtype, device=gpu)
        getattr(gpu.kernels, kernel)(
            a.view,
            nd.array(index, device=gpu).view,
            nd.array(source, device=gpu).astype(dtype).view,
            0,
        )
        if dtype == "bool" and kernel == "scatter_add":
            expected = np.bincount(index % rows, source != 0, rows) > 0
        np.testing.assert_array_equal(a.astype("float32").numpy(), expected.astype(bool)
                                      if dtype == "bool" else nd.array(expected).astype(dtype)
                                      .astype("float32").numpy())  # fmt: skip


# DLPack


def test_dlpack_shares_memory(gpu):
    a = nd.array(np.arange(6.0), device=gpu).reshape(2, 3)
    b = nd.from_dlpack(a.permute(1, 0))
    assert b.device is gpu and b.view.data_ptr == a.view.data_ptr
    b.fill(3)
    np.testing.assert_array_equal(a.numpy(), np.full((2, 3), 3.0))
    a.fill(4)
    np.testing.assert_array_equal(b.numpy(), np.full((3, 2), 4.0))


def test_dlpack_keeps_the_order_of_streams(gpu):
    s, t = gpu.stream(), gpu.stream()
    with s:
        a = nd.ones((100,), device=gpu) * 3
    with t:
        b = nd.from_dlpack(a) + 1
    with s:
        a.fill(9)
    assert (b.numpy() == 4).all()
    del a, b
    gc.collect()
    with s:
        assert (nd.zeros((100,), device=gpu).numpy() == 0).all()


def test_dlpack_memory_is_ready_on_any_stream(gpu):
    s, t = gpu.stream(), gpu.stream()
    with s:
        a = nd.ones((100,), device=gpu) * 3
        b = nd.from_dlpack(a)
    with t:
        assert ((b + 1).numpy() == 4).all()


def test_dlpack_outlives_the_exporter(gpu):
    before = gpu.memory_allocated()
    b = nd.from_dlpack(nd.ones((1000,), device=gpu) * 2)
    gc.collect()
    assert gpu.memory_allocated() == before + 4000
    assert (b.numpy() == 2).all()
    del b
    gc.collect()
    gpu.synchronize()  # memory in use by running work is released after it
    assert gpu.memory_allocated() == before


def test_dlpack_refusals(gpu):
    a = nd.ones((3,), device=gpu)
    for stream in (0, -2, "1", True, 1.5):
        with pytest.raises(ValueError, match="stream"):
            a.__dlpack__(stream=stream)
    for stream in (None, -1, 1, 2):
        a.__dlpack__(stream=stream)
    with pytest.raises(BufferError, match="not on"):
        nd.from_dlpack(a, device=nd.cpu())
    with pytest.raises(BufferError, match="not on"):
        nd.from_dlpack(np.ones(3), device=gpu)
    with pytest.raises(BufferError):
        a.__dlpack__(dl_device=(1, 0))
    with pytest.raises((BufferError, RuntimeError, TypeError)):
        np.from_dlpack(a)


def test_dlpack_between_devices(two):
    a = nd.ones((3,), device=two[1])
    b = nd.from_dlpack(a)
    assert b.device is two[1] and b.sum().item() == 3
    with pytest.raises(BufferError, match="not on"):
        nd.from_dlpack(a, device=two[0])


# Failures


def test_a_failure_names_the_work(emulated):
    a, b = nd.ones((2, 3), device=emulated), nd.ones((3, 4), device=emulated)
    calls = {
        "exp of float32 (2, 3)": lambda: a.exp(),
        "add of float32 (2, 3)": lambda: a + 1,
        "matmul of float32 (2, 3), float32 (3, 4)": lambda: a @ b,
        "sum of float32 (2, 3)": lambda: a.sum(),
        "numpy of float32 (2, 3)": lambda: a.numpy(),
    }
    for words, call in calls.items():
        call()  # there is memory now
        emulated.kernels.fail(1, False)
        with pytest.raises(RuntimeError) as caught:
            call()
        assert words in str(caught.value) and "a test asked for" in str(caught.value)
        call()


def test_memory_that_is_refused_once_is_asked_for_again(emulated):
    emulated.empty_cache()
    emulated.kernels.fail(1, True)
    assert nd.ones((5,), device=emulated).sum().item() == 5


def test_every_failure_leaves_a_device_that_works(emulated):
    """Whichever CUDA call of a program fails, the program raises and its next run is right."""

    def program():
        a = nd.array(np.arange(12, dtype=np.float32).reshape(3, 4), device=emulated)
        b = (a @ a.permute(1, 0)).sum(1)
        b[np.array([0, 2, 0])] = nd.ones((3,), device=emulated)
        return b.numpy()

    expected = program()
    failures = 0
    for after in range(1, 40):
        emulated.empty_cache()
        emulated.kernels.fail(after, False)
        try:
            got = program()
        except (RuntimeError, MemoryError):
            failures += 1
            got = None
        emulated.kernels.fail(0, False)
        if got is not None:
            np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(program(), expected)
    assert failures > 5


def test_tf32_is_off_until_allowed(gpu):
    kernels = gpu.kernels
    assert not kernels.tf32_allowed()
    kernels.allow_tf32(True)
    assert kernels.tf32_allowed()
    kernels.allow_tf32(False)
    assert isinstance(kernels.blas(), str) and kernels.blas()
