"""Softmax of rows on a CPU: the cost of a row that stays in the first-level cache.

The failed rung `online` is the online softmax of Milakov and Gimelshein ("Online normalizer
calculation for softmax", arXiv:1805.02867), which pays if a row does not fit into that cache.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from kernel_lab.ladders import rows
from kernel_lab.rung import Ladder
from kernel_lab.workload import Case
from kernel_lab.workloads import softmax

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

ladder = Ladder(softmax.SOFTMAX, "cpu")

LOWEST = -3.0e38  # below any value, but finite, so that the difference of two is not NaN


@ladder.rung(expected=(1, 1), kind="naive")
def naive(sch: Schedule, case: Case) -> None:
    """Run four stages one after another, each over the whole matrix, on one thread.

    The matrix of exponentials is written, read for the sums and read again for the quotients. Each
    exponential is a call to the C library; these calls take nearly all of the time.

    Picture: x is read twice from beginning to end, for the maxima and for the exponentials. `e` is
    written, read for the sums, and read again for the quotients. A large matrix has left the cache
    again by the time of the next sweep.
    """


@ladder.rung(
    expected=(1, 1.06),
    explained="the matrix stayed in the third-level cache anyway, so nothing was saved; the 5 % "
    "that the rung loses were not traced to a count (Zen 4)",
)
def fuse_rows(sch: Schedule, case: Case) -> Any:
    """Compute all four stages of a row before the next row begins.

    A row of 1,024 is 4 KiB: after the first sweep it stays in the first-level cache. Memory is read
    once and written once. The gain is small, because the calls to the exponential do not wait for
    memory.

    Prediction: 12 MiB of traffic for `e` are saved, which the third-level cache moves in 0.3 of
    the 5.4 ms.

    Picture: Both sweeps of x over a row follow each other before the next row is touched. `e` has
    the elements of one row.
    """
    return rows.row_by_row(sch, "y")


def define_polynomial(case: Case) -> list[Any]:
    """Define softmax with an exponential made of arithmetic."""
    from needle_tvm._tvm.names import te

    x = te.placeholder((case["M"], case["N"]), name="x")
    e, total = softmax.stages(case, x, rows.polynomial_exp)
    return [x, te.compute(x.shape, lambda i, j: e[i, j] / total[i], name="y")]


@ladder.rung(kind="rewrite", expected=(1.8, 3.2), define=define_polynomial)
def polynomial(sch: Schedule, case: Case) -> Any:
    """Replace the call with a polynomial, so that LLVM computes 16 exponentials at once.

    e^x = 2^n e^r with r below ln(2)/2: six multiply-adds, and the exponent written as bits. The
    sweeps over exponentials and over quotients now run in vectors. The maximum and the sum are
    still chains, one value after another, at four cycles each.

    Prediction: a call takes 10 to 20 cycles, and the two chains of the maximum and the sum 7 to 8.
    Twenty operations for 16 lanes take 1.3 to 2 cycles per value; the chains remain. So 18 to 28
    cycles become 9 to 10.

    Picture: No access has changed, since the polynomial accesses no memory.
    """
    return rows.row_by_row(sch, "y")


def define_lanes(case: Case) -> list[Any]:
    """Define softmax with the maximum and the sum in 64 lanes; each lane takes every 64th value."""
    from needle_tvm._tvm.names import te

    x = te.placeholder((case["M"], case["N"]), name="x")
    m = (case["M"],)
    top = rows.in_lanes(case, m, lambda i, k: x[i, k], (te.max, te.max), "top")
    e = te.compute(x.shape, lambda i, j: rows.polynomial_exp(x[i, j] - top[i]), name="e")
    total = rows.in_lanes(case, m, lambda i, k: e[i, k], (te.sum, operator.add), "total")
    return [x, te.compute(x.shape, lambda i, j: e[i, j] / total[i], name="y")]


@ladder.rung(kind="rewrite", expected=(3, 5), define=define_lanes)
def lanes(sch: Schedule, case: Case) -> Any:
    """Take the maximum and the sum in 64 lanes: four vectors that do not wait for each other.

    A compiler is not allowed to do this by itself, because it changes the order of the additions.
    The lanes are combined once, at the end of the row. An addition takes four cycles, so four
    chains keep one unit busy.

    Prediction: the chains' 7 to 8 cycles become a 43rd of that: a chain has 16 steps of four
    independent vectors, and the folding at the end. Of 9 to 10 cycles, the 2 to 3 for the
    exponential and the quotient remain.

    Picture: The sweep over x for the maximum is now a steep stroke. The sweep for the exponentials
    is not: the trace follows the schedule's loops, and does not show LLVM's own vectors.
    """
    row = rows.row_by_row(sch, "y")
    for name in ("top", "total"):
        rows.lanes_in_vectors(sch, name)
    return row


@ladder.rung(kind="failed", expected=(0.55, 0.8))
def recompute(sch: Schedule, case: Case) -> None:
    """FAILS: compute each exponential twice, for the sum and for the quotient, and store none.

    It saves a store and a load in the first-level cache, which run in parallel with the arithmetic
    anyway, but it doubles the arithmetic.

    Prediction: 1.3 to 2 cycles more for each value, on top of 2.5.

    Picture: The panel of `e` is gone. At the beginning of each row there are two sweeps over x,
    where `lanes` has one, because the sum reads x, too.
    """
    sch.compute_inline(sch.get_sblock("e"))
    lanes(sch, case)


def define_online(case: Case) -> list[Any]:
    """Define the maximum and the sum of a row in one sweep; the sum is rescaled whenever the
    maximum grows."""
    from needle_tvm._tvm.names import te

    x = te.placeholder((case["M"], case["N"]), name="x")

    def join(left: Any, right: Any) -> tuple[Any, Any]:
        top = te.max(left[0], right[0])
        first, second = (rows.polynomial_exp(side[0] - top) for side in (left, right))
        return top, left[1] * first + right[1] * second

    def nothing(*dtypes: str) -> tuple[Any, Any]:
        return te.const(LOWEST, "float32"), te.const(0.0, "float32")

    joined = te.comm_reducer(join, nothing, name="joined")
    width = 4 * case.processor.lanes
    width = width if case["N"] % width == 0 else 1
    step = te.reduce_axis((0, case["N"] // width), name="step")
    lane = te.reduce_axis((0, width), name="lane")
    one = te.const(1.0, "float32")
    top, total = te.compute(
        (case["M"], width),
        lambda i, lane: joined((x[i, step * width + lane], one), axis=step),
        name="lanes",
    )
    top, total = te.compute(
        (case["M"],), lambda i: joined((top[i, lane], total[i, lane]), axis=lane), name="row"
    )
    return [
        x,
        te.compute(
            x.shape, lambda i, j: rows.polynomial_exp(x[i, j] - top[i]) / total[i], name="y"
        ),
    ]


@ladder.rung(kind="failed", after=lanes, expected=(0.35, 0.55), define=define_online)
def online(sch: Schedule, case: Case) -> None:
    """FAILS: take maximum and sum in one sweep, and rescale the sum whenever the maximum grows.

    It reads the row twice instead of three times, but computes three exponentials for each value
    instead of one. It pays where reading is the main cost: for rows larger than the cache, or on a
    GPU. `attention` uses the same idea for whole tiles, where the rescaling is rare.

    Prediction: two more exponentials per value, 1.3 to 2 cycles each, on top of 2.5.

    Picture: `lanes.v0` and `lanes.v1` are the maxima and the sums of the lanes. At the beginning of
    each row a stroke updates all of them at every step. The ramps after it join the lanes, one
    after another.
    """
    rows.row_by_row(sch, "y")
    block = sch.get_sblock("lanes")
    *_, lane, step = sch.get_loops(block)
    sch.reorder(step, lane)
    sch.vectorize(lane)


@ladder.rung(after=lanes, expected=(1.6, 2))
def parallel(sch: Schedule, case: Case) -> None:
    """Put rows on different threads, several at a time; rows do not depend on each other.

    The speed is proportional to the number of cores, as long as their caches hold the rows they
    work on. If each row were a task, it would allocate its own lanes and exponentials, which costs
    a third of a row's time.

    Prediction: 32 tasks on two cores, so 2 at best; each task allocates its buffers, and the
    matrices' 8 MiB come from the cache that both cores share.

    Picture: Each thread works on rows of its own, with its own row of `e` and its own sums.
    """
    rows.shared_out(sch, lanes(sch, case), case)
