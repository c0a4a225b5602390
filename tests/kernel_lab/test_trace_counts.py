"""The accesses of scheduled kernels against counts worked out by hand, and results against NumPy.

Each count is derived on paper from the loops; none comes from the trace.
"""

import math

import numpy as np
import pytest

pytest.importorskip("tvm")

from kernel_lab.trace import trace
from tests.kernel_lab import kernels
from tests.kernel_lab.kernels import close, counts


def same_conv2d(x, w):
    """Depthwise convolution of (c, h, w) with (c, k, k), borders zero."""
    half = w.shape[1] // 2
    padded = np.pad(x.astype(np.float64), ((0, 0), (half, half), (half, half)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[1:], axis=(1, 2))
    return np.einsum("chwyx,cyx->chw", windows, w.astype(np.float64))


def test_a_serial_loop_touches_each_element_once():
    n = 37
    a, b = kernels.random(n, n)
    found = trace(kernels.vector_add(n).mod, [a, b])
    assert counts(found) == {("A", "load"): n, ("B", "load"): n, ("C", "store"): n}
    assert found.index.tolist() == [i for i in range(n) for _ in range(3)]
    assert found.time.tolist() == list(range(3 * n))
    assert np.array_equal(found.arrays["C"], a + b)


def test_lanes_beyond_the_tail_of_a_vectorised_parallel_loop_are_idle():
    n, lanes, cores = 37, 8, 2
    a, b = kernels.random(n, n)
    s = kernels.vector_add(n)
    outer, inner = s.split(s.get_loops(s.get_sblock("C"))[0], [None, lanes])
    s.parallel(outer)
    s.vectorize(inner)
    found = trace(s.mod, [a, b], cores=cores)
    vectors = math.ceil(n / lanes)
    assert counts(found) == {("A", "load"): n, ("B", "load"): n, ("C", "store"): n}
    # Three vector instructions for each iteration of a worker; workers run side by side.
    assert len(set(found.time.tolist())) == 3 * math.ceil(vectors / cores)
    assert found.lane.max() == lanes - 1
    last = found.thread == vectors - 1
    assert found.lane[last].max() == n % lanes - 1
    assert sorted(set(found.worker.tolist())) == [0, 1]
    assert np.array_equal(found.arrays["C"], a + b)


def test_a_naive_gemm_reads_its_sum_back_at_each_step():
    m, n, k = 5, 6, 7
    a, b = kernels.random((m, k), (k, n))
    found = trace(kernels.gemm(m, n, k).mod, [a, b])
    assert counts(found) == {
        ("A", "load"): m * n * k,
        ("B", "load"): m * n * k,
        ("C", "load"): m * n * k,
        ("C", "store"): m * n * (k + 1),  # the initial zero, then a sum for each step
    }
    assert close(found.arrays["C"], a.astype("f8") @ b, k)


def test_a_vectorised_gemm_reads_one_scalar_of_a_for_all_lanes():
    m, n, k, rows, lanes = 12, 32, 10, 4, 16
    a, b = kernels.random((m, k), (k, n))
    s = kernels.gemm(m, n, k)
    block = s.get_sblock("C")
    i, j, r = s.get_loops(block)
    io, ii = s.split(i, [None, rows])
    jo, ji = s.split(j, [None, lanes])
    s.reorder(io, jo, r, ii, ji)
    s.parallel(io)
    s.unroll(ii)
    s.vectorize(ji)
    s.decompose_reduction(block, r)
    found = trace(s.mod, [a, b])
    assert counts(found) == {
        ("A", "load"): m * k * (n // lanes),
        ("B", "load"): m * n * k,
        ("C", "load"): m * n * k,
        ("C", "store"): m * n * (k + 1),
    }
    assert close(found.arrays["C"], a.astype("f8") @ b, k)


@pytest.mark.parametrize("m", [16, 13])
def test_a_tile_kept_in_local_memory_writes_the_result_once(m):
    n, k, rows = 24, 9, 4
    a, b = kernels.random((m, k), (k, n))
    s = kernels.gemm(m, n, k)
    block = s.get_sblock("C")
    i, j, r = s.get_loops(block)
    io, ii = s.split(i, [None, rows])
    s.reorder(io, j, r, ii)
    s.reverse_compute_at(s.cache_write(block, 0, "local"), j)
    s.decompose_reduction(block, r)
    found = trace(s.mod, [a, b])
    assert counts(found) == {
        ("A", "load"): m * n * k,
        ("B", "load"): m * n * k,
        ("C_local", "load"): m * n * (k + 1),  # each step of the sum, and the final copy
        ("C_local", "store"): m * n * (k + 1),  # the initial zero, and each step of the sum
        ("C", "store"): m * n,
    }
    assert close(found.arrays["C"], a.astype("f8") @ b, k)
    without = trace(s.mod, [a, b], ignore=["local"])
    assert counts(without) == {
        key: count for key, count in counts(found).items() if key[0] != "C_local"
    }


def test_a_convolution_that_tests_each_tap_loads_only_inside():
    m, n = 21, 6
    a, w = kernels.random(m, n)
    found = trace(kernels.conv1d_inline(m, n).mod, [a, w])
    outputs = m + n - 1
    assert counts(found) == {
        ("A", "load"): m * n,  # every element meets every weight once
        ("W", "load"): m * n,
        ("B", "load"): outputs * n,
        ("B", "store"): outputs * (n + 1),
    }
    assert close(found.arrays["B"], np.convolve(a.astype("f8"), w), n)


def test_a_padded_convolution_loads_each_element_once_into_the_copy():
    m, n = 21, 6
    a, w = kernels.random(m, n)
    found = trace(kernels.conv1d_padded(m, n).mod, [a, w])
    outputs = m + n - 1
    assert counts(found) == {
        ("A", "load"): m,
        ("P", "store"): m + 2 * (n - 1),
        ("P", "load"): outputs * n,
        ("W", "load"): outputs * n,
        ("B", "load"): outputs * n,
        ("B", "store"): outputs * (n + 1),
    }
    assert close(found.arrays["B"], np.convolve(a.astype("f8"), w), n)


def test_tiles_of_a_padded_convolution_make_their_own_halo_and_stop_at_the_tail():
    m, n, tile, lanes = 50, 6, 16, 4
    a, w = kernels.random(m, n)
    s = kernels.conv1d_padded(m, n)
    block = s.get_sblock("B")
    i, r = s.get_loops(block)
    io, ii, lane = s.split(i, [None, tile // lanes, lanes])
    s.reorder(io, ii, r, lane)
    s.compute_at(s.get_sblock("P"), io)
    s.parallel(io)
    s.vectorize(lane)
    s.decompose_reduction(block, r)
    found = trace(s.mod, [a, w])
    outputs, padded = m + n - 1, m + 2 * (n - 1)
    tiles = [range(first, min(first + tile + n - 1, padded)) for first in range(0, outputs, tile)]
    inside = range(n - 1, m + n - 1)
    # A vector reads a weight once for all lanes; vectors with any lane before the tail read it.
    vectors = math.ceil(outputs / lanes)
    assert counts(found) == {
        ("A", "load"): sum(len([p for p in part if p in inside]) for part in tiles),
        ("P", "store"): sum(len(part) for part in tiles),
        ("P", "load"): outputs * n,
        ("W", "load"): vectors * n,
        ("B", "load"): outputs * n,
        ("B", "store"): outputs * (n + 1),
    }
    assert close(found.arrays["B"], np.convolve(a.astype("f8"), w), n)


def test_a_gpu_kernel_leaves_threads_of_the_last_block_idle():
    n, threads = 100, 32
    a, b = kernels.random(n, n)
    s = kernels.vector_add(n)
    block, thread = s.split(s.get_loops(s.get_sblock("C"))[0], [None, threads])
    s.bind(block, "blockIdx.x")
    s.bind(thread, "threadIdx.x")
    found = trace(s.mod, [a, b])
    assert found.device == "gpu"
    assert counts(found) == {("A", "load"): n, ("B", "load"): n, ("C", "store"): n}
    assert found.time.max() == 2  # two loads and a store, as all threads run at once
    per_block = np.bincount(found.worker) // 3
    assert per_block.tolist() == [32, 32, 32, n - 3 * threads]
    assert np.array_equal(found.arrays["C"], a + b)


def test_a_shared_memory_gemm_fetches_each_slice_once_per_block():
    m, n, k, tile, step = 16, 24, 32, 8, 16
    a, b = kernels.random((m, k), (k, n))
    found = trace(kernels.shared_gemm(m, n, k, tile, step).mod, [a, b])
    slices = k // step
    assert counts(found) == {
        ("A", "load"): m * k * (n // tile),  # every column of blocks reads all of A
        ("B", "load"): k * n * (m // tile),
        ("A_shared", "store"): m * k * (n // tile),
        ("B_shared", "store"): k * n * (m // tile),
        ("A_shared", "load"): m * n * k,
        ("B_shared", "load"): m * n * k,
        ("C_local", "load"): m * n * (k + 1),
        ("C_local", "store"): m * n * (k + 1),
        ("C", "store"): m * n,
    }
    assert len(found.barriers) == 2 * slices  # after each fetch, and before the next
    assert close(found.arrays["C"], a.astype("f8") @ b, k)


@pytest.mark.parametrize("width", [12, 11])
def test_a_depthwise_convolution_on_a_gpu_skips_the_taps_outside(width):
    channels, height, k = 2, 9, 5
    x, w = kernels.random((channels, height, width), (channels, k, k))
    s = kernels.depthwise(channels, height, width, k)
    block = s.get_sblock("Y")
    c, y, z, dy, dx = s.get_loops(block)
    zo, zi = s.split(z, [None, 4])
    s.reorder(c, y, zo, zi, dy, dx)
    s.bind(s.fuse(c, y), "blockIdx.x")
    s.bind(zo, "threadIdx.y")
    s.bind(zi, "threadIdx.x")
    s.decompose_reduction(block, dy)
    found = trace(s.mod, [x, w])
    half = k // 2
    rows = sum(0 <= row + d - half < height for row in range(height) for d in range(k))
    columns = sum(0 <= column + d - half < width for column in range(width) for d in range(k))
    outputs = channels * height * width
    assert counts(found) == {
        ("X", "load"): channels * rows * columns,
        ("W", "load"): outputs * k * k,
        ("Y", "load"): outputs * k * k,
        ("Y", "store"): outputs * (k * k + 1),
    }
    assert close(found.arrays["Y"], same_conv2d(x, w), k * k)


def test_virtual_threads_share_what_a_real_thread_fetches():
    m = n = k = 32
    s = kernels.gemm(m, n, k)
    a, b = kernels.random((m, k), (k, n))
    block = s.get_sblock("C")
    i, j, r = s.get_loops(block)
    by, vy, ty = s.split(i, [None, 2, 4])
    bx, vx, tx = s.split(j, [None, 2, 4])
    ro, ri = s.split(r, [None, 8])
    s.reorder(by, bx, vy, vx, ty, tx, ro, ri)
    axes = ("blockIdx.y", "blockIdx.x", "vthread.y", "vthread.x", "threadIdx.y", "threadIdx.x")
    for loop, axis in zip((by, bx, vy, vx, ty, tx), axes, strict=True):
        s.bind(loop, axis)
    s.reverse_compute_at(s.cache_write(block, 0, "local"), tx)
    for operand in range(2):
        copy = s.cache_read(block, operand, "shared")
        s.compute_at(copy, ro)
        fused = s.fuse(*s.get_loops(copy)[-2:])
        _, y, x = s.split(fused, [None, 4, 4])
        s.bind(y, "threadIdx.y")
        s.bind(x, "threadIdx.x")
    s.decompose_reduction(block, ro)
    found = trace(s.mod, [a, b])
    blocks = (m // 8) * (n // 8)
    assert counts(found) == {
        ("A", "load"): blocks * 8 * k,
        ("B", "load"): blocks * 8 * k,
        ("A_shared", "store"): blocks * 8 * k,
        ("B_shared", "store"): blocks * 8 * k,
        ("A_shared", "load"): m * n * k,
        ("B_shared", "load"): m * n * k,
        ("C_local", "load"): m * n * (k + 1),
        ("C_local", "store"): m * n * (k + 1),
        ("C", "store"): m * n,
    }
    assert found.thread.max() == 15
    assert close(found.arrays["C"], a.astype("f8") @ b, k)
