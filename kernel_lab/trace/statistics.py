"""Locality statistics of a trace: counts, cache lines, hit rates and reuse distances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernel_lab.errors import LabUsageError
from kernel_lab.trace.events import Trace

LINE = 64  # bytes of a cache line


@dataclass(frozen=True)
class BufferCounts:
    """Accesses to a buffer, by element and by cache line.

    `elements` and `bytes` count distinct elements; if each block or thread has a copy of the
    buffer, they count within one copy. `line_accesses` counts how often an instruction touched a
    line, `lines` counts distinct lines.
    """

    name: str
    scope: str
    loads: int
    stores: int
    elements: int
    bytes: int
    line_accesses: int
    lines: int


def buffer_counts(trace: Trace, line: int = LINE) -> list[BufferCounts]:
    """Return the counts of each accessed buffer, in the order in which the kernel names them."""
    buffer, is_store = trace.buffer, trace.is_store
    touched = line_accesses(trace, line)
    rows = []
    for number, info in enumerate(trace.buffers):
        mine = buffer == number
        if not mine.any():
            continue
        elements = len(np.unique(trace.index[mine]))
        lines = touched.line[touched.buffer == number]
        rows.append(
            BufferCounts(
                info.name,
                info.scope,
                int(np.count_nonzero(mine & ~is_store)),
                int(np.count_nonzero(mine & is_store)),
                elements,
                elements * info.itemsize,
                len(lines),
                len(np.unique(lines)),
            )
        )
    return rows


@dataclass(frozen=True)
class LineAccesses:
    """Cache lines in the order in which they are touched: once for each instruction of a thread or
    a warp, however many of its lanes fall into the line. `time` is the instruction's time."""

    time: np.ndarray
    line: np.ndarray
    worker: np.ndarray
    buffer: np.ndarray
    is_store: np.ndarray


def line_accesses(trace: Trace, line: int = LINE) -> LineAccesses:
    """Return the trace as accesses to cache lines of `line` bytes."""
    if line < 1 or line & (line - 1):
        raise LabUsageError(f"statistics: a cache line of {line} bytes; it must be a power of two")
    unit = trace.warp if trace.device == "gpu" else trace.thread
    number = trace.address // line
    order = np.lexsort((number, unit, trace.worker, trace.time))
    keys = np.stack([trace.time, trace.worker, unit, number])[:, order]
    first = np.ones(len(order), bool)
    first[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    kept = order[first]
    columns = (trace.time, number, trace.worker, trace.buffer, trace.is_store)
    return LineAccesses(*(column[kept] for column in columns))


@dataclass(frozen=True)
class CacheResult:
    """Hits and misses of a cache model; a miss moves a line, so `misses` are line transfers."""

    size: int
    ways: int
    line: int
    hits: int
    misses: int
    cold: int

    @property
    def hit_rate(self) -> float:
        """Hits as a fraction of all accesses; 0 if there were none."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def bytes_moved(self) -> int:
        """Bytes that the misses loaded."""
        return self.misses * self.line


def cache(trace: Trace, size: int, ways: int | None = None, line: int = LINE) -> CacheResult:
    """Run the trace's global accesses through an LRU cache, one for each worker.

    `size` is in bytes. `ways` lines share a set, or all lines if it is None (a fully associative
    cache). Stores allocate. Registers and prefetching are not modelled. Raises LabUsageError if the
    size is not a whole number of sets.
    """
    capacity = size // line
    ways = capacity if ways is None else ways
    if capacity < 1 or ways < 1 or capacity % ways or capacity * line != size:
        raise LabUsageError(
            f"statistics: {size} bytes are not sets of {ways} lines of {line} bytes"
        )
    touched = line_accesses(trace.of_scope("global"), line)
    misses = cold = 0
    for worker in np.unique(touched.worker):
        mine = touched.line[touched.worker == worker].tolist()
        cold += len(set(mine))
        misses += len(_missed(mine, capacity // ways, ways)[0])
    return CacheResult(size, ways, line, len(touched.line) - misses, misses, cold)


def model_caches(trace: Trace) -> dict[str, int]:
    """Return the sizes of caches that hold a fraction of the global data that a kernel touches, in
    whole lines.

    The data of a small size fits into any real cache, so only smaller caches distinguish schedules.
    """
    lines = sum(row.lines for row in buffer_counts(trace) if row.scope == "global")
    parts = {"a sixteenth": 16, "a quarter of the data": 4}
    return {name: max(1, lines // part) * LINE for name, part in parts.items()}


def _missed(lines: list[int], sets: int, ways: int) -> tuple[list[int], list[int]]:
    """Return the positions in `lines` of an LRU cache's misses, and the line that each miss
    evicted, or -1 if there was room."""
    held: list[dict[int, None]] = [{} for _ in range(sets)]
    places, thrown = [], []
    for place, number in enumerate(lines):
        # Python's dict keeps the order of insertion: the first key is the least recently used.
        inside = held[number % sets]
        if number in inside:
            del inside[number]
        else:
            places.append(place)
            thrown.append(next(iter(inside)) if len(inside) == ways else -1)
            inside.pop(thrown[-1], None)
        inside[number] = None
    return places, thrown


@dataclass(frozen=True)
class CacheMisses:
    """The misses of a cache in order: for each miss its time, the line that was loaded, and the
    line that was evicted, or -1 if there was room."""

    time: np.ndarray
    line: np.ndarray
    thrown: np.ndarray


def cache_misses(trace: Trace, size: int, line: int = LINE) -> CacheMisses:
    """Return the misses that `cache` counts for a fully associative cache.

    Raises LabUsageError for a trace of several workers, each of which has its own cache, and for a
    size that is not a whole number of lines.
    """
    if trace.worker.any():
        raise LabUsageError(
            f"statistics: {trace.name} has several workers, each with its own cache"
        )
    if size < line or size % line:
        raise LabUsageError(f"statistics: {size} bytes are not whole lines of {line} bytes")
    touched = line_accesses(trace.of_scope("global"), line)
    places, thrown = _missed(touched.line.tolist(), 1, size // line)
    return CacheMisses(touched.time[places], touched.line[places], np.array(thrown, np.int64))


def stack_distances(sequence: np.ndarray) -> np.ndarray:
    """Return for each entry the number of distinct other values since its value was last seen; -1
    at the first occurrence of a value.

    A fully associative LRU cache of n lines hits exactly where the distance is below n: Mattson,
    Gecsei, Slutz, Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal
    9(2), 1970. Bennett and Kruskal, "LRU stack processing", IBM J. Res. Dev. 19(4), 1975, count in
    n log n with a tree over the trace, one entry after another. This function computes the same
    counts for all entries at once. Let p(i) be the position where entry i's value was last seen. An
    entry j between p(i) and i repeats the value of another entry between them if p(j) > p(i). So
    the count is i - p(i) - 1, less the number of j < i with p(j) > p(i). Such pairs are inversions,
    which a merge sort counts level by level.
    """
    sequence = np.asarray(sequence)
    places = np.arange(len(sequence))
    order = np.argsort(sequence, kind="stable")
    again = np.zeros(len(sequence), bool)
    again[1:] = sequence[order[1:]] == sequence[order[:-1]]
    previous = np.full(len(sequence), -1)
    previous[order[again]] = order[np.flatnonzero(again) - 1]
    seen = np.flatnonzero(previous >= 0)
    distances = np.full(len(sequence), -1)
    distances[seen] = places[seen] - previous[seen] - 1 - _larger_before(previous[seen])
    return distances


def _larger_before(values: np.ndarray) -> np.ndarray:
    """Return for each entry the number of larger entries before it. The values are distinct."""
    count = np.zeros(len(values), np.int64)
    ascending = np.argsort(values)
    level = 0
    while (1 << level) < len(values):
        # In blocks of 2 ** (level + 1) entries, compare each entry of the right half with the left.
        by_block = ascending[np.argsort(ascending >> (level + 1), kind="stable")]
        block, right = by_block >> (level + 1), (by_block >> level) & 1
        left_so_far = np.cumsum(1 - right)
        in_left = np.bincount(block, weights=1 - right).astype(np.int64)
        before_block = np.cumsum(in_left) - in_left
        larger = in_left[block] - (left_so_far - before_block[block])
        count[by_block] += np.where(right == 1, larger, 0)
        level += 1
    return count


def reuse_distances(trace: Trace, line: int = LINE) -> np.ndarray:
    """Return the stack distances, in cache lines, of all global line accesses, separately for each
    worker."""
    touched = line_accesses(trace.of_scope("global"), line)
    parts = [
        stack_distances(touched.line[touched.worker == worker])
        for worker in np.unique(touched.worker)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def reuse_histogram(distances: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the number of first touches, and of distances of 0, 1, 2-3, 4-7, ... lines."""
    again = distances[distances >= 0]
    bins = np.where(again > 0, np.floor(np.log2(np.maximum(again, 1))).astype(int) + 1, 0)
    return int(len(distances) - len(again)), np.bincount(bins)
