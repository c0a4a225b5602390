"""Winograd's minimal filtering as tensor expressions, for `winograd`.

For a 3x3 window and m x m results, with a = m + 2 (Lavin and Gray, "Fast algorithms for
convolutional neural networks", CVPR 2016, section 4):

    Y = A^T [(G g G^T) * (B^T d B)] A

The product in the middle is summed over the input channels, which makes it a * a matmuls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from needle_tvm._tvm.names import te, tirx
from needle_tvm.kernels.conv.cpu_winograd import INPUT, OUTPUT
from needle_tvm.tir.extents import Size, expr_of, exprs_of, extent_of, is_static, tiles_in

WINDOW = 3

# Evaluation points besides infinity. They determine the error (Barabasz et al., "Error analysis and
# improving the accuracy of Winograd convolution for deep neural networks", ACM TOMS 2020). With 1/2
# and -2, the mean error was 0.56 times, and the largest 0.18 times, the error with 2 and -2
# (docs/results/2026-11-22-winograd-cpu.md).
_POINTS = {2: (0, 1, -1), 4: (0, 1, -1, Fraction(1, 2), -2)}

Matrix = tuple[tuple[Fraction, ...], ...]


class Matrices(NamedTuple):
    """The matrices A^T (m, a), G (a, 3) and B^T (a, a)."""

    output: Matrix
    weight: Matrix
    input: Matrix


@functools.cache
def matrices(m: int) -> Matrices:
    """Return the exact transforms for m x m results: the Toom-Cook algorithm, transposed."""
    points = [Fraction(point) for point in _POINTS[m]]
    output = [[point**row for point in points] + [Fraction(row == m - 1)] for row in range(m)]
    weight, inputs = [], []
    for at, point in enumerate(points):
        others = points[:at] + points[at + 1 :]
        scale = functools.reduce(lambda a, b: a * b, (point - other for other in others))
        weight.append([point**power / scale for power in range(WINDOW)])
        inputs.append([*_with_roots(others), Fraction(0)])
    weight.append([Fraction(0)] * (WINDOW - 1) + [Fraction(1)])
    inputs.append(_with_roots(points))
    return Matrices(*(tuple(map(tuple, each)) for each in (output, weight, inputs)))


def _with_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """Return the coefficients, lowest power first, of the product of (x - root)."""
    product = [Fraction(1)]
    for root in roots:
        raised, lowered = [Fraction(0), *product], [*product, Fraction(0)]
        product = [high - root * low for high, low in zip(raised, lowered, strict=True)]
    return product


class Tiling(NamedTuple):
    """A tiling of images by tiles of m x m results; pairs are (rows, columns)."""

    m: int
    batch: Size
    results: tuple[Size, Size]
    before: tuple[int, int]  # zeros above and left of the image

    @property
    def sizes(self) -> list[Any]:
        """Images, rows and columns of the results, as TVM's expressions."""
        return exprs_of((self.batch, *self.results))

    def of(self, sizes: Sequence[Any]) -> Tiling:
        """Return the tiling with `sizes`, variables of another function, in place of its own."""
        batch, rows, columns = map(extent_of, sizes)
        return self._replace(batch=batch, results=(rows, columns))

    @property
    def counts(self) -> tuple[Size, Size]:
        rows, columns = (tiles_in(extent, self.m)[0] for extent in self.results)
        return rows, columns

    @property
    def tiles(self) -> Size:
        rows, columns = self.counts
        return self.batch * rows * columns


def transformed_input(x: te.Tensor, tiling: Tiling) -> te.Tensor:
    """Return B^T d B: (B, H, W, C) -> (a * a, tiles, C)."""
    transform = matrices(tiling.m).input
    (top, left), a = tiling.before, len(transform)
    rows, columns, tiles = exprs_of((*tiling.counts, tiling.tiles))
    _, height, width, channels = exprs_of(map(extent_of, x.shape))

    def pixel(t: Any, i: Any, j: Any, c: Any) -> Any:
        y = t // columns % rows * tiling.m + i - top
        z = t % columns * tiling.m + j - left
        inside = tirx.all(y >= 0, y < height, z >= 0, z < width)
        return tirx.if_then_else(inside, x(t // (rows * columns), y, z, c), tirx.const(0, x.dtype))

    pixels = te.compute(_alike((tiles, a, a, channels)), pixel, name="pixels")
    half = te.compute(
        pixels.shape,
        lambda t, i, j, c: _combined(transform, i, lambda k: pixels(t, k, j, c), x.dtype),
        name="half",
        attrs={INPUT: tiling.m},
    )
    return te.compute(
        _alike((a * a, tiles, channels)),
        lambda ij, t, c: _combined(transform, ij % a, lambda k: half(t, ij // a, k, c), x.dtype),
        name="winograd_input",
    )


def transformed_weight(w: te.Tensor, m: int) -> te.Tensor:
    """Return G g G^T: (3, 3, C, N) -> (a * a, C, N)."""
    transform = matrices(m).weight
    a = len(transform)
    *_, inputs, n = (int(extent) for extent in w.shape)
    half = te.compute(
        (a, WINDOW, inputs, n),
        lambda i, j, c, o: _combined(transform, i, lambda k: w(k, j, c, o), w.dtype),
        name="half",
    )
    return te.compute(
        (a * a, inputs, n),
        lambda ij, c, o: _combined(transform, ij % a, lambda k: half(ij // a, k, c, o), w.dtype),
        name="winograd_weight",
    )


def transformed_output(products: te.Tensor, tiling: Tiling) -> te.Tensor:
    """Return A^T M A: (a * a, tiles, N) -> (B, rows, columns, N)."""
    transform = matrices(tiling.m).output
    m, a, n, dtype = tiling.m, len(transform[0]), int(products.shape[-1]), products.dtype
    rows, columns, tiles = exprs_of((*tiling.counts, tiling.tiles))
    half = te.compute(
        _alike((tiles, m, a, n)),
        lambda t, i, j, o: _combined(transform, i, lambda k: products(k * a + j, t, o), dtype),
        name="half",
        attrs={OUTPUT: m},
    )

    def result(b: Any, y: Any, x: Any, o: Any) -> Any:
        t = (b * rows + y // m) * columns + x // m
        return _combined(transform, x % m, lambda k: half(t, y % m, k, o), dtype)

    return te.compute(_alike((*tiling.sizes, n)), result, name="winograd_output")


def _alike(shape: Sequence[Any]) -> list[Any]:
    """Return a shape whose extents have one type, so that indices do too: int64 if any extent is
    symbolic."""
    return list(shape) if is_static(shape) else [expr_of(extent) for extent in shape]


def _combined(matrix: Matrix, row: Any, value: Callable[[int], Any], dtype: str) -> Any:
    """Return the product of a row of `matrix` and the vector of `value`. When loops are unrolled,
    the row is constant."""
    *others, last = (_sum(coefficients, value, dtype) for coefficients in matrix)
    for number, each in reversed(list(enumerate(others))):
        last = tirx.if_then_else(row == number, each, last)
    return last


def _sum(coefficients: Sequence[Fraction], value: Callable[[int], Any], dtype: str) -> Any:
    total = None
    # Positive coefficients come first, so that no sum begins with a negation.
    for index in sorted(range(len(coefficients)), key=lambda index: coefficients[index] <= 0):
        size = abs(coefficients[index])
        if not size:
            continue
        term = value(index)
        term = term if size == 1 else term * tirx.const(float(size), dtype)
        if total is None:
            total = term if coefficients[index] > 0 else -term
        else:
            total = total + term if coefficients[index] > 0 else total - term
    return total
