"""The record of a run: for each access, its element, its thread and its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

WARP = 32  # threads of a warp, on every CUDA device so far


@dataclass(frozen=True)
class BufferInfo:
    """A buffer of the kernel. `base` is the byte address that the trace gives its first element.

    Buffers of scope "global" share one address space, in the order in which the kernel names them,
    each aligned to 256 bytes. A buffer of another scope lies in the memory of its owner (a block, a
    thread or a CPU worker), and each owner's addresses start from 0. `shape` is an argument's
    declared shape, and the flat shape of other buffers. `owned` says whether each CPU worker or GPU
    block (or each thread of it) has its own copy, in any scope.
    """

    name: str
    scope: str
    dtype: str
    size: int
    base: int
    shape: tuple[int, ...] = ()
    owned: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Site:
    """One load or store in the kernel's text: `text` is the access as TVMScript writes it, `nests`
    are the loop nests around it, if the trace recorded them."""

    buffer: int
    is_store: bool
    text: str
    nests: tuple[int, ...] = ()


@dataclass(frozen=True)
class Region:
    """A part of the run: `kind` is "kernel" (a GPU launch) or "parallel" (a parallel CPU loop).

    `start` and `stop` are times. A kernel has `blocks` blocks of `threads` threads. A parallel loop
    has `blocks` iterations of one thread each, assigned to the workers in contiguous chunks, as
    TVM's runtime assigns them.
    """

    kind: str
    start: int
    stop: int
    blocks: int
    threads: int


@dataclass(frozen=True)
class LoopValues:
    """A loop of the kernel: the value of its variable at each access, or OUTSIDE if the access is
    not in the loop."""

    OUTSIDE: ClassVar[int] = -1

    name: str
    extent: int
    value: np.ndarray


@dataclass(frozen=True)
class Trace:
    """Every access of a run. Each array has one entry for each access to an element.

    `site` indexes `sites`, `index` is the element in the flat buffer. `time` counts steps: one step
    is one load or store instruction. The threads of a block, and all blocks, take their steps
    together; a CPU worker takes its iterations one after another. `worker` is the CPU worker, or
    the block of a GPU kernel; `thread` is the iteration of a parallel CPU loop, or the thread
    within its block (x fastest); `lane` is the vector lane. Entries are in order of time, and of
    worker, thread and lane within a step.

    The trace has the accesses that the scheduled loops make. A compiler may keep values in
    registers that the loops load or store repeatedly.

    `arrays` holds the kernel's arguments after the run, by name. If the trace recorded the loops,
    `loops` are the serial and parallel loops with more than one iteration, each before the loops
    inside it. `unset` counts, by buffer, the loads of elements that had not been stored, from
    memory that belongs to a thread (of a kernel or a parallel loop) or to its block. It includes
    ignored scopes, and counts the whole run even if accesses were selected.
    """

    name: str
    device: str
    buffers: tuple[BufferInfo, ...]
    sites: tuple[Site, ...]
    regions: tuple[Region, ...]
    barriers: tuple[int, ...]
    site: np.ndarray
    index: np.ndarray
    time: np.ndarray
    worker: np.ndarray
    thread: np.ndarray
    lane: np.ndarray
    arrays: dict[str, np.ndarray]
    ignored: tuple[str, ...] = ()
    loops: tuple[LoopValues, ...] = ()
    unset: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.site)

    @property
    def buffer(self) -> np.ndarray:
        """The buffer of each access, as an index into `buffers`."""
        return np.array([site.buffer for site in self.sites], np.int16)[self.site]

    @property
    def is_store(self) -> np.ndarray:
        """Whether each access is a store."""
        return np.array([site.is_store for site in self.sites], bool)[self.site]

    @property
    def itemsize(self) -> np.ndarray:
        """Bytes of each access."""
        sizes = [self.buffers[site.buffer].itemsize for site in self.sites]
        return np.array(sizes, np.int64)[self.site]

    @property
    def address(self) -> np.ndarray:
        """The byte address of each access; see `BufferInfo` for the address spaces."""
        bases = [self.buffers[site.buffer].base for site in self.sites]
        return np.array(bases, np.int64)[self.site] + self.index * self.itemsize

    @property
    def warp(self) -> np.ndarray:
        """The warp of each access within its block; 0 on a CPU."""
        return self.thread // WARP if self.device == "gpu" else np.zeros_like(self.thread)

    def select(self, keep: np.ndarray) -> Trace:
        """Return the same trace with only the accesses that `keep` (a mask or indices) selects."""
        arrays = {name: getattr(self, name)[keep] for name in _COLUMNS}
        return Trace(
            self.name,
            self.device,
            self.buffers,
            self.sites,
            self.regions,
            self.barriers,
            **arrays,
            arrays=self.arrays,
            ignored=self.ignored,
            loops=tuple(replace(loop, value=loop.value[keep]) for loop in self.loops),
            unset=self.unset,
        )

    def of_buffer(self, name: str) -> Trace:
        """Return the accesses to the buffers called `name`. Raises KeyError if there are none."""
        wanted = [number for number, buffer in enumerate(self.buffers) if buffer.name == name]
        if not wanted:
            raise KeyError(f"no buffer {name!r}; there are {[b.name for b in self.buffers]}")
        return self.select(np.isin(self.buffer, wanted))

    def of_scope(self, scope: str) -> Trace:
        """Return the accesses to the buffers of `scope` ("global", "shared", "local")."""
        wanted = [number for number, buffer in enumerate(self.buffers) if buffer.scope == scope]
        return self.select(np.isin(self.buffer, wanted))


_COLUMNS = ("site", "index", "time", "worker", "thread", "lane")
