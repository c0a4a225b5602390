"""The sizes of a convolution's register tiles, and of the tasks that cores take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from needle_tvm._tvm.names import Target
from needle_tvm.kernels.blocks import L1_BYTES, TILE_VECTORS, item_bytes, most_beside
from needle_tvm.target.info import target_info

# The cost model for tiles, in units of one multiply-add: the number of multiply-adds that must be
# in flight, the cost of a load beside them, and the costs of each accumulator and each tile before
# and after the reduction.
_IN_FLIGHT = 8  # half as many if the processor executes a vector in two halves
_LOAD = 0.1  # for a pixel's input, which a multiply-add of AVX-512 reads from memory
_BROADCAST = 0.4  # for the same load, if it takes its own instruction and register
_WEIGHT = 0.5  # for a vector of weights, which lie further away than the inputs that tiles share
_NEAR = 0.25  # for the same vector if L1 keeps a tile's weights, on a processor without AVX-512
_STORE = 3
_TILE = 20

_HALF = 0.6  # the cost of up to half a vector, on a processor that executes it in two halves

WIDEST = 4  # the most vectors of a tile's channels

LARGE = 64  # assumed rows or columns of an image if they are symbolic

_SHORT = 16  # bytes of the shortest vectors

# A strip's copy should stay in a core's own cache beside weights and results: this is half the
# smallest L2 of processors with vector units in the last ten years.
_CACHE = 128 << 10
_COPY = 4  # cost of copying an element, in multiply-adds, if it stays in that cache
_FAR = 3  # factor on that cost if it does not

# If a core's cache cannot keep the weights from one strip to the next, they are fetched again
# for each strip, at this cost per element, in multiply-adds.
_KEPT = 512 << 10
_FETCH = 8


@dataclass(frozen=True)
class ConvTile:
    """Extents of the tile of accumulators that registers hold."""

    images: int
    rows: int
    columns: int
    channels: int

    @property
    def pixels(self) -> int:
        return self.images * self.rows * self.columns

    def counts(self, batch: int, rows: int, columns: int) -> tuple[int, int, int]:
        """Return the numbers of tiles that cover the images, rows and columns of an output."""
        return -(-batch // self.images), -(-rows // self.rows), -(-columns // self.columns)


def conv_tile(
    output: tuple[int, int, int, int],
    terms: int,
    dtype: str,
    target: Target,
    group: int | None = None,
    *,
    step: int = 1,
    overlapping: bool = False,
    widest: int = WIDEST,
) -> ConvTile:
    """Return the register tile for an output (B, rows, columns, N) of sums over `terms` products.

    It is the tile with the least estimated time of all tiles that fit the registers. In this
    estimate, a partly filled last tile costs as much as a full one, and a tile with few
    accumulators waits for the latency of its multiply-adds. If `group`, the number of output
    channels of a group, is given, the tile's channels divide it. `step` is the number of bytes from
    one input pixel to the next: the tile's pixels are read side by side, so a tile has no more
    pixels than the L1 cache keeps. With `overlapping`, neighbouring pixels read the same inputs
    within one unrolled step. LLVM keeps these inputs in registers too, so half of the registers are
    left to LLVM. A tile has at most `widest` vectors of channels.
    """
    return _best_tile(output, terms, dtype, target, group, step, overlapping, widest)[1]


def conv_cycles(
    output: tuple[int, int, int, int],
    terms: int,
    dtype: str,
    target: Target,
    group: int | None,
    step: int = 1,
) -> float:
    """Return the estimated time of a convolution in tiles of `conv_tile`, in multiply-adds."""
    return _best_tile(output, terms, dtype, target, group, step, False, WIDEST)[0]


def _best_tile(
    output: tuple[int, int, int, int],
    terms: int,
    dtype: str,
    target: Target,
    group: int | None,
    step: int,
    overlapping: bool,
    widest: int,
) -> tuple[float, ConvTile]:
    batch, rows, columns, n = output
    registers = target_info(target).vectors.number
    lanes = group_lanes(dtype, target)[-1]
    halved = target_info(target).in_halves
    waiting = _IN_FLIGHT / 2 if halved else _IN_FLIGHT
    load = _LOAD if registers >= 32 else _BROADCAST
    column = terms * item_bytes(dtype)  # bytes of one channel's weights
    best, least = None, math.inf
    for channels in _widths(n, group, dtype, target, widest):
        vectors = -(-channels // lanes)
        most = (registers // 2 if overlapping else registers - vectors - 1) // vectors
        most = min(most, most_beside(step))
        each = _HALF if halved and channels <= lanes // 2 else 1
        panels = -(-n // channels)
        near = registers < 32 and column * channels <= L1_BYTES
        weights = (_NEAR if near else _WEIGHT) * vectors
        for images, height, span in _patches(batch, rows, columns, most):
            tile = ConvTile(images, height, span, channels)
            sums = tile.pixels * vectors
            term = max(sums * each, waiting) + load * tile.pixels + weights
            tiles = math.prod(tile.counts(batch, rows, columns)) * panels
            cycles = tiles * (terms * term + _STORE * sums + _TILE)
            if cycles < least:
                best, least = tile, cycles
    assert best is not None  # one pixel of one vector always fits
    return least, best


def _widths(n: int, group: int | None, dtype: str, target: Target, widest: int) -> Iterator[int]:
    """Yield the numbers of channels that a tile may have: whole vectors, or one short vector if all
    channels fit it. For a group, a tile may also be part of a vector, since LLVM handles vectors of
    any length up to a whole register."""
    *short, lanes = group_lanes(dtype, target)
    if group is None:
        yield from (few for few in short if n <= few)
    else:
        yield from (few for few in range(1, lanes) if group % few == 0)
    for vectors in TILE_VECTORS:
        if vectors <= min(widest, -(-n // lanes)) and (group or 0) % (lanes * vectors) == 0:
            yield lanes * vectors


def group_lanes(dtype: str, target: Target) -> tuple[int, ...]:
    """Return the numbers of channels that fill a vector of each length, in ascending order."""
    lanes = target_info(target).lanes(dtype)
    least = _SHORT // item_bytes(dtype)
    return tuple(lanes // part for part in (4, 2, 1) if lanes // part >= least)


def depthwise_tile(
    output: tuple[int, int, int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dtype: str,
    target: Target,
) -> ConvTile:
    """Return the register tile of a depthwise convolution: one vector of channels, and as many
    pixels as leave half of the registers to the weights and inputs."""
    batch, rows, columns, _ = output
    width, registers = target_info(target).vectors
    most = registers // 2

    def cycles(patch: tuple[int, int, int]) -> float:
        images, height, span = patch
        tile = ConvTile(images, height, span, 1)
        sums, loads = (
            tile.pixels * kernel[1],
            images * height * ((span - 1) * stride[1] + kernel[1]),
        )
        row = max(sums, _IN_FLIGHT) + loads / 2
        return math.prod(tile.counts(batch, rows, columns)) * (
            kernel[0] * row + _STORE * tile.pixels + _TILE
        )

    best = min(_patches(batch, rows, columns, most), key=cycles)
    images, height, span = best
    return ConvTile(images, height, span, width // item_bytes(dtype))


def _patches(batch: int, rows: int, columns: int, most: int) -> Iterator[tuple[int, int, int]]:
    """Yield (images, rows, columns) of at most `most` pixels, with several images only if they are
    whole."""
    for height in range(1, min(rows, most) + 1):  # ties go to the first: pixels side by side
        for span in range(1, min(columns, most // height) + 1):
            whole = height == rows and span == columns
            for images in range(1, (min(batch, most // (span * height)) if whole else 1) + 1):
                yield images, height, span


def fetching(weights: float, item: int) -> float:
    """Return the cost, in multiply-adds, of fetching this number of weights of `item` bytes: 0 if
    they stay in a core's cache."""
    return weights * _FETCH if weights * item > _KEPT else 0


@dataclass(frozen=True)
class Copied:
    """The input that tasks copy for themselves. For `rows` rows of output they copy
    `(rows - 1) * step + window` rows of `elements` elements of `item` bytes. With `shared`, tasks
    copy only the channels that they read.
    """

    step: int
    window: int
    elements: int
    item: int
    shared: bool

    def size(self, rows: int, chunks: int) -> float:
        """Return the number of elements that a task copies for `rows` output rows and 1 / `chunks`
        of the panels."""
        whole = ((rows - 1) * self.step + self.window) * self.elements
        return whole / chunks if self.shared else whole


def tasks(
    counts: tuple[int, int, int],
    tile_rows: int,
    work: int,
    weights: tuple[int, int],
    copied: Copied | None,
    cores: int,
    *,
    whole_pixels: bool,
) -> tuple[int, int]:
    """Return (chunks of the panels, strips of the rows): the equal parts that `cores` cores finish
    in the least time.

    `counts` are panels, tiles of images and tiles of rows; `work` is the total number of
    multiply-adds; `weights` is the number of weights and the bytes of each. Small tasks copy more
    of the input that they share with others; large tasks exceed the cache or leave a core idle.
    With `whole_pixels`, panels are divided only if there are too few rows: neighbouring cache lines
    are fetched together, and two cores that write neighbouring lines wait for each other.
    """
    panels, images, rows = counts
    chunks_of = [1] if whole_pixels and images * rows >= cores else _divisors(panels)

    def cost(choice: tuple[int, int]) -> tuple[float, int]:
        chunks, strips = choice
        count = chunks * images * strips
        each = work / count
        if copied is not None:
            elements = copied.size(rows // strips * tile_rows, chunks)
            far = elements * copied.item > _CACHE
            each += elements * _COPY * (_FAR if far else 1)
        number, item = weights
        each += fetching(number / chunks, item)
        return round(-(-count // cores) * each), count

    return min(itertools.product(chunks_of, _divisors(rows)), key=cost)


def _divisors(number: int) -> list[int]:
    return [part for part in range(1, number + 1) if number % part == 0]
