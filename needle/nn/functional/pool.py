"""Pooling over (N, channels, ...), computed as two-dimensional pooling with channels last."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor, make_const
from ...backend_ndarray import full
from ...backend_ndarray.arguments import count, finite
from ...backend_ndarray.dtypes import is_floating
from ...errors import ShapeError
from ...ops._windows import lowest
from ...sizes.extents import same
from .conv import as_row, channels_first, channels_last, from_row, numbers

# Kernel, stride, padding and, for max pooling, dilation, each with one number per axis.
Windows = list[tuple[int, ...]]
AXES = ("L", "H, W", "D, H, W")


def max_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the largest element of each window: (N, C, L) -> (N, C, length). The arguments
    are as in `max_pool2d`, with one number each."""
    windows = _windows("max_pool1d", 1, kernel_size, stride, padding, dilation)
    return _max_pool("max_pool1d", x, windows, ceil_mode, return_indices)


def max_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the largest element of each window: (N, C, H, W) -> (N, C, rows, columns).

    kernel_size, stride (None: kernel_size), padding and dilation are ints or pairs (rows, columns).
    With `ceil_mode`, partly filled windows at the end count too. `return_indices` adds a second
    result: the int64 positions of the largest elements in each flattened (H, W).

    >>> F.max_pool2d(ndl.reshape(ndl.arange(4.0), (1, 1, 2, 2)), 2).item()
    3.0
    """
    windows = _windows("max_pool2d", 2, kernel_size, stride, padding, dilation)
    return _max_pool("max_pool2d", x, windows, ceil_mode, return_indices)


def max_pool3d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the largest element of each window: (N, C, D, H, W) -> (N, C, planes, rows, columns).
    The arguments are as in `max_pool2d`, as ints or sequences of three ints."""
    windows = _windows("max_pool3d", 3, kernel_size, stride, padding, dilation)
    return _max_pool("max_pool3d", x, windows, ceil_mode, return_indices)


def avg_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Return the mean of each window: (N, C, L) -> (N, C, length). The arguments are as in
    `avg_pool2d`, with one number each."""
    windows = _windows("avg_pool1d", 1, kernel_size, stride, padding)
    return _avg_pool("avg_pool1d", x, windows, ceil_mode, count_include_pad, None)


def avg_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Return the mean of each window: (N, C, H, W) -> (N, C, rows, columns).

    kernel_size, stride, padding and ceil_mode are as in `max_pool2d`. Padding counts as zeros or,
    if `count_include_pad` is False, does not count. `divisor_override` replaces the number of
    elements by which a sum is divided.
    """
    windows = _windows("avg_pool2d", 2, kernel_size, stride, padding)
    return _avg_pool("avg_pool2d", x, windows, ceil_mode, count_include_pad, divisor_override)


def avg_pool3d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Return the mean of each window: (N, C, D, H, W) -> (N, C, planes, rows, columns). The
    arguments are as in `avg_pool2d`, as ints or sequences of three ints."""
    windows = _windows("avg_pool3d", 3, kernel_size, stride, padding)
    return _avg_pool("avg_pool3d", x, windows, ceil_mode, count_include_pad, divisor_override)


def _max_pool(owner: str, x: Tensor, windows: Windows, ceil_mode: bool, places: bool) -> Any:
    _check_rank(owner, x, len(windows[0]))
    size = x.shape[2:]
    if ceil_mode:
        x = _filled_up(x, windows, lowest(x.dtype))
    return _with_places(x, size, windows) if places else _pooled(x, windows, ops.max_pool)


def _avg_pool(
    owner: str, x: Tensor, windows: Windows, ceil_mode: bool, with_padding: bool, divisor: Any
) -> Tensor:
    _check_rank(owner, x, len(windows[0]))
    if divisor is not None:
        count(owner, "divisor_override", divisor, 1)
    kernel, stride, padding = windows
    size = x.shape[2:]
    if ceil_mode:
        x = _filled_up(x, windows, 0)
    out = _pooled(x, windows, ops.avg_pool)
    if divisor is not None:
        return out * (prod(kernel) / divisor)
    if (with_padding or not any(padding)) and same(x.shape[2:], size):
        return out
    # The op divides by the size of the kernel, so also divide by the fraction of the kernel that
    # counts.
    one = make_const(full((1,) * x.ndim, 1, out.dtype, out.device))
    around = padding if with_padding else (0,) * len(padding)
    counted = ops.broadcast_to(one, (1, 1, *(n + 2 * p for n, p in zip(size, around, strict=True))))
    after = [(0, m - n) for m, n in zip(x.shape[2:], size, strict=True)]
    counted = ops.pad(counted, ((0, 0), (0, 0), *after))
    rest = tuple(p - q for p, q in zip(padding, around, strict=True))
    return out / _pooled(counted, [kernel, stride, rest], ops.avg_pool)


def _check_rank(owner: str, x: Tensor, axes: int) -> None:
    if x.ndim != axes + 2:
        raise ShapeError(f"{owner}: x has shape {x.shape}, not (N, C, {AXES[axes - 1]})")


def _filled_up(x: Tensor, windows: Windows, value: float) -> Tensor:
    """Return x with `value` appended along each axis, so that every window that begins within x, or
    in the padding before it, is full."""
    kernel, stride, padding, *dilation = windows
    after = [(0, 0), (0, 0)]
    for n, k, s, p, d in zip(
        x.shape[2:], kernel, stride, padding, *(dilation or [(1,) * len(kernel)]), strict=True
    ):
        reach = d * (k - 1) + 1
        last = -(-(n + 2 * p - reach) // s)
        if s + p > reach and last * s >= n + p:  # otherwise no window begins that late
            after.append((0, 0))
        else:
            after.append((0, last * s + reach - (n + 2 * p)))
    return x if all(same(high, 0) for _, high in after) else ops.pad(x, after, value)


def _pooled(x: Tensor, windows: Windows, pool: Callable[..., Tensor]) -> Tensor:
    """Apply `pool`, an op over (N, H, W, C), to x (N, C, ...)."""
    axes = len(windows[0])
    if axes == 3:
        return _pool3d(x, windows, pool)
    if axes == 2:
        return channels_first(pool(channels_last(x), *windows))
    neutral = ((1,), (1,), (0,), (1,))  # an image of one row
    image = [one + each for one, each in zip(neutral, windows, strict=False)]
    return from_row(_pooled(as_row(x), image, pool))


def _with_places(x: Tensor, size: Sequence[int], windows: Windows) -> tuple[Tensor, Tensor]:
    """Return the largest elements of the windows of x and their positions in the flattened `size`,
    the extents of x before `_filled_up`."""
    kernel, stride, padding, dilation = windows
    counts = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[2:], *windows, strict=True)
    ]

    def taps(padded: Tensor) -> Tensor:
        """Return the elements of all windows at each position in a window, stacked by position."""
        found = []
        for offset in itertools.product(*map(range, kernel)):
            key: tuple[Any, ...] = (Ellipsis,)
            for at, s, d, n in zip(offset, stride, dilation, counts, strict=True):
                key += (slice(at * d, at * d + s * (n - 1) + 1, s),)
            found.append(padded[key])
        return ops.stack(found, 0)

    around = [(p, p) for p in padding]
    seen = taps(ops.pad(x, ((0, 0), (0, 0), *around), lowest(x.dtype)))
    chosen = first_largest(seen, 0)
    # If no element of a window exceeds the padding, choose the window's first element within x.
    one = make_const(full((1,) * x.ndim, 1, "int32", x.device))
    beside = [(p, p + m - n) for p, m, n in zip(padding, x.shape[2:], size, strict=True)]
    within = taps(ops.pad(ops.broadcast_to(one, (1, 1, *size)), ((0, 0), (0, 0), *beside)))
    within = ops.broadcast_to(within, seen.shape)
    is_within = ops.take_along_axis(within, ops.unsqueeze(chosen, 0), 0)[0] == 1
    chosen = ops.where(is_within, chosen, ops.argmax(within, 0))
    place: Any = 0
    for axis, n in enumerate(size):
        at = chosen // prod(kernel[axis + 1 :]) % kernel[axis] * dilation[axis] - padding[axis]
        begin = ops.arange(counts[axis], device=x.device) * stride[axis]
        place = place * n + at + ops.reshape(begin, (counts[axis], *(1,) * (len(size) - axis - 1)))
    return ops.take_along_axis(seen, ops.unsqueeze(chosen, 0), 0)[0], place


def first_largest(x: Tensor, axis: int) -> Tensor:
    """Return the index of the largest element along an axis. As in PyTorch's pools, it is the first
    of several equal elements but the last of several NaNs."""
    chosen = ops.argmax(x, axis)
    if not is_floating(x.dtype):
        return chosen
    isnt = ops.flip(ops.isnan(x).astype("int8"), axis)
    behind = ops.argmax(isnt, axis)
    last = ops.add_scalar(ops.negate(behind), x.shape[axis] - 1)
    return ops.where(ops.max(isnt, axis) > 0, last, chosen)


def _windows(
    owner: str, axes: int, kernel: Any, stride: Any, padding: Any, *dilation: Any
) -> Windows:
    """Return kernel, stride, padding and, if given, dilation, each as `axes` numbers."""
    given = {
        "kernel_size": kernel,
        "stride": kernel if stride is None else stride,
        "padding": padding,
        **({"dilation": dilation[0]} if dilation else {}),
    }
    return [numbers(owner, what, value, axes) for what, value in given.items()]


def _pool3d(x: Tensor, windows: Windows, pool: Callable[..., Tensor]) -> Tensor:
    """Pool each plane over rows and columns, then pool over the planes."""
    batch, channels, depth, *image = x.shape
    x = ops.permute(x, (0, 2, 3, 4, 1))
    x = ops.reshape(x, (batch * depth, *image, channels))
    y = pool(x, *[each[1:] for each in windows])
    rows, columns = y.shape[1:3]
    y = ops.reshape(y, (batch, depth, 1, rows * columns * channels))
    neutral = ((1,), (1,), (0,), (1,))  # a window of one element along the merged axis
    y = pool(y, *[each[:1] + one for each, one in zip(windows, neutral, strict=False)])
    y = ops.reshape(y, (batch, y.shape[1], rows, columns, channels))
    return ops.permute(y, (0, 4, 1, 2, 3))


def _sizes(owner: str, x: Tensor, output_size: Any, axes: int) -> list[int]:
    """Return the extents of the output; None in `output_size` keeps the input's extent. Raises
    ShapeError unless x has `axes` axes after (N, C)."""
    _check_rank(owner, x, axes)
    given = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * axes
    if len(given) != axes:
        raise ValueError(f"{owner}: output_size {output_size!r} must be an int or {axes} ints")
    sizes = [n if size is None else size for n, size in zip(x.shape[2:], given, strict=True)]
    for size in sizes:
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{owner}: output_size {output_size!r}: {size!r} is not an int > 0")
    return sizes


def _parts(extent: int, size: int) -> list[tuple[int, int]]:
    """Return (begin, end) of the `size` windows that divide `extent`; they may overlap by one."""
    return [(i * extent // size, -(-(i + 1) * extent // size)) for i in range(size)]


def adaptive_avg_pool1d(x: Tensor, output_size: Any) -> Tensor:
    """Return the means of `output_size` windows that divide the last axis: (N, C, L) -> (N, C,
    output_size). Window i extends from floor(i L / output_size) to ceil((i + 1) L /
    output_size)."""
    (size,) = _sizes("adaptive_avg_pool1d", x, output_size, 1)
    return averaged(x, 2, size)


def adaptive_avg_pool2d(x: Tensor, output_size: Any) -> Tensor:
    """Return the means of windows that divide rows and columns into `output_size` parts (an int or
    a pair; None keeps the extent): (N, C, H, W) -> (N, C, *output_size)."""
    rows, columns = _sizes("adaptive_avg_pool2d", x, output_size, 2)
    if x.shape[2] % rows == 0 and x.shape[3] % columns == 0:
        return avg_pool2d(x, (x.shape[2] // rows, x.shape[3] // columns))
    return averaged(averaged(x, 2, rows), 3, columns)


def averaged(x: Tensor, axis: int, size: int) -> Tensor:
    """Return the means of `size` windows along an axis, computed as a matrix product."""
    extent = x.shape[axis]
    matrix = np.zeros((extent, size))
    for i, (begin, end) in enumerate(_parts(extent, size)):
        matrix[begin:end, i] = 1 / (end - begin)
    weights = make_const(matrix.astype(np.dtype(x.dtype)), x.device)
    if axis == x.ndim - 1:
        return ops.matmul(x, weights)
    return ops.swapaxes(ops.matmul(ops.swapaxes(x, axis, -1), weights), axis, -1)


def adaptive_max_pool1d(x: Tensor, output_size: Any) -> Tensor:
    """Return the largest elements of `output_size` windows that divide the last axis: (N, C, L) ->
    (N, C, output_size)."""
    return _adaptive_max("adaptive_max_pool1d", x, output_size, 1)


def adaptive_max_pool2d(x: Tensor, output_size: Any) -> Tensor:
    """Return the largest elements of windows that divide rows and columns into `output_size` parts
    (an int or a pair; None keeps the extent): (N, C, H, W) -> (N, C, *output_size)."""
    return _adaptive_max("adaptive_max_pool2d", x, output_size, 2)


def adaptive_max_pool3d(x: Tensor, output_size: Any) -> Tensor:
    """Return the largest elements of windows that divide planes, rows and columns into
    `output_size` parts (an int or three ints; None keeps the extent): (N, C, D, H, W) -> (N, C,
    *output_size)."""
    return _adaptive_max("adaptive_max_pool3d", x, output_size, 3)


def _adaptive_max(owner: str, x: Tensor, output_size: Any, axes: int) -> Tensor:
    sizes = _sizes(owner, x, output_size, axes)
    pool = (max_pool1d, max_pool2d, max_pool3d)[axes - 1]
    extents = x.shape[2:]
    if all(n % size == 0 for n, size in zip(extents, sizes, strict=True)):
        return pool(x, [n // size for n, size in zip(extents, sizes, strict=True)])
    # Pool columns first, so that the gradient goes to the first of equal elements in row-major
    # order.
    for i in reversed(range(axes)):
        before, behind, parts = [1] * i, [1] * (axes - i - 1), []
        for begin, end in _parts(extents[i], sizes[i]):
            key = (*(slice(None),) * (i + 2), slice(begin, end))
            parts.append(pool(x[key], [*before, end - begin, *behind]))
        x = ops.concat(parts, i + 2)
    return x


def lp_pool1d(
    x: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Tensor:
    """Return sum(x ** norm_type) ** (1 / norm_type) of each window: (N, C, L) -> (N, C, length). If
    the sum is 0 or below, the result and its gradient are 0. kernel_size, stride and ceil_mode are
    as in `max_pool1d`."""
    return _lp_pool("lp_pool1d", x, norm_type, [kernel_size, stride], 1, ceil_mode)


def lp_pool2d(
    x: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Tensor:
    """Apply `lp_pool1d`, with its norm_type, kernel_size, stride and ceil_mode, for two axes:
    (N, C, H, W) -> (N, C, rows, columns)."""
    return _lp_pool("lp_pool2d", x, norm_type, [kernel_size, stride], 2, ceil_mode)


def lp_pool3d(
    x: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Tensor:
    """Apply `lp_pool1d`, with its norm_type, kernel_size, stride and ceil_mode, for three axes:
    (N, C, D, H, W) -> (N, C, planes, rows, columns)."""
    return _lp_pool("lp_pool3d", x, norm_type, [kernel_size, stride], 3, ceil_mode)


def _lp_pool(
    owner: str, x: Tensor, norm_type: float, window: list[Any], axes: int, ceil_mode: bool
) -> Tensor:
    if finite(owner, "norm_type", norm_type) == 0:
        raise ValueError(f"{owner}: norm_type is 0, but sums are raised to 1 / norm_type")
    windows = _windows(owner, axes, *window, 0)
    means = _avg_pool(owner, x ** float(norm_type), windows, ceil_mode, True, None)
    totals = means * prod(windows[0])
    is_zero = totals <= 0
    return ops.where(is_zero, 0, ops.where(is_zero, 1, totals) ** (1 / norm_type))


def adaptive_avg_pool3d(x: Tensor, output_size: Any) -> Tensor:
    """Return the means of windows that divide planes, rows and columns into `output_size` parts (an
    int or three ints; None keeps the extent): (N, C, D, H, W) -> (N, C, *output_size)."""
    for axis, size in enumerate(_sizes("adaptive_avg_pool3d", x, output_size, 3), start=2):
        x = averaged(x, axis, size)
    return x
