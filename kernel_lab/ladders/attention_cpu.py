"""Attention on a CPU: from three library calls to one kernel that stores no scores.

The last rung is the online softmax over tiles of keys of Rabe and Staats ("Self-attention does not
need O(n^2) memory", arXiv:2112.05682) and Dao et al. ("FlashAttention", arXiv:2205.14135).
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from kernel_lab.ladders import rows
from kernel_lab.rung import Ladder
from kernel_lab.workload import Case
from kernel_lab.workloads import attention

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

ladder = Ladder(attention.ATTENTION, "cpu")

ROWS = 4  # queries of a band, and rows of a register tile; `eight_rows` shows why 8 are too many
VECTORS = 2  # vectors across a register tile
TILE = 8  # register tiles of keys between two rescalings of the online softmax
LOWEST = -3.0e38  # below any score, but finite, so that the difference of two is not NaN


@ladder.rung(expected=(1, 1), kind="naive")
def naive(sch: Schedule, case: Case) -> None:
    """Run the stages one after another on one thread: scores, softmax, weighted sums of values.

    Both products are chains of dependent additions; the second runs down the columns of V. The
    scores, M N of them for each head, are written and read back four times.

    Picture: From left to right, the stages are `scores`, `top`, `e`, `sums`, `total` and `out`. For
    each query, the first stage reads all keys of its head, and the fourth all values, one column at
    a time.
    """


def products(case: Case, keys: int, height: int = ROWS) -> tuple[Any, Any, Any, Any, Any]:
    """Return Q, K, V, the `scores` (H, bands, height, keys) in whole tiles, and a function that
    returns an element of V, 0 past its end.

    A band holds `height` queries. The last band may reach past the end; it computes the last query
    again there.

    K is copied into panels as wide as a register tile, as `gemm` packs B. `keys` is N rounded up to
    whole panels or more.
    """
    from needle_tvm._tvm.names import te, tirx

    q, k, v = attention.placeholders(case)
    m, n, width = case["M"], case["N"], case["D"]
    columns = VECTORS * case.processor.lanes

    def pack(h: Any, panel: Any, d: Any, j: Any) -> Any:
        key = panel * columns + j
        return k[h, key, d] if keys == n else tirx.if_then_else(key < n, k[h, key, d], 0.0)

    def value(h: Any, j: Any, c: Any) -> Any:
        return v[h, j, c] if width % columns == 0 else tirx.if_then_else(c < width, v[h, j, c], 0.0)

    packed = te.compute((case["H"], keys // columns, width, columns), pack, name="packed")
    d = te.reduce_axis((0, width), name="d")

    def score(h: Any, band: Any, i: Any, j: Any) -> Any:
        row = band * height + i
        query = q[h, row if m % height == 0 else te.min(row, m - 1), d]
        return te.sum(query * packed[h, j // columns, d, j % columns], axis=d)

    scores = te.compute((case["H"], -(-m // height), height, keys), score, name="scores")
    return q, k, v, scores, value


def tiles(case: Case, exp: Any, lanes: bool, height: int = ROWS) -> list[Any]:
    """Define attention in bands of `height` queries with the exponential `exp`; with `lanes`,
    reductions run in lanes."""
    from needle_tvm._tvm.names import te, tirx

    columns, n = VECTORS * case.processor.lanes, case["N"]
    q, k, v, scores, value = products(case, -(-n // columns) * columns, height)
    scale = tirx.const(1.0 / math.sqrt(case["D"]), "float32")
    shape = scores.shape[:3]
    chains = rows.CHAINS if lanes else 0

    def over(term: Any, how: Any, name: str) -> Any:
        return rows.in_lanes(case, shape, term, how, name, chains)

    top = over(lambda h, b, i, j: scores[h, b, i, j], (te.max, te.max), "top")
    e = te.compute(
        (*shape, n),
        lambda h, b, i, j: exp((scores[h, b, i, j] - top[h, b, i]) * scale),
        name="e",
    )
    total = over(lambda h, b, i, j: e[h, b, i, j], (te.sum, operator.add), "total")
    j = te.reduce_axis((0, n), name="j")
    wide = -(-case["D"] // columns) * columns
    sums = te.compute(
        (*shape, wide),
        lambda h, b, i, c: te.sum(e[h, b, i, j] * value(h, j, c), axis=j),
        name="sums",
    )

    def quotient(h: Any, i: Any, c: Any) -> Any:
        band, row = i // height, i % height
        return sums[h, band, row, c] / total[h, band, row]

    return [q, k, v, te.compute(q.shape, quotient, name="out")]


def define_tiles(case: Case) -> list[Any]:
    """Define attention with queries in bands of 4 and keys in panels, so that both products consist
    of whole tiles."""
    from needle_tvm._tvm.names import tirx

    return tiles(case, tirx.exp, lanes=False)


@ladder.rung(kind="rewrite", expected=(11, 20), define=define_tiles)
def register_tiles(sch: Schedule, case: Case) -> None:
    """Compute both products, each for all queries at once, in register tiles of 4 x 32.

    The tiles are those of `gemm`, and three library calls would do the same. The scores are still a
    matrix in memory. Most of the time now goes into the softmax between the products, where each
    exponential is a call.

    Prediction: 134 million multiply-adds of 3 to 4 cycles (110 to 150 ms) become 8.4 million vector
    operations of one cycle (2.3 ms). The softmax of a million scores remains: 19 cycles each, 5.3
    ms.

    Picture: The left part is the copy of K into panels, which pays only if many queries use it, as
    at the full size. The two products are short; the stages of the softmax, between and after them,
    are as long as before.
    """
    for name in ("scores", "sums"):
        _register_tile(sch, case, name)


def _register_tile(sch: Schedule, case: Case, name: str) -> None:
    """Compute a band's product in tiles of its rows by two vectors; the tiles stay in registers."""
    block = sch.get_sblock(name)
    row, column, k = sch.get_loops(block)[-3:]
    tile, lane = sch.split(column, [None, VECTORS * case.processor.lanes])
    sch.reorder(tile, k, row, lane)
    copy = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(copy, tile, preserve_unit_loops=True)
    sch.unroll(row)
    sch.vectorize(lane)
    *_, written, lane = sch.get_loops(copy)
    sch.unroll(written)
    sch.vectorize(lane)
    sch.decompose_reduction(block, k)


def define_lanes(case: Case) -> list[Any]:
    """Define attention with the softmax of the rung `lanes` in the ladder `softmax`."""
    return tiles(case, rows.polynomial_exp, lanes=True)


@ladder.rung(kind="rewrite", expected=(2, 3), define=define_lanes)
def softmax_lanes(sch: Schedule, case: Case) -> None:
    """Compute the softmax as in the ladder `softmax`: by a polynomial, with reductions in 64
    lanes.

    Prediction: as in `softmax`, 19 cycles per score become 2.5, so 5.3 ms become 0.7. The products
    still take 2.3 ms.

    Picture: The stage that finds `top` is a stroke, and so is the one that adds up `total`. The
    stage of `e` is as long as before: LLVM vectorises its loop, but the schedule does not.
    """
    register_tiles(sch, case)
    for name in ("top", "total"):
        rows.lanes_in_vectors(sch, name)


@ladder.rung(expected=(1, 1.15))
def fuse_band(sch: Schedule, case: Case) -> None:
    """Compute all stages of a band of 4 queries before the next band begins.

    The scores and exponentials of a band, 4 x N floats each, stay in the cache, so memory no longer
    holds a matrix of scores. That saves little time if all scores fit into the third-level cache,
    which keeps up with a loop that reads forward.

    Prediction: the scores and the exponentials, 4 MiB each, are written and read twice; the
    third-level cache does that in about 0.4 of the 3.7 ms, and the arithmetic hides a part of it.

    Picture: The ramp at the left is the copy of K. Then each band repeats the same small pattern in
    buffers of one band: the scores, their softmax, and the sums over V.
    """
    _fuse(sch)
    softmax_lanes(sch, case)


def _fuse(sch: Schedule, skip: tuple[str, ...] = ()) -> Any:
    """Compute the stages of a band together; return the loop over all heads' bands.

    The panels of K, which all bands of a head read, are computed before the loop; the stages in
    `skip` are not moved.
    """
    out = sch.get_sblock("out")
    head, query, _ = sch.get_loops(out)
    height = int(sch.get(sch.get_loops(sch.get_sblock("scores"))[2]).extent)
    band, _ = sch.split(query, [None, height])
    task = sch.fuse(head, band)
    for name in reversed(rows.stages(sch)):
        if name not in ("out", "packed", *skip):
            sch.compute_at(sch.get_sblock(name), task, preserve_unit_loops=True)
    return task


@ladder.rung(
    kind="failed",
    expected=(0.44, 0.62),
    define=lambda case: tiles(case, rows.polynomial_exp, lanes=True, height=2 * ROWS),
)
def eight_rows(sch: Schedule, case: Case) -> None:
    """FAILS: use bands of 8 queries, with `gemm`'s register tile of 8 x 32.

    Sixteen vectors of sums leave enough of the 32 registers for a matmul, but not for the dozen
    constants of the exponential. LLVM keeps these constants in registers across the band's loops
    and spills the sums.

    Prediction: sums on the stack cost a store of 2 cycles for each multiply-add, so the products'
    2.3 ms become 4.6 to 6.9; the rest of the 3.7 ms remains.

    Picture: The pattern is the same as in `fuse_band`, for twice as many queries. Registers and
    stack are not in the trace.
    """
    fuse_band(sch, case)


@ladder.rung(after=fuse_band, expected=(1.6, 2))
def parallel(sch: Schedule, case: Case) -> None:
    """Distribute the bands of queries of all heads, and the copies of K, over the threads.

    Prediction: two cores share the 512 bands, and also the copying of K.

    Picture: Each thread packs the keys of a head, and then works on its bands, with scores,
    exponentials and sums of its own.
    """
    _on_threads(sch, _fuse(sch))
    softmax_lanes(sch, case)


def _on_threads(sch: Schedule, task: Any) -> None:
    """Distribute the tasks over the threads, and also the panels of K, which are computed before
    them."""
    sch.parallel(task)
    sch.parallel(sch.fuse(*sch.get_loops(sch.get_sblock("packed"))[:2]))


def define_online(case: Case) -> list[Any]:
    """Define attention in tiles of keys, each with its own maximum, total and sums of values; the
    tiles are joined one by one.

    The (top, total, sums) of two sets of keys are joined into the (top, total, sums) of their
    union: each side is scaled by the exponential of its maximum minus the common maximum.
    """
    from needle_tvm._tvm.names import te, tirx

    columns, n = VECTORS * case.processor.lanes, case["N"]
    keys = min(TILE, -(-n // columns)) * columns
    count = -(-n // keys)
    q, k, v, scores, value = products(case, count * keys)
    scale = tirx.const(1.0 / math.sqrt(case["D"]), "float32")
    shape = (*scores.shape[:2], count, ROWS)
    wide = -(-case["D"] // columns) * columns

    def score(h: Any, b: Any, t: Any, i: Any, j: Any) -> Any:
        key = t * keys + j
        found = scores[h, b, i, key]
        return found if n % keys == 0 else tirx.if_then_else(key < n, found, LOWEST)

    j0, j1, j2 = (te.reduce_axis((0, keys), name=name) for name in ("j0", "j1", "j2"))
    top = te.compute(shape, lambda h, b, t, i: te.max(score(h, b, t, i, j0), axis=j0), name="top")
    e = te.compute(
        (*shape, keys),
        lambda h, b, t, i, j: rows.polynomial_exp((score(h, b, t, i, j) - top[h, b, t, i]) * scale),
        name="e",
    )
    total = te.compute(shape, lambda h, b, t, i: te.sum(e[h, b, t, i, j1], axis=j1), name="total")

    def element(h: Any, j: Any, c: Any) -> Any:
        return value(h, j if n % keys == 0 else te.min(j, n - 1), c)

    sums = te.compute(
        (*shape, wide),
        lambda h, b, t, i, c: te.sum(e[h, b, t, i, j2] * element(h, t * keys + j2, c), axis=j2),
        name="sums",
    )

    def scaled(side: Any, common: Any, which: int) -> Any:
        return side[which] * rows.polynomial_exp((side[0] - common) * scale)

    def join(left: Any, right: Any) -> tuple[Any, Any, Any]:
        common = te.max(left[0], right[0])
        total, sums = (scaled(left, common, n) + scaled(right, common, n) for n in (1, 2))
        return common, total, sums

    def nothing(*dtypes: str) -> tuple[Any, Any, Any]:
        return tuple(te.const(x, "float32") for x in (LOWEST, 0.0, 0.0))

    joined = te.comm_reducer(join, nothing, name="joined")
    t = te.reduce_axis((0, count), name="t")
    _, all_total, all_sums = te.compute(
        (*scores.shape[:3], wide),
        lambda h, b, i, c: joined(
            (top[h, b, t, i], total[h, b, t, i], sums[h, b, t, i, c]), axis=t
        ),
        name="joined",
    )
    out = te.compute(
        q.shape,
        lambda h, i, c: all_sums[h, i // ROWS, i % ROWS, c] / all_total[h, i // ROWS, i % ROWS, c],
        name="out",
    )
    return [q, k, v, out]


@ladder.rung(kind="rewrite", expected=(0.55, 0.75), define=define_online)
def online(sch: Schedule, case: Case) -> None:
    """Take keys in tiles of 256 and join each tile's softmax to the softmax of earlier tiles.

    A task keeps only 4 x 256 scores, whatever N is: all of attention is one kernel, and the matrix
    of scores is never stored. The price is one more exponential per tile for each element of the
    result. On a CPU this pays once a band's scores outgrow the second-level cache, at more than
    60,000 keys.

    Prediction: the maximum and the sum of a tile are chains again, 7 cycles for each of a million
    scores: 1.0 ms on two threads. Joining takes 256 exponentials for each query, half as many as
    its softmax: 0.2 ms. Both are added to 2.0 ms.

    Picture: The pattern of scores, maxima, exponentials and sums repeats for each tile of keys, in
    the same memory. After each tile a stroke in `joined` joins the tile's maximum (`v0`), total
    (`v1`) and sums (`v2`) to the values so far.
    """
    task = _fuse(sch, ("scores", "top", "e", "total", "sums"))
    _on_threads(sch, task)
    block = sch.get_sblock("joined")
    *_, row, column, tile = sch.get_loops(block)
    sch.reorder(tile, row, column)
    sch.vectorize(sch.split(column, [None, case.processor.lanes])[1])
    for name in ("sums", "total", "e", "top", "scores"):
        sch.compute_at(sch.get_sblock(name), tile, preserve_unit_loops=True)
    for name in ("scores", "sums"):
        _register_tile(sch, case, name)
    sch.decompose_reduction(block, tile)
