"""Large blocks of memory are kept for the next array of their size."""

import gc
import os

import needle as ndl
from needle import backend_ndarray as nd

BYTES = 1 << 20
# A sanitized build caches no memory, so as to see every use after release.
SANITIZED = "asan" in os.environ.get("LD_PRELOAD", "")


def test_memory_comes_back_and_is_used_again():
    device = ndl.cpu()
    gc.collect()
    device.empty_cache()
    assert device.memory_cached() == 0
    x = nd.empty((BYTES // 4,), "float32", device=device)
    at = x.view.data_ptr
    assert device.memory_cached() == 0
    del x
    if not SANITIZED:
        assert BYTES <= device.memory_cached() < 2 * BYTES
        again = nd.empty((BYTES // 4,), "float32", device=device)
        assert again.view.data_ptr == at and device.memory_cached() == 0
        del again
    device.empty_cache()
    assert device.memory_cached() == 0


def test_small_arrays_are_not_kept():
    device = ndl.cpu()
    device.empty_cache()
    for _ in range(100):
        nd.empty((100,), "float32", device=device)
    assert device.memory_cached() == 0


def test_kept_memory_is_bounded():
    device = ndl.cpu()
    for size in range(200):
        nd.empty((BYTES * 4 + size * BYTES,), "bool", device=device)
    assert device.memory_cached() <= 1 << 30
    device.empty_cache()


def test_kept_memory_does_not_count_as_allocated():
    device = ndl.cpu()
    before = device.memory_allocated()
    x = nd.empty((BYTES,), "bool", device=device)
    assert device.memory_allocated() == before + BYTES
    del x
    assert device.memory_allocated() == before
