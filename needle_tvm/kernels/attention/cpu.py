"""softmax(q k^T * scale + mask) v as one kernel that never writes the scores to memory.

A task is a block of queries of one head. Its scores are stored transposed, keys by queries, in a
buffer that stays in the core's cache. So it needs no online rescaling, which Dao et al.
("FlashAttention", 2022) need because of a GPU's registers. Queries lie side by side in vectors, so
the maximum, exponential and sum need no operations across lanes. Both matmuls keep their
accumulators in registers. Keys and values are read in place in any layout; only queries are
transposed, one block at a time. The division by the sum of the exponentials comes last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from needle_tvm._tvm.names import Schedule, Target, te, tirx
from needle_tvm.kernels.blocks import (
    extent,
    is_symbolic,
    item_bytes,
    share_out,
    sum_in_registers,
)
from needle_tvm.kernels.loops.whole_vectors import ENDS_AT
from needle_tvm.kernels.rule import annotated
from needle_tvm.target.info import target_info
from needle_tvm.tir.extents import Size, expr_of, is_static, tiles_in

ATTENTION = "needle.attention"  # block annotation: AttentionTile's numbers

_CACHE = 1 << 19  # bytes of scores and exponentials that a task may keep
_ROWS = 8  # rows of a register tile of one or two vectors: they hide a multiply-add's latency
_ONE_VECTOR = 1.05  # time per query with one vector, relative to two vectors (1.04 on Zen 4)

Element = Callable[..., Any]  # the element at (batch, head, position, feature or key)


@dataclass(frozen=True)
class AttentionShape:
    """Extents of an attention. On a CPU, batch, queries and keys may be symbolic."""

    batch: Size
    heads: int
    queries: Size
    keys: Size
    features: int  # of a query and a key
    values: int  # features of a value


@dataclass(frozen=True)
class AttentionTile:
    """Tile sizes: `queries` of a task, `keys` of a register tile of scores, and `rows` (queries) by
    `columns` (features) of a register tile of the result. `rows` divides `queries`."""

    queries: int
    keys: int
    rows: int
    columns: int


def attention_tile(shape: AttentionShape, dtype: str, target: Target) -> AttentionTile:
    lanes = target_info(target).lanes(dtype)

    def computed(queries: int) -> int:
        """Return the number of queries that tasks of `queries` queries compute, including queries
        past the end."""
        return -(-shape.queries // queries) * queries

    queries = 2 * lanes
    while queries > 1 and (
        queries // 2 >= shape.queries
        or (queries > lanes and 2 * shape.keys * queries * item_bytes(dtype) > _CACHE)
        or (queries > lanes and computed(queries // 2) * _ONE_VECTOR < computed(queries))
    ):
        queries //= 2
    widths = [c for c in (2 * lanes, lanes, 8, 4, 2, 1) if c <= shape.values]
    # A narrow vector takes as long as a whole one.
    columns = min(widths, key=lambda c: -(-shape.values // c) * max(c, lanes))
    # With few registers (AVX has sixteen), a tile of scores has half as many keys.
    registers = target_info(target).vectors.number
    most = _ROWS if registers >= 32 else _ROWS // 2
    tiles = -(-shape.keys // most)
    return AttentionTile(queries, -(-shape.keys // tiles), min(most, queries), columns)


def attention(
    shape: AttentionShape,
    tile: AttentionTile,
    dtype: str,
    scale: float | None,
    q: Element,
    k: Element,
    v: Element,
    mask: Element | None,
) -> te.Tensor:
    """Return attention (batch, queries, heads, values) of q (batch, heads, queries, features), k
    (batch, heads, keys, features) and v (batch, heads, keys, values). `mask(b, h, query, key)`, if
    any, is added to the scores."""
    blocks, whole_queries = tiles_in(shape.queries, tile.queries)
    tiles, whole_keys = tiles_in(shape.keys, tile.keys)
    symbolic = not is_static([shape.batch, shape.queries, shape.keys])
    lengths = (shape.batch, shape.queries, shape.keys, blocks, tiles)
    extents = (*lengths, shape.heads, shape.features, shape.values, tile.queries)
    # If extents are symbolic, all become expressions, so that indices have one type without casts.
    batch, queries, keys, blocks, tiles, heads, features, values, side = (
        map(expr_of, extents) if symbolic else extents
    )
    padded = tiles * tile.keys
    lead = (batch, heads, blocks)

    def query(block: Any, i: Any) -> Any:  # repeats the last query past the end
        position = block * tile.queries + i
        if whole_queries:
            return position
        return tirx.min(position, expr_of(queries) - 1)

    def key(j: Any) -> Any:
        return j if whole_keys else tirx.min(j, expr_of(keys) - 1)

    turned = te.compute(
        (*lead, features, side),
        lambda b, h, n, d, i: q(b, h, query(n, i), d),
        name="turned",
    )
    d = te.reduce_axis((0, features), name="d")
    scores = te.compute(
        (*lead, padded, side),
        lambda b, h, n, j, i: te.sum(k(b, h, key(j), d) * turned[b, h, n, d, i], axis=d),
        name="scores",
        attrs={ATTENTION: [tile.queries, tile.keys, tile.rows, tile.columns]},
    )

    def scaled(b: Any, h: Any, n: Any, j: Any, i: Any) -> Any:
        value = scores[b, h, n, j, i]
        if scale is not None:
            value = value * tirx.const(scale, dtype)
        return value if mask is None else value + mask(b, h, query(n, i), key(j))

    weights = te.compute((*lead, padded, side), scaled, name="scaled")
    j0, j1, j2 = (te.reduce_axis((0, keys), name=name) for name in ("j0", "j1", "j2"))
    top = te.compute(
        (*lead, side),
        lambda b, h, n, i: te.max(weights[b, h, n, j0, i], axis=j0),
        name="top",
    )
    e = te.compute(
        (*lead, keys, side),
        lambda b, h, n, j, i: tirx.exp(weights[b, h, n, j, i] - top[b, h, n, i]),
        name="exponentials",
    )
    total = te.compute(
        (*lead, side),
        lambda b, h, n, i: te.sum(e[b, h, n, j1, i], axis=j1),
        name="total",
    )
    sums = te.compute(
        (*lead, side, values),
        lambda b, h, n, i, c: te.sum(e[b, h, n, j2, i] * v(b, h, j2, c), axis=j2),
        name="sums",
    )
    block, row = (lambda t: t // tile.queries), (lambda t: t % tile.queries)
    return te.compute(
        (batch, queries, heads, values),
        lambda b, t, h, c: sums[b, h, block(t), row(t), c] / total[b, h, block(t), row(t)],
        name="attention",
    )


@annotated(ATTENTION)
def schedule_attention(sch: Schedule, scores: Any, target: Target, knobs: None) -> None:
    """Schedule the blocks that `attention` defines, in tasks, register tiles and vectors."""
    queries, keys, rows, columns = (int(n) for n in sch.get(scores).annotations[ATTENTION])
    names = ("turned", "scaled", "top", "exponentials", "total", "sums", "attention")
    turned, scaled, top, e, total, sums, result = map(sch.get_sblock, names)
    b, t, h, c = sch.get_loops(result)
    values = extent(sch, c)
    n, i = sch.split(t, [None, queries])
    i, row = sch.split(i, [None, rows])
    c, column = sch.split(c, [None, columns])
    sch.reorder(b, h, n, i, c, row, column)
    if values % columns:
        sch.annotate(c, ENDS_AT, values)
    if is_symbolic(sch, n):  # with a symbolic divisor, TVM could not tell the blocks apart
        share_out(sch, sch.fuse(b, h), scores, target)
        task = n
    else:
        task = sch.fuse(b, h, n)
        share_out(sch, task, scores, target)
    sch.unroll(row)
    sch.vectorize(column)

    sch.compute_at(sums, c, preserve_unit_loops=True)
    *_, row, column, key = sch.get_loops(sums)
    sum_in_registers(sch, sums, key, [row], column)

    for block in (total, e, top, scaled):
        sch.compute_at(block, task, preserve_unit_loops=True)
    for block in (total, top):
        *_, query, key = sch.get_loops(block)
        sch.reorder(key, query)
        sch.vectorize(query)
        sch.decompose_reduction(block, key)
    sch.vectorize(sch.get_loops(e)[-1])
    *_, key, query = sch.get_loops(scaled)
    key, row = sch.split(key, [None, keys])
    sch.unroll(row)
    sch.vectorize(query)

    sch.compute_at(scores, key, preserve_unit_loops=True)
    *_, row, query, d = sch.get_loops(scores)
    sum_in_registers(sch, scores, d, [row], query)
    sch.compute_at(turned, task, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(turned)[-1])  # otherwise LLVM emits scatters
