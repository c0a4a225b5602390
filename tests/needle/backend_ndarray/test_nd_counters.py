"""Counters of devices: allocated bytes, their peak, and in-place writes."""

import gc
import threading

import numpy as np

from needle import backend_ndarray as nd


def test_bytes_are_counted_while_they_live(device):
    gc.collect()
    before = device.memory_allocated()
    a = nd.empty((100, 10), "float64", device=device)
    assert device.memory_allocated() == before + 8000
    view = a[10:].permute((1, 0))
    assert device.memory_allocated() == before + 8000  # views share
    del a
    assert device.memory_allocated() == before + 8000
    del view
    assert device.memory_allocated() == before


def test_the_peak_is_the_most_there_was(device):
    gc.collect()
    device.reset_peak_memory_stats()
    before = device.memory_allocated()
    assert device.max_memory_allocated() == before
    a = nd.empty((1000,), "int32", device=device)
    b = nd.empty((500,), "bool", device=device)
    del a
    c = nd.empty((100,), "bool", device=device)
    assert device.memory_allocated() == before + 600
    assert device.max_memory_allocated() == before + 4500
    device.reset_peak_memory_stats()
    assert device.max_memory_allocated() == before + 600
    del b, c


def test_foreign_memory_does_not_count(device):
    x = nd.ones((1000,), device=device) if device.name == "cuda" else np.ones(1000)
    before = device.memory_allocated()
    a = nd.from_dlpack(x, device=device)
    assert device.memory_allocated() == before
    assert a.sum().item() == 1000


def test_threads_lose_no_byte(device):
    gc.collect()
    before = device.memory_allocated()

    def work():
        for i in range(200):
            nd.empty((i,), device=device)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert device.memory_allocated() == before


def test_a_write_marks_the_memory_of_all_its_views(device):
    a, other = (nd.zeros((4, 3), device=device) for _ in range(2))
    kernels = device.kernels
    seen = kernels.writes()
    row, elsewhere = a[1], other[1]
    assert row.view.written == a.view.written <= seen
    row[0] = 5
    assert a.view.written == row.view.written == kernels.writes() > seen
    assert elsewhere.view.written == other.view.written <= seen
    _ = a + 1
    assert a.view.written == row.view.written == kernels.writes()  # reads do not count
