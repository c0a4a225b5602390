"""One-dimensional convolution on a GPU, in document 000's steps and two beyond."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_lab.rung import Ladder
from kernel_lab.workload import Case
from kernel_lab.workloads import conv1d

if TYPE_CHECKING:
    from needle_tvm._tvm import Schedule

ladder = Ladder(conv1d.CONV1D, "cuda")

THREADS = 128
EACH = 4  # neighbouring results of a thread


@ladder.rung(expected=(1, 1), kind="naive")
def naive(sch: Schedule, case: Case) -> None:
    """A block of one thread for each result, a sum over every index with a question at each.

    Of M + N - 1 terms N are not zero, and of 32 lanes one works.
    """
    _blocks(sch, 1)


def _blocks(sch: Schedule, threads: int) -> Any:
    """Results shared out to blocks of `threads`; returns the block loop and the thread's."""
    b = sch.get_sblock("B")
    i = sch.get_loops(b)[0]
    block, thread = sch.split(i, [None, threads])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return block, thread


def define_padded(case: Case) -> list[Any]:
    """The signal between zeros, so that each result sums N terms."""
    from needle_tvm._tvm import te

    n, size = case["N"], conv1d.length(case.size)
    a, w, padded = conv1d.padded(case, size + n - 1)
    t = te.reduce_axis((0, n), name="t")
    b = te.compute((size,), lambda i: te.sum(padded[i + t] * w[n - 1 - t], axis=t), name="B")
    return [a, w, b]


@ladder.rung(kind="rewrite", expected=(100, 600), define=define_padded)
def pad(sch: Schedule, case: Case) -> None:
    """N terms for each result instead of M + N - 1, still in blocks of one thread (document's v1).

    At M=16384, N=32 that is 513 times less. The question whether an index lies in the signal stays,
    but is asked for the terms that count only: no second kernel is launched to copy the signal.
    """
    sch.compute_inline(sch.get_sblock("padded"))
    _blocks(sch, 1)


@ladder.rung(expected=(3, 32))
def threads(sch: Schedule, case: Case) -> None:
    """Blocks of 128 threads (v2): all lanes of a warp work, and neighbours read neighbours."""
    sch.compute_inline(sch.get_sblock("padded"))
    _blocks(sch, THREADS)


@ladder.rung(kind="failed", expected=(0.9, 1.1))
def threads_2d(sch: Schedule, case: Case) -> None:
    """FAILS: 32 x 4 threads instead of 128 (v3, where it brought 1.6 times with other numbers).

    The results lie on a line: two thread indices make the same warps, with an index more to add up.
    """
    sch.compute_inline(sch.get_sblock("padded"))
    (i, _) = sch.get_loops(sch.get_sblock("B"))
    block, y, x = sch.split(i, [None, THREADS // 32, 32])
    sch.bind(block, "blockIdx.x")
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")


@ladder.rung(expected=(0.9, 1.5))
def shared_memory(sch: Schedule, case: Case) -> None:
    """A block's stretch of the signal, with its zeros, and the kernel in shared memory (v4).

    Each element is fetched, and asked about, once for a block instead of N times. The cache had
    most of this gain already.
    """
    _shared(sch, _blocks(sch, THREADS)[0], _kernel_copy(sch))


def _kernel_copy(sch: Schedule) -> Any:
    return sch.cache_read(sch.get_sblock("B"), 1, "shared")


def _shared(sch: Schedule, block: Any, kernel: Any) -> None:
    """Signal and kernel fetched by all threads of a block together."""
    padded = sch.get_sblock("padded")
    sch.set_scope(padded, 0, "shared")
    for copy in (padded, kernel):
        sch.compute_at(copy, block, preserve_unit_loops=True)
        _, thread = sch.split(sch.get_loops(copy)[-1], [None, THREADS])
        sch.bind(thread, "threadIdx.x")


@ladder.rung(expected=(1.05, 1.6))
def unroll(sch: Schedule, case: Case) -> None:
    """The taps written out, up to 64 of them (v5): no counters or jumps, addresses known."""
    kernel = _kernel_copy(sch)
    block, _ = _blocks(sch, THREADS)
    _shared(sch, block, kernel)
    if case["N"] <= 64:
        sch.unroll(sch.get_loops(sch.get_sblock("B"))[-1])


@ladder.rung(expected=(1.1, 2.5))
def register_tile(sch: Schedule, case: Case) -> None:
    """Four neighbouring results for each thread, summed in registers, the taps outside of them.

    A tap read from shared memory serves four multiply-adds, and with the taps written out a value
    of the signal read for one result is at hand for the next three.
    """
    b = sch.get_sblock("B")
    write = sch.cache_write(b, 0, "local")
    kernel = _kernel_copy(sch)
    (i,) = sch.get_loops(write)
    block, thread, own = sch.split(i, [None, THREADS, EACH])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.compute_at(b, thread, preserve_unit_loops=True)
    result, tap = sch.get_loops(b)[-2:]
    sch.reorder(tap, result)
    sch.unroll(result)
    if case["N"] <= 64:
        sch.unroll(tap)
    _shared(sch, block, kernel)
    sch.unroll(own)
    sch.decompose_reduction(b, tap)
