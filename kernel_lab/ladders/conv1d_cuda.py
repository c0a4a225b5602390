"""One-dimensional convolution on a GPU, in the steps of W. Ye, "TVM_tutorial", and two more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_lab.ladders.cuda_limits import shared_claim
from kernel_lab.rung import Ladder
from kernel_lab.workload import Case, Size
from kernel_lab.workloads import conv1d

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

ladder = Ladder(conv1d.CONV1D, "cuda")

THREADS = 128
EACH = 4  # neighbouring results per thread


@ladder.rung(expected=(1, 1), kind="naive")
def naive(sch: Schedule, case: Case) -> None:
    """Give each result a block of one thread, which sums over every index with a bounds check.

    Only N of M + N - 1 terms are not zero, and only one lane in 32 works.

    Picture: There is one bar in one sector, as in every rung with blocks of one thread. The numbers
    of requests above the panels tell more: B is loaded once for each term, A and W only where a
    term is not zero.
    """
    _blocks(sch, 1)


def _blocks(sch: Schedule, threads: int) -> Any:
    """Split the results into blocks of `threads`; return the loops over blocks and threads."""
    b = sch.get_sblock("B")
    i = sch.get_loops(b)[0]
    block, thread = sch.split(i, [None, threads])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return block, thread


def define_padded(case: Case) -> list[Any]:
    """Define the convolution of the zero-padded signal, so that each result sums N terms."""
    from needle_tvm._tvm.names import te

    n, size = case["N"], conv1d.length(case.size)
    a, w, padded = conv1d.padded(case, size + n - 1)
    t = te.reduce_axis((0, n), name="t")
    b = te.compute((size,), lambda i: te.sum(padded[i + t] * w[n - 1 - t], axis=t), name="B")
    return [a, w, b]


@ladder.rung(kind="rewrite", expected=(100, 300), define=define_padded)
def pad(sch: Schedule, case: Case) -> None:
    """Sum N terms per result instead of M + N - 1, still in blocks of one thread (v1 of W. Ye,
    "TVM_tutorial"; v2 to v5 below are its next steps).

    At M=16384, N=32 that is 513 times fewer terms. The bounds check remains, but only for the terms
    that count, and no second kernel is launched to copy the signal.

    Prediction: 16,415 terms become 32, 513 times fewer. Each of the 32 has two loads and a
    multiply-add; before, only one term in 514 had them. So the average term takes two to five times
    as long.

    Picture: There is a request for B and for W for each term that is left, and none for A where the
    padding gives a zero.
    """
    sch.compute_inline(sch.get_sblock("padded"))
    _blocks(sch, 1)


@ladder.rung(expected=(3, 8))
def threads(sch: Schedule, case: Case) -> None:
    """Use blocks of 128 threads (v2): all lanes of a warp work, and neighbouring threads read
    neighbouring elements.

    Prediction: 16,415 blocks of one thread need 4.75 waves on 108 multiprocessors that hold 32
    each; 129 blocks need one, with all lanes in use. The launch itself still takes microseconds.

    Picture: B's staircases fill four sectors. The staircase of A is shifted by the tap: it begins
    in one sector and ends in a fifth, so 80 % of the bytes that are moved are used. All threads
    read the same element of W.
    """
    sch.compute_inline(sch.get_sblock("padded"))
    _blocks(sch, THREADS)


@ladder.rung(kind="failed", expected=(0.95, 1.05))
def threads_2d(sch: Schedule, case: Case) -> None:
    """FAILS: use 32 x 4 threads instead of 128 (v3; W. Ye reports 1.6 times the speed of v2, but
    with other thread counts).

    The results are one-dimensional, so two thread indices give the same warps and cost one more
    addition.

    Prediction: all static figures are the same as in `threads`: 20 registers, 64 warps, 4.39
    sectors for a load of the signal. Only one more index is added.

    Picture: Panel by panel, the picture is the same as for `threads`: threads are numbered along x
    first, so a warp computes a row of 32 results.
    """
    sch.compute_inline(sch.get_sblock("padded"))
    (i, _) = sch.get_loops(sch.get_sblock("B"))
    block, y, x = sch.split(i, [None, THREADS // 32, 32])
    sch.bind(block, "blockIdx.x")
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")


def _stretch_fits(size: Size) -> str | None:
    """Return why a block's stretch of the signal and the kernel do not fit into shared memory with
    `EACH` results per thread; None if they fit."""
    return shared_claim(THREADS * EACH + 2 * size["N"] - 1)


@ladder.rung(expected=(0.9, 1.3), claims=_stretch_fits)
def shared_memory(sch: Schedule, case: Case) -> None:
    """Keep a block's stretch of the signal, with its zeros, and the kernel in shared memory (v4).

    Each element is fetched and checked once per block instead of N times. The cache already gave
    most of this gain.

    Prediction: 25.8 times fewer loads of the signal from global memory, but the first-level cache
    served most of them, and each term still has two loads. The bounds checks are gone.

    Picture: The fetches are to the left of the dotted line, which is the barrier. To the right of
    it, each tap reads 128 neighbouring elements, one element further on than the tap before. The
    whole block reads the same weight, which is drawn in violet.
    """
    _shared(sch, _blocks(sch, THREADS)[0], _kernel_copy(sch))


def _kernel_copy(sch: Schedule) -> Any:
    return sch.cache_read(sch.get_sblock("B"), 1, "shared")


def _shared(sch: Schedule, block: Any, kernel: Any) -> None:
    """Fetch signal and kernel with all threads of a block together."""
    padded = sch.get_sblock("padded")
    sch.set_scope(padded, 0, "shared")
    for copy in (padded, kernel):
        sch.compute_at(copy, block, preserve_unit_loops=True)
        _, thread = sch.split(sch.get_loops(copy)[-1], [None, THREADS])
        sch.bind(thread, "threadIdx.x")


@ladder.rung(expected=(0.98, 1.05))
def unroll(sch: Schedule, case: Case) -> None:
    """Unroll the taps, up to 64 of them (v5): no counters or jumps, addresses known.

    nvcc 13 unrolls 32 taps by itself and makes the same PTX without this step, but keeps a loop of
    64.

    Prediction: the PTX is the same with 32 taps: 134 instructions, 32 of them multiply-adds.
    """
    kernel = _kernel_copy(sch)
    block, _ = _blocks(sch, THREADS)
    _shared(sch, block, kernel)
    if case["N"] <= 64:
        sch.unroll(sch.get_loops(sch.get_sblock("B"))[-1])


@ladder.rung(expected=(0.4, 1))
def register_tile(sch: Schedule, case: Case) -> None:
    """Sum four neighbouring results per thread in registers, inside the loop over the taps.

    A tap read from shared memory could serve four multiply-adds, and a value of the signal read for
    one result could serve the next three. Two obstacles stand in the way. First, M + N - 1 results
    are not a whole number of blocks, so every term checks whether its result exists, and between
    the checks nvcc reloads both operands for each multiply-add. Second, threads four words apart
    share eight of the 32 banks, so each load of the signal takes four turns.

    Prediction: nvcc's 256 loads for 128 multiply-adds are two for each, as before, and half of them
    take four turns: 5 cycles of shared memory for each multiply-add instead of 2. So the rung only
    prepares the next one.

    Picture: The loads of the signal are in the panel with four colours: neighbouring threads read
    words that are four apart, so a warp's 32 threads share eight of the 32 banks and take four
    turns.
    """
    sums = sch.get_sblock("B")
    _tile(sch, case, sums, write=sch.cache_write(sums, 0, "local"))


def _tile(sch: Schedule, case: Case, sums: Any, write: Any) -> None:
    """Sum `EACH` neighbouring results per thread in registers; the block `write` stores them."""
    kernel = sch.cache_read(sums, 1, "shared")
    (i,) = sch.get_loops(write)
    block, thread, own = sch.split(i, [None, THREADS, EACH])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.compute_at(sums, thread, preserve_unit_loops=True)
    result, tap = sch.get_loops(sums)[-2:]
    sch.reorder(tap, result)
    sch.unroll(result)
    if case["N"] <= 64:
        sch.unroll(tap)
    _shared(sch, block, kernel)
    sch.unroll(own)
    sch.decompose_reduction(sums, tap)


def define_whole(case: Case) -> list[Any]:
    """Define sums for whole blocks of results, with zeros past the end of the signal; B is cut from
    them."""
    from needle_tvm._tvm.names import te

    n, size = case["N"], conv1d.length(case.size)
    whole = -(-size // (THREADS * EACH)) * THREADS * EACH
    a, w, padded = conv1d.padded(case, whole + n - 1)
    t = te.reduce_axis((0, n), name="t")
    sums = te.compute((whole,), lambda i: te.sum(padded[i + t] * w[n - 1 - t], axis=t), name="sums")
    return [a, w, te.compute((size,), lambda i: sums[i], name="B")]


@ladder.rung(kind="rewrite", expected=(2, 6), define=define_whole)
def whole_tiles(sch: Schedule, case: Case) -> None:
    """Sum whole blocks, and check whether a result exists only when it is written.

    Then nothing stands between the loads, and nvcc joins them: at N=32 the 256 scalar loads from
    shared memory for 128 multiply-adds become 17 of 16 bytes each. That removes the bank conflict
    as well. The trace still reports four turns for every load of the signal, because TVM's loops
    have scalar loads. A warp's 16-byte loads are served a quarter at a time, and the eight threads
    of a quarter read 128 bytes in a row, each bank once. (Five results per thread would have no
    conflict in the trace, since 5 and 32 have no common factor. But threads 20 bytes apart are not
    aligned to 16 bytes, so there are 44 loads for 160 multiply-adds.) Since each store is checked,
    a thread still has four stores of 4 bytes, which are 16 bytes from the next thread's stores; the
    L2 cache joins them.

    Prediction: 384 loads and multiply-adds become 17 + 128 instructions, 2.6 times fewer; the turns
    of shared memory fall from 640 to 68. With few blocks, less of this shows: 33 blocks occupy a
    third of an A100.

    Picture: The four colours are still there, because the picture shows the loads of TVM's loops.
    The table describes the loads that nvcc makes: they take one turn.
    """
    sums = sch.get_sblock("sums")
    sch.set_scope(sums, 0, "local")
    _tile(sch, case, sums, write=sch.get_sblock("B"))
