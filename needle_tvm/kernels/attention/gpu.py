"""softmax(q k^T * scale + mask) v on a GPU as one kernel that keeps the scores on the chip.

A block of threads handles some queries of one head and iterates over tiles of keys. Its softmax
state after each tile is the largest score so far, the sum of the exponentials, and the sum of the
values weighted by the exponentials, both relative to that score; a larger score rescales the sums
(M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018; T. Dao et al.,
"FlashAttention", 2022, algorithm 1). So shared memory holds only one tile of scores, however many
keys there are. Keys, values and queries are read in place in any layout.

    for queries of a head (blockIdx.x): for row group (threadIdx.y): for lane (threadIdx.x):
        shared q = the queries
        for tile of keys:
            shared k, v = the tile's keys and values
            scores[query, key] = q k^T * scale + mask       each thread a few rows and columns
            top' = max(top, the row's largest score)        by shuffles among a row's lanes
            shared p = exp(scores - top')
            total, sums = both * exp(top - top') + the sums of p, and of p v
            top = top'
        out = sums / total

Sixteen lanes share a row, so that their exchanges stay within a warp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from needle_runtime.target.gpu import SHARED_BYTES
from needle_tvm._tvm.names import PrimFunc, statements, te, tirx
from needle_tvm.kernels.attention.cpu import AttentionShape, Element
from needle_tvm.kernels.scheduled import mark_scheduled
from needle_tvm.tir import nests

_LANES = 16  # lanes per row
_GROUPS = 8  # groups of rows; with 16 lanes each, 128 threads
_VECTOR = 4  # elements that a thread loads at once from shared memory
_MOST_SUMS = 96  # sums that a thread keeps in registers
_ENOUGH = 128  # blocks: about as many as a large GPU has multiprocessors
_WHOLE_WARP = 0xFFFFFFFF

# (queries, keys) of a tile, best first: each key read from memory serves all queries of the tile.
_TILES = ((64, 32), (32, 32), (32, 16), (16, 16))

# q(b, h, query, feature), k(b, h, key, feature), v(b, h, key, feature), and mask(b, h, query, key)
# or None. `Elements` makes these from the buffers of a kernel's inputs.
Factors = tuple[Element, Element, Element, Element | None]
Elements = Callable[[Sequence[Any]], Factors]


@dataclass(frozen=True)
class Tile:
    """The queries and keys of a tile; each thread has some rows and columns of it.

    Rows in shared memory are padded by one vector. Then the vectors that eight lanes read from
    eight rows lie in different banks.
    """

    shape: AttentionShape
    queries: int
    keys: int

    @property
    def features(self) -> int:
        """Features of a query or key, padded with zeros to whole lanes."""
        return -(-self.shape.features // _LANES) * _LANES

    @property
    def rows(self) -> int:
        """Queries per thread."""
        return self.queries // _GROUPS

    @property
    def near(self) -> int:
        """Keys per thread."""
        return self.keys // _LANES

    @property
    def columns(self) -> int:
        """Features of a value that a thread sums."""
        return -(-self.shape.values // _LANES)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per block: queries, keys, values and exponentials."""
        rows = (self.queries + self.keys) * (self.features + _VECTOR)
        values = self.keys * self.columns * _LANES
        return 4 * (rows + values + self.queries * (self.keys + _VECTOR))

    @property
    def sums(self) -> int:
        """Sums that a thread keeps in registers."""
        return self.rows * (self.columns + self.near)


def tile_of(shape: AttentionShape) -> Tile | None:
    """Return the largest tile that fits into shared memory and registers, is not mostly empty and
    leaves enough blocks. If there is none, return the smallest tile that fits, or None."""
    found = None
    for queries, keys in _TILES:
        tile = Tile(shape, queries, keys)
        if tile.shared_bytes > SHARED_BYTES or tile.sums > _MOST_SUMS:
            continue
        found = tile
        blocks = shape.batch * shape.heads * -(-shape.queries // queries)
        if queries < 2 * shape.queries and keys < 2 * shape.keys and blocks >= _ENOUGH:
            break
    return found


def attention(
    shape: AttentionShape, scale: float | None, inputs: Sequence[Any], elements: Elements
) -> PrimFunc:
    """Return a float32 kernel of te placeholders `inputs`. Its result has the shape (batch *
    queries, heads * values).

    `elements` returns q, k, v and the mask from the buffers of `inputs`. Raises ValueError if
    `tile_of(shape)` is None.
    """
    tile = tile_of(shape)
    if tile is None:
        raise ValueError(f"attention of {shape}: no tile of it fits into shared memory")

    rows = (shape.batch * shape.queries, shape.heads * shape.values)
    # Without these, buffers could begin anywhere in memory, and kernels would take offsets.
    buffers = [tirx.decl_buffer(each.shape, str(each.dtype), each.op.name) for each in inputs]

    def write(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        def body(builder: Any) -> None:
            proxies = [builder.buffer_proxy(each) for each in ins]
            out = builder.buffer_proxy(outs[0])
            _Writer(builder, tile, scale, elements(proxies), out).write()

        return statements(body)

    result = te.extern(
        rows,
        list(inputs),
        write,
        name="attention",
        in_buffers=buffers,
        out_buffers=[nests.buffer("out", rows, "float32")],
    )
    function = te.create_prim_func([*inputs, result])
    return mark_scheduled(function, function.without_attr("global_symbol"))


@dataclass(frozen=True)
class _Rows:
    """Rows in a one-dimensional buffer: TVM drops unwritten parts of a two-dimensional buffer."""

    buffer: Any
    width: int

    def __getitem__(self, at: tuple[Any, Any]) -> Any:
        return self.buffer[at[0] * self.width + at[1]]

    def __setitem__(self, at: tuple[Any, Any], value: Any) -> None:
        self.buffer[at[0] * self.width + at[1]] = value


class _Writer:
    """Writes the kernel with TVM's statement builder."""

    def __init__(
        self,
        builder: Any,
        tile: Tile,
        scale: float | None,
        elements: Factors,
        out: Any,
    ) -> None:
        self.s, self.tile, self.scale, self.out = builder, tile, scale, out
        self.shape = tile.shape
        self.q, self.k, self.v, self.mask = elements

    def write(self) -> None:
        s, shape, tile = self.s, self.shape, self.tile
        blocks = -(-shape.queries // tile.queries)
        with s.sblock("attention"):
            self._allocate()
            with (
                s.thread_binding(0, shape.batch * shape.heads * blocks, "blockIdx.x") as block,
                s.thread_binding(0, _GROUPS, "threadIdx.y") as self.group,
                s.thread_binding(0, _LANES, "threadIdx.x") as self.lane,
            ):
                self.head = block // blocks % shape.heads
                self.batch = block // blocks // shape.heads
                self.first = block % blocks * tile.queries
                self._start()
                with s.serial(0, -(-shape.keys // tile.keys)) as number:
                    self._load(number * tile.keys)
                    self._score(number * tile.keys)
                    self._weigh()
                    self._sum()
                self._finish()

    def _allocate(self) -> None:
        tile = self.tile

        def buffer(scope: str, *shape: int) -> Any:
            made = self.s.sblock_alloc_buffer(shape, "float32", scope=scope, layout=None)
            return self.s.buffer_proxy(made)

        def rows(count: int, width: int) -> _Rows:
            return _Rows(buffer("shared", count * width), width)

        self.queries = rows(tile.queries, tile.features + _VECTOR)
        self.keys = rows(tile.keys, tile.features + _VECTOR)
        self.values = rows(tile.keys, tile.columns * _LANES)
        self.weights = rows(tile.queries, tile.keys + _VECTOR)
        self.scores = buffer("local", tile.rows, tile.near)
        self.sums = buffer("local", tile.rows, tile.columns)
        self.top, self.before, self.total = (buffer("local", tile.rows) for _ in range(3))
        self.of_queries = buffer("local", tile.rows, _VECTOR)
        self.of_keys = buffer("local", tile.near, _VECTOR)
        self.of_values = buffer("local", tile.columns)

    def _row(self, i: Any) -> Any:
        """Return the index in the tile of the thread's query i."""
        return self.group * self.tile.rows + i

    def _key(self, n: Any) -> Any:
        """Return the index in the tile of the thread's key n."""
        return n * _LANES + self.lane

    def _column(self, c: Any) -> Any:
        """Return the index of the thread's feature c of a value. If possible, the thread's features
        form whole vectors."""
        if self.tile.columns % _VECTOR:
            return c * _LANES + self.lane
        return c // _VECTOR * (_LANES * _VECTOR) + self.lane * _VECTOR + c % _VECTOR

    def _start(self) -> None:
        s, tile = self.s, self.tile
        with s.unroll(0, tile.rows) as i:
            self.top[i] = _const(-math.inf)
            self.total[i] = _const(0)
            with s.unroll(0, tile.columns) as c:
                self.sums[i, c] = _const(0)
        self._copy(self.queries, self.q, self.first, tile.queries, self.shape.queries, "features")

    def _load(self, first: Any) -> None:
        tile, shape = self.tile, self.shape
        self._copy(self.keys, self.k, first, tile.keys, shape.keys, "features")
        self._copy(self.values, self.v, first, tile.keys, shape.keys, "values")

    def _copy(
        self, target: Any, element: Element, first: Any, rows: int, most: int, of: str
    ) -> None:
        """Copy rows of an operand into shared memory with all threads, padded with zeros."""
        s, features = self.s, getattr(self.shape, of)
        with s.unroll(0, rows // _GROUPS) as i, s.unroll(0, -(-features // _LANES)) as f:
            row, feature = i * _GROUPS + self.group, f * _LANES + self.lane
            value = element(self.batch, self.head, first + row, feature)
            inside = []
            if most % rows:
                inside.append(first + row < most)
            if features % _LANES:
                inside.append(feature < features)
            if inside:
                value = tirx.if_then_else(tirx.all(*inside), value, _const(0))
            target[row, feature] = value

    def _score(self, first: Any) -> None:
        """Compute the thread's scores for the tile of keys that begins with `first`."""
        s, tile = self.s, self.tile
        with s.unroll(0, tile.rows) as i, s.unroll(0, tile.near) as n:
            self.scores[i, n] = _const(0)
        with s.serial(0, tile.features // _VECTOR) as step:
            with s.unroll(0, tile.rows) as i, s.vectorized(0, _VECTOR) as d:
                self.of_queries[i, d] = self.queries[self._row(i), step * _VECTOR + d]
            with s.unroll(0, tile.near) as n, s.vectorized(0, _VECTOR) as d:
                self.of_keys[n, d] = self.keys[self._key(n), step * _VECTOR + d]
            with (
                s.unroll(0, _VECTOR) as d,
                s.unroll(0, tile.rows) as i,
                s.unroll(0, tile.near) as n,
            ):
                more = self.of_queries[i, d] * self.of_keys[n, d]
                self.scores[i, n] = self.scores[i, n] + more
        if self.scale is None and self.mask is None and self.shape.keys % tile.keys == 0:
            return
        with s.unroll(0, tile.rows) as i, s.unroll(0, tile.near) as n:
            self.scores[i, n] = self._score_of(i, n, first + self._key(n))

    def _score_of(self, i: Any, n: Any, key: Any) -> Any:
        score, shape, tile = self.scores[i, n], self.shape, self.tile
        if self.scale is not None:
            score = score * _const(self.scale)
        query = self.first + self._row(i)
        inside = key < shape.keys if shape.keys % tile.keys else None
        if self.mask is not None:
            mask = self.mask(self.batch, self.head, query, key)
            reads = [each for each in (inside, _below(query, shape, tile)) if each is not None]
            if reads:
                mask = tirx.if_then_else(tirx.all(*reads), mask, _const(0))
            score = score + mask
        return score if inside is None else tirx.Select(inside, score, _const(-math.inf))

    def _weigh(self) -> None:
        """Compute the exponentials of the scores, and rescale the state to the new maximum."""
        s, tile = self.s, self.tile
        with s.unroll(0, tile.rows) as i:
            self.before[i] = self.top[i]
            with s.unroll(0, tile.near) as n:
                self.top[i] = tirx.max(self.top[i], self.scores[i, n])
            self._across(self.top, i, tirx.max)
            # As long as all scores of a row are -inf, nothing is subtracted.
            low = self.top[i] == _const(-math.inf)
            largest = tirx.Select(low, _const(0), self.top[i])
            self.before[i] = tirx.exp(self.before[i] - largest)
            self.total[i] = self.total[i] * self.before[i]
            with s.unroll(0, tile.near) as n:
                self.scores[i, n] = tirx.exp(self.scores[i, n] - largest)
                self.total[i] = self.total[i] + self.scores[i, n]
                self.weights[self._row(i), self._key(n)] = self.scores[i, n]
            with s.unroll(0, tile.columns) as c:
                self.sums[i, c] = self.sums[i, c] * self.before[i]

    def _across(self, values: Any, i: Any, combine: Callable[[Any, Any], Any]) -> None:
        """Combine `values[i]` over all lanes of a row, and leave the result in each of them."""
        lanes = _LANES
        while lanes > 1:
            lanes //= 2
            other = self.s.tvm_warp_shuffle_xor(
                tirx.const(_WHOLE_WARP, "uint32"), values[i], lanes, 32, 32
            )
            values[i] = combine(values[i], other)

    def _sum(self) -> None:
        """Add the tile's values, weighted by the exponentials."""
        s, tile = self.s, self.tile
        with s.serial(0, tile.keys // _VECTOR) as step:
            with s.unroll(0, tile.rows) as i, s.vectorized(0, _VECTOR) as j:
                self.of_queries[i, j] = self.weights[self._row(i), step * _VECTOR + j]
            with s.unroll(0, _VECTOR) as j:
                key = step * _VECTOR + j
                if tile.columns % _VECTOR:
                    with s.unroll(0, tile.columns) as c:
                        self.of_values[c] = self.values[key, self._column(c)]
                else:
                    with s.unroll(0, tile.columns // _VECTOR) as c, s.vectorized(0, _VECTOR) as d:
                        place = c * _VECTOR + d
                        first = c * (_LANES * _VECTOR) + self.lane * _VECTOR
                        self.of_values[place] = self.values[key, first + d]
                with s.unroll(0, tile.rows) as i, s.unroll(0, tile.columns) as c:
                    more = self.of_queries[i, j] * self.of_values[c]
                    self.sums[i, c] = self.sums[i, c] + more

    def _finish(self) -> None:
        s, shape, tile = self.s, self.shape, self.tile
        with s.unroll(0, tile.rows) as i:
            self._across(self.total, i, lambda one, other: one + other)
            query = self.first + self._row(i)
            with s.unroll(0, tile.columns) as c:
                column = self._column(c)
                inside = [_below(query, shape, tile)]
                if shape.values % (tile.columns * _LANES):
                    inside.append(column < shape.values)
                inside = [each for each in inside if each is not None]
                result = self.sums[i, c] / self.total[i]
                at = (self.batch * shape.queries + query, self.head * shape.values + column)
                if inside:
                    with s.If(tirx.all(*inside)), s.Then():
                        self.out[at] = result
                else:
                    self.out[at] = result


def _below(query: Any, shape: AttentionShape, tile: Tile) -> Any:
    """Return the condition that a query exists; None if it always does."""
    return query < shape.queries if shape.queries % tile.queries else None


def _const(value: float) -> Any:
    return tirx.const(value, "float32")
