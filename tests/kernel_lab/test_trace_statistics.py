"""Statistics of traces against brute force, closed forms and planted faults."""

import re

import numpy as np
import pytest

pytest.importorskip("tvm")

from kernel_lab.errors import LabUsageError
from kernel_lab.trace import gpu, statistics, trace
from needle_tvm._tvm.names import te
from tests.kernel_lab import kernels


def brute_force(sequence):
    """Stack distances, computed by their definition."""
    found, last = [], {}
    for place, value in enumerate(sequence):
        found.append(len(set(sequence[last[value] + 1 : place])) if value in last else -1)
        last[value] = place
    return found


@pytest.mark.parametrize("length, values", [(0, 1), (1, 1), (2, 1), (257, 5), (300, 100), (64, 1)])
def test_stack_distances_are_those_of_the_definition(length, values):
    sequence = np.random.default_rng(length).integers(0, values, length)
    assert statistics.stack_distances(sequence).tolist() == brute_force(sequence.tolist())


def test_reuse_is_binned_by_powers_of_two():
    cold, bins = statistics.reuse_histogram(np.array([-1, -1, 0, 1, 2, 3, 4, 7, 8]))
    assert (cold, bins.tolist()) == (2, [1, 1, 2, 2, 1])


def test_counts_of_a_stream():
    n = 100
    rows = statistics.buffer_counts(trace(kernels.vector_add(n).mod))
    lines = -(-n * 4 // 64)
    assert [(r.name, r.loads, r.stores, r.bytes, r.line_accesses, r.lines) for r in rows] == [
        ("A", n, 0, 4 * n, n, lines),
        ("B", n, 0, 4 * n, n, lines),
        ("C", 0, n, 4 * n, n, lines),
    ]


def test_a_vector_of_lanes_touches_its_line_once():
    s = kernels.vector_add(128)
    s.vectorize(s.split(s.get_loops(s.get_sblock("C"))[0], [None, 16])[1])
    rows = statistics.buffer_counts(trace(s.mod))
    assert {(r.line_accesses, r.lines) for r in rows} == {(8, 8)}


def test_a_stream_misses_once_a_line_in_the_smallest_cache():
    n = 64
    found = statistics.cache(trace(kernels.vector_add(n).mod), size=3 * 64)
    assert (found.misses, found.hits) == (3 * n // 16, 3 * n - 3 * n // 16)
    assert found.bytes_moved == 3 * 4 * n
    thrashing = statistics.cache(trace(kernels.vector_add(n).mod), size=2 * 64)
    assert thrashing.hits == 0


@pytest.mark.parametrize("lines", [4, 16, 64])
def test_the_cache_hits_where_the_stack_distance_is_small_enough(lines):
    found = trace(kernels.gemm(20, 24, 17).mod)
    distances = statistics.reuse_distances(found)
    hits = int(((distances >= 0) & (distances < lines)).sum())
    assert statistics.cache(found, lines * 64).hits == hits


def test_a_set_associative_cache_is_an_lru_cache_for_each_set():
    found = trace(kernels.transpose(24).mod)
    touched = statistics.line_accesses(found).line
    hits = 0
    for number in range(4):
        distances = np.array(brute_force(touched[touched % 4 == number].tolist()))
        hits += int(((distances >= 0) & (distances < 2)).sum())
    assert statistics.cache(found, 8 * 64, ways=2).hits == hits


def test_each_worker_has_its_own_cache():
    s = kernels.gemm(8, 16, 8)
    s.parallel(s.get_loops(s.get_sblock("C"))[0])
    alone = statistics.cache(trace(s.mod, cores=1), 1 << 14)
    halves = statistics.cache(trace(s.mod, cores=2), 1 << 14)
    b_lines = 8 * 16 * 4 // 64
    assert alone.misses == alone.cold
    assert halves.misses == alone.misses + b_lines  # both read all of B


def test_tiling_shortens_the_reuse_distances_of_a_transpose():
    n = 64
    plain = statistics.reuse_distances(trace(kernels.transpose(n).mod))
    s = kernels.transpose(n)
    i, j = s.get_loops(s.get_sblock("B"))
    io, ii = s.split(i, [None, 16])
    jo, ji = s.split(j, [None, 16])
    s.reorder(io, jo, ii, ji)
    tiled = statistics.reuse_distances(trace(s.mod))
    assert plain.max() >= n and tiled.max() <= 2 * 16
    assert (plain < 0).sum() == (tiled < 0).sum() == 2 * n * n * 4 // 64


def bound(s, name, threads=32):
    """Bind the last loop of a block to threadIdx.x and the others to blocks."""
    *outer, last = s.get_loops(s.get_sblock(name))
    rest, thread = s.split(last, [None, threads])
    s.bind(s.fuse(*outer, rest), "blockIdx.x")
    s.bind(thread, "threadIdx.x")
    return s


def test_neighbouring_threads_on_neighbouring_words_are_coalesced():
    found = trace(bound(kernels.vector_add(256), "C").mod)
    for report in gpu.site_reports(found):
        assert (report.requests, report.moved, report.efficiency) == (8, 8 * 128, 1.0)
    assert gpu.findings(found) == []


def test_a_planted_uncoalesced_access_is_found():
    n = 64
    found = trace(bound(kernels.transpose(n), "B").mod)
    load, store = gpu.site_reports(found)
    assert load.moved == n * n * 32 and load.efficiency == 1 / 8  # one sector for each word
    assert store.efficiency == 1.0
    (finding,) = gpu.findings(found)
    assert finding.startswith("uncoalesced: the load of A[") and "12%" in finding


def through_shared(n, padding):
    """A transpose by 32 x 32 tiles in shared memory, whose rows are `padding` words longer."""
    s = kernels.transpose(n)
    block = s.get_sblock("B")
    i, j = s.get_loops(block)
    io, ii = s.split(i, [None, 32])
    jo, ji = s.split(j, [None, 32])
    s.reorder(io, jo, ii, ji)
    s.bind(io, "blockIdx.y")
    s.bind(jo, "blockIdx.x")
    copy = s.cache_read(block, 0, "shared")
    s.compute_at(copy, jo)
    s.bind(ji, "threadIdx.x")
    s.bind(s.get_loops(copy)[-1], "threadIdx.x")
    if padding:
        s.storage_align(copy, 0, axis=0, factor=32, offset=padding)
    return s


@pytest.mark.parametrize("padding, degree", [(0, 32), (1, 1), (2, 2), (8, 8)])
def test_a_planted_bank_conflict_is_found(padding, degree):
    n = 64
    (a,) = kernels.random((n, n))
    found = trace(through_shared(n, padding).mod, [a])
    assert np.array_equal(found.arrays["B"].reshape(n, n), a.T)
    by_access = {(r.scope, r.is_store): r for r in gpu.site_reports(found)}
    conflicted = by_access["shared", False]
    assert conflicted.degree == degree
    assert conflicted.turns == degree * n * n // 32
    assert by_access["shared", True].degree == 1
    assert by_access["global", False].efficiency == by_access["global", True].efficiency == 1.0
    lines = gpu.findings(found)
    if degree == 1:
        assert lines == []
    else:
        assert re.fullmatch(
            rf"bank conflict: the load of A_shared.* {degree} turns per warp", lines[0]
        )


def vector_of_threads(lanes, gap=0):
    """Each of 32 threads of a block copies `lanes` words that lie `gap` + 1 words apart."""
    a = te.placeholder((32 * lanes * (gap + 1),), "float32", name="A")
    s = kernels.schedule(a, te.compute((32 * lanes,), lambda i: a[i * (gap + 1)], name="B"))
    thread, lane = s.split(s.get_loops(s.get_sblock("B"))[0], [None, lanes])
    s.bind(thread, "threadIdx.x")
    s.vectorize(lane)
    return s


def test_a_vector_load_is_one_instruction_and_a_gathered_one_is_not():
    reports = gpu.site_reports(trace(vector_of_threads(4).mod))
    assert [(r.requests, r.moved) for r in reports] == [(1, 512), (1, 512)]
    gathered, stored = gpu.site_reports(trace(vector_of_threads(4, gap=1).mod))
    assert (gathered.requests, stored.requests) == (4, 1)
    wide = gpu.site_reports(trace(vector_of_threads(8).mod))
    assert {r.requests for r in wide} == {8}  # no instruction loads 32 bytes per thread


def test_warps_are_a_gpu_matter():
    with pytest.raises(LabUsageError, match="not a GPU kernel"):
        gpu.findings(trace(kernels.vector_add(4).mod))
    with pytest.raises(LabUsageError, match="power of two"):
        statistics.line_accesses(trace(kernels.vector_add(4).mod), 48)
    with pytest.raises(LabUsageError, match="not sets of 3 lines"):
        statistics.cache(trace(kernels.vector_add(4).mod), 1024, ways=3)


def strided_results(write_per_thread):
    """A product of which each thread has rows 8 apart. The results are written by a loop inside the
    thread's own, or by one beside it that is bound to the same threads."""
    s = kernels.gemm(16, 64, 8)
    c = s.get_sblock("C")
    write = s.cache_write(c, 0, "local")
    i, j, _ = s.get_loops(c)
    block, column = s.split(j, [2, 32])
    own, row = s.split(i, [2, 8])
    s.reorder(block, row, column, own)
    s.bind(block, "blockIdx.x")
    s.bind(row, "threadIdx.y")
    s.bind(column, "threadIdx.x")
    if write_per_thread:
        s.reverse_compute_at(write, column)
        return s
    s.reverse_compute_at(write, block)
    i, column = s.get_loops(write)[-2:]
    own, row = s.split(i, [2, 8])
    s.reorder(row, column, own)
    s.bind(row, "threadIdx.y")
    s.bind(column, "threadIdx.x")
    return s


@pytest.mark.parametrize("ignore", [(), ("local",)])
def test_loads_of_what_was_never_stored_are_found(ignore):
    a, b = kernels.random((16, 8), (8, 64))
    # TVM writes the box of rows r to r + 8, of which two are the thread's own.
    wrong = trace(strided_results(write_per_thread=True).mod, [a, b], ignore=ignore)
    assert np.isnan(wrong.arrays["C"]).any()
    assert dict(wrong.unset) == {"C_local": 8 * 64 * 7}
    assert dict(wrong.of_buffer("C").unset) == dict(wrong.unset)
    unset = [line for line in gpu.findings(wrong) if line.startswith("unset")]
    assert unset == ["unset: 3,584 loads from C_local of elements that had not been stored"]
    right = trace(strided_results(write_per_thread=False).mod, [a, b], ignore=ignore)
    assert np.allclose(right.arrays["C"].reshape(16, 64), a @ b, atol=1e-5)
    assert not right.unset and gpu.findings(right) == []
