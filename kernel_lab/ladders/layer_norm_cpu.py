"""Layer normalisation on a CPU: two sums and a sweep, and the digits that a single sweep loses."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from kernel_lab.ladders import rows
from kernel_lab.rung import Ladder
from kernel_lab.workload import Case
from kernel_lab.workloads import layer_norm

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

ladder = Ladder(layer_norm.LAYER_NORM, "cpu")


@ladder.rung(expected=(1, 1), kind="naive")
def naive(sch: Schedule, case: Case) -> None:
    """Run the stages one after another over the whole matrix, on one thread.

    Each of the two sums is a chain of dependent additions, four cycles per value; only the last
    sweep is in vectors.

    Picture: x is swept three times: for the sum, for the squares, and for the result. In the
    staircases of `total` and `squares` a single element is loaded and stored again and again. In
    the compiled code, these steps are the chains of additions.
    """


@ladder.rung(expected=(2.4, 4.8))
def across_rows(sch: Schedule, case: Case) -> None:
    """Sum 16 rows side by side in the lanes of a vector, so that no chain holds up another.

    The additions no longer wait, but the loads do: 16 neighbouring lanes are 16 rows, far apart in
    memory. Each load is a gather from 16 cache lines and uses one element of each.

    Prediction: a value's chains take 3 + 4 cycles, and the last sweep about 0.6. Sixteen loads for
    a vector take 8 cycles at two per cycle, 0.5 for each value and sum, or 1.25 if a gather takes
    20. So 7.6 cycles become 1.6 to 3.1.

    Picture: A step of x is a column of points, each a row above the one before: a gather. Each line
    is loaded once for each of its elements, but the first-level cache is fast enough for that.
    """
    for name in ("total", "squares"):
        block = sch.get_sblock(name)
        row, term = sch.get_loops(block)
        outer, lane = sch.split(row, [None, case.processor.lanes])
        sch.reorder(outer, term, lane)
        sch.vectorize(lane)


@ladder.rung(after=naive, expected=(0.97, 1.05))
def fuse_rows(sch: Schedule, case: Case) -> Any:
    """Compute mean, variance and result of a row before the next row begins.

    A row of 768 is 3 KiB and stays in the first-level cache for the second and the third sweep.

    Prediction: the chains' 7 cycles per value hide the loads, wherever they come from.

    Picture: There are three sweeps over a row, and then the next row. `total`, `mean`, `squares`
    and `variance` have one element each.
    """
    return rows.row_by_row(sch, "y")


def _mean_and_variance(case: Case, x: Any) -> tuple[Any, Any]:
    """Return each row's mean and variance, with both sums in 64 lanes."""
    from needle_tvm._tvm.names import te

    m, n = (case["M"],), float(case["N"])
    add = (te.sum, operator.add)
    total = rows.in_lanes(case, m, lambda i, k: x[i, k], add, "total")
    mean = te.compute(m, lambda i: total[i] / n, name="mean")

    def square(i: Any, k: Any) -> Any:
        return (x[i, k] - mean[i]) * (x[i, k] - mean[i])

    squares = rows.in_lanes(case, m, square, add, "squares")
    return mean, te.compute(m, lambda i: squares[i] / n, name="variance")


def define_lanes(case: Case) -> list[Any]:
    """Define layer normalisation with both sums in 64 lanes."""
    x, gamma, beta = layer_norm.placeholders(case)
    found = _mean_and_variance(case, x)
    return [x, gamma, beta, layer_norm.normalised(x, gamma, beta, *found)]


@ladder.rung(kind="rewrite", expected=(5, 12), define=define_lanes)
def lanes(sch: Schedule, case: Case) -> Any:
    """Add in 64 lanes, four vectors that do not wait for each other, and combine the lanes at the
    end.

    A sum in lanes is also more exact: each lane adds a 64th of the terms.

    Prediction: a chain of 768 additions becomes 768 / 64 + 2 + 4 = 18, a 43rd, so the chains' 7 of
    7.6 cycles become 0.2. The 0.4 to 1.3 cycles for loads, stores and the division remain.

    Picture: The sums are the short strokes at the beginning of each row. Most of the remaining
    steps are the last sweep, whose loops have no vectors in the schedule; LLVM vectorises them.
    """
    row = rows.row_by_row(sch, "y")
    for name in ("total", "squares"):
        rows.lanes_in_vectors(sch, name)
    return row


def _scaled(case: Case, x: Any, gamma: Any, beta: Any, mean: Any, variance: Any) -> Any:
    """Return the result, with a division and a root per row instead of per value."""
    from needle_tvm._tvm.names import te, tirx

    scale = te.compute(
        (case["M"],),
        lambda i: 1.0 / tirx.sqrt(variance[i] + layer_norm.EPSILON),
        name="scale",
    )
    return te.compute(
        x.shape, lambda i, j: (x[i, j] - mean[i]) * scale[i] * gamma[j] + beta[j], name="y"
    )


def define_scale(case: Case) -> list[Any]:
    """Define the result with both sums in 64 lanes and 1 / sqrt(variance + eps) as a stage of its
    own."""
    x, gamma, beta = layer_norm.placeholders(case)
    return [x, gamma, beta, _scaled(case, x, gamma, beta, *_mean_and_variance(case, x))]


@ladder.rung(kind="rewrite", expected=(1, 1.7), define=define_scale)
def one_division(sch: Schedule, case: Case) -> Any:
    """Compute 1 / sqrt(variance + eps) once for each row, and multiply by it.

    Roots and divisions wait for the one unit that computes them, which takes many cycles per
    vector; a multiplication takes half a cycle.

    Prediction: LLVM had already moved the root out of the sweep: the code of `lanes` has 12
    divisions of vectors and no root. A division takes 10 cycles for 16 lanes, 0.6 of about 1.0
    cycle per value, unless it is hidden behind the loads and the stores.

    Picture: There is a new panel, `scale`: it is written once per row, and read with every element
    of the last sweep. `variance` is now read once per row.
    """
    return lanes(sch, case)


def define_one_pass(case: Case) -> list[Any]:
    """Define the sum and the sum of squares of a row in one sweep over its values minus the first
    one.

    variance = mean of squares - square of mean. Without the shift, a row whose mean is far larger
    than its deviation would lose all digits in that difference (Chan, Golub and LeVeque,
    "Algorithms for computing the sample variance", The American Statistician 37, 1983).
    """
    from needle_tvm._tvm.names import te

    x, gamma, beta = layer_norm.placeholders(case)
    n = case["N"]
    width = rows.CHAINS * case.processor.lanes
    width = width if n % width == 0 else 1
    step = te.reduce_axis((0, n // width), name="step")
    lane = te.reduce_axis((0, width), name="lane")

    def shifted(i: Any, lane: Any) -> Any:
        return x[i, step * width + lane] - x[i, 0]

    both = te.comm_reducer(
        lambda left, right: (left[0] + right[0], left[1] + right[1]),
        lambda *dtypes: (te.const(0.0, "float32"), te.const(0.0, "float32")),
        name="both",
    )
    totals, squares = te.compute(
        (case["M"], width),
        lambda i, lane: both((shifted(i, lane), shifted(i, lane) * shifted(i, lane)), axis=step),
        name="lanes",
    )
    total, square = te.compute(
        (case["M"],), lambda i: both((totals[i, lane], squares[i, lane]), axis=lane), name="row"
    )
    offset = te.compute((case["M"],), lambda i: total[i] / float(n), name="offset")
    mean = te.compute((case["M"],), lambda i: offset[i] + x[i, 0], name="mean")
    variance = te.compute(
        (case["M"],), lambda i: square[i] / float(n) - offset[i] * offset[i], name="variance"
    )
    return [x, gamma, beta, _scaled(case, x, gamma, beta, mean, variance)]


@ladder.rung(kind="rewrite", expected=(1, 1.35), define=define_one_pass)
def one_pass(sch: Schedule, case: Case) -> Any:
    """Take both sums in one sweep over the row.

    This saves a third of the loads. They come from the first-level cache, so little is gained as
    long as a row stays there. The result loses digits if the row's first value is far from its
    mean.

    Prediction: a vector of x is loaded in three sweeps, in the last one with gamma and beta: 1 + 1
    + 3 loads, one per cycle. One sweep for both sums makes that 1 + 3: a gain of 1.25, more if the
    sums wait for their chains, and none if the store of 2 cycles is the limit.

    Picture: `lanes.v0` and `lanes.v1` are the sums and the sums of squares: one stroke over x fills
    both. The ramps after it join the lanes, one after another.
    """
    row = rows.row_by_row(sch, "y")
    *_, lane, step = sch.get_loops(sch.get_sblock("lanes"))
    sch.reorder(step, lane)
    sch.vectorize(lane)
    return row


@ladder.rung(
    expected=(1.6, 2),
    explained=("the quartiles, 1.76 and 2.03, lie on both sides of 2"),
)
def parallel(sch: Schedule, case: Case) -> None:
    """Put rows on different threads, several at a time; rows do not depend on each other.

    The speed is proportional to the number of cores, as long as memory keeps up.

    Prediction: 32 tasks on two cores, so 2 at best. 6.3 MB move in 90 microseconds: 70 GB/s, while
    the sum of two vectors moves 173 GB/s.

    Picture: Both threads read gamma and beta (violet); everything else belongs to one thread. Data
    that threads share but do not write costs no more than private data.
    """
    rows.shared_out(sch, one_pass(sch, case), case)
