"""Windows that slide over the rows and columns of (N, H, W, C) tensors.

`Unfold` lays every window out, `Fold` adds windows up where they overlap; each is the other's
gradient. Convolution and pooling use the same geometry.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator
from math import prod
from operator import index as as_int
from typing import Any, NamedTuple

import numpy as np

from ..apply import apply
from ..backend_ndarray import zeros
from ..backend_ndarray.arguments import LARGEST
from ..backend_ndarray.dtypes import is_floating
from ..dtypes import value_in
from ..errors import ShapeError
from ..op import Op, in_float32, register
from ..samples import Arg, error, sample
from ..spec import Spec
from ..tensor import Tensor
from . import _te

Pair = tuple[int, int]


class Window(NamedTuple):
    """Extents, distance, and gaps of windows, each (rows, columns), and the zeros around the
    input: `padding` on both sides."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def counts(self, name: str, size: Pair) -> Pair:
        """How many windows fit an input of `size`. ShapeError when there is not one."""
        out = []
        for n, k, s, p, d in zip(size, *self, strict=True):
            reach = d * (k - 1) + 1
            if n + 2 * p < reach:
                raise ShapeError(
                    f"{name}: an extent of {n} with padding {p} is smaller than a window of {k} "
                    f"(dilation {d})"
                )
            out.append((n + 2 * p - reach) // s + 1)
        return out[0], out[1]

    def padded(self, size: Pair) -> Pair:
        """`size` with the padding on both sides."""
        return size[0] + 2 * self.padding[0], size[1] + 2 * self.padding[1]

    def keys(self, counts: Pair) -> Iterator[tuple[int, int, tuple[slice, ...]]]:
        """(row, column) in the window and the key of what stands there, in a padded input."""
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                at = (i, j)
                spans = [
                    slice(a * d, a * d + s * (n - 1) + 1, s)
                    for a, d, s, n in zip(at, self.dilation, self.stride, counts, strict=True)
                ]
                yield i, j, (slice(None), *spans)


def as_window(name: str, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Window:
    """Each an int or a pair. TypeError and ValueError otherwise."""
    given = (tuple(v) if isinstance(v, list) else v for v in (kernel, stride, padding, dilation))
    # What cannot be a key of the cache is no int either: its text is refused in its place.
    return _as_window(name, *(v if isinstance(v, Hashable) else repr(v) for v in given))


@functools.lru_cache(maxsize=4096, typed=True)
def _as_window(name: str, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Window:
    return Window(
        _pair(name, "kernel", kernel, 1),
        _pair(name, "stride", stride, 1),
        _pair(name, "padding", padding, 0),
        _pair(name, "dilation", dilation, 1),
    )


def _pair(name: str, what: str, value: Any, least: int) -> Pair:
    try:
        given = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
        rows, columns = (as_int(v) for v in given)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {what} {value!r} must be an int or two") from None
    if min(rows, columns) < least:
        raise ValueError(f"{name}: {what} {value} must be at least {least}")
    if max(rows, columns) > LARGEST:
        raise ValueError(f"{name}: {what} {value} must be below 2**63")
    return rows, columns


# On NDArrays


def pad(x: Any, window: Window, value: float = 0) -> Any:
    """x with `value` around its rows and columns (x itself where there is no padding)."""
    (p, q) = window.padding
    return x.pad(((0, 0), (p, p), (q, q), (0, 0)), value) if p or q else x


def windows(x: Any, window: Window, counts: Pair) -> Any:
    """A padded x (N, H, W, C) as a view (N, *counts, *kernel, C)."""
    n, _, _, c = x.shape
    shape = (n, *counts, *window.kernel, c)
    batch, row, column, channel = x.strides
    (s, t), (d, e) = window.stride, window.dilation
    strides = (batch, row * s, column * t, row * d, column * e, channel)
    if 0 in shape:
        return zeros(shape, x.dtype, x.device)
    return x.as_strided(shape, strides)


def overlap(x: Any, window: Window, size: Pair) -> Any:
    """Windows (N, rows, columns, *kernel, C) added up where they overlap: (N, *size, C)."""
    n, c = x.shape[0], x.shape[5]
    out = zeros((n, *window.padded(size), c), x.dtype, x.device)
    for i, j, key in window.keys(x.shape[1:3]):
        out[key] = out[key] + x[:, :, :, i, j]
    (p, q) = window.padding
    return out[:, p : p + size[0], q : q + size[1]] if p or q else out


# On te.Tensors


def pad_te(k: Any, x: Any, window: Window, value: Any = None) -> Any:
    """`pad`; `value` None is zero."""
    (p, q), (n, h, w, c) = window.padding, x.shape
    if not p and not q:
        return x
    around = _te.full_like(k, x, 0) if value is None else value

    def body(b: Any, i: Any, j: Any, f: Any) -> Any:
        inside = k.tirx.all(i >= p, i < h + p, j >= q, j < w + q)
        return k.tirx.if_then_else(inside, x[b, i - p, j - q, f], around)

    return k.te.compute((n, h + 2 * p, w + 2 * q, c), body, name="pad")


def counts_te(window: Window, h: Any, w: Any) -> list[Any]:
    """`Window.counts` where extents may be symbolic."""
    return [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip((h, w), *window, strict=True)
    ]


def windows_at(k: Any, window: Window, y: Any, x: Any, i: Any, j: Any) -> tuple[Any, Any, Any]:
    """(row, column, whether there is one) of the window that has (i, j) at (y, x) of the input."""
    out, hits = [], []
    for at, tap, s, p, d in zip((y, x), (i, j), *window[1:], strict=True):
        ahead = at + p - tap * d
        out.append(k.tirx.floordiv(ahead, s))
        hits += [ahead >= 0, k.tirx.floormod(ahead, s) == 0]
    return out[0], out[1], hits


def check_rank(name: str, what: str, x: Spec, ndim: int) -> None:
    """ShapeError unless x has `ndim` axes."""
    if x.ndim != ndim:
        raise ShapeError(f"{name}: {what} has shape {x.shape}, not {ndim} axes")


_CASES: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 4, 5, 3), {"kernel": (2, 3)}),
    ((1, 5, 4, 2), {"kernel": (3, 3), "stride": (2, 1), "padding": (1, 1)}),
    ((1, 6, 5, 2), {"kernel": (2, 2), "stride": (3, 2), "dilation": (2, 3)}),
    ((1, 3, 3, 1), {"kernel": (1, 1), "stride": (2, 2)}),
    ((0, 3, 3, 2), {"kernel": (2, 2)}),
)


class _Sliding(Op):
    kernel: Any
    stride: Any
    padding: Any
    dilation: Any

    @property
    def window(self) -> Window:
        return as_window(self.name, self.kernel, self.stride, self.padding, self.dilation)


@register
class Unfold(_Sliding):
    """y (N, rows, columns, kh, kw, C): every window of x (N, H, W, C), padded with `value`."""

    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    value: float = 0

    infer_first = True
    moves = True
    samples = (
        *(sample(Arg(shape), **attributes) for shape, attributes in _CASES),
        *(
            sample((1, 3, 3, 1), kernel=(2, 2), padding=(1, 0), value=value)
            for value in (1, -2.5, True)
        ),
    )
    error_samples = (
        error(ShapeError, r"\(3, 3\), not 4 axes", (3, 3), kernel=(1, 1)),
        error(ShapeError, "smaller than a window of 4", (1, 3, 3, 1), kernel=(4, 4)),
        error(ValueError, "stride", (1, 3, 3, 1), kernel=(1, 1), stride=(0, 1)),
        error(TypeError, "an int or two", (1, 3, 3, 1), kernel=(1, 1, 1)),
        error(TypeError, "not a Python number", (1, 3, 3, 1), kernel=(1, 1), value="0"),
        error(
            ValueError,
            "what int32",
            Arg((1, 1, 1, 1), dtype="int32"),
            kernel=(1, 1),
            value=-(2**33),
        ),
    )

    def infer(self, x: Spec) -> Spec:
        check_rank(self.name, "the input", x, 4)
        value_in(self.name, self.value, x.dtype)
        n, h, w, c = x.shape
        counts = self.window.counts(self.name, (h, w))
        return Spec((n, *counts, *self.window.kernel, c), x.dtype, x.device)

    def reference(self, x: Any) -> Any:
        window = self.window
        counts = window.counts(self.name, x.shape[1:3])
        (p, q) = window.padding
        x = np.pad(
            x,
            ((0, 0), (p, p), (q, q), (0, 0)),
            constant_values=np.asarray(self.value).astype(x.dtype),
        )
        taps = [x[key] for _, _, key in window.keys(counts)]
        return np.stack(taps, 3).reshape(*x.shape[:1], *counts, *window.kernel, x.shape[3])

    def compute(self, x: Any) -> Any:
        window = self.window
        counts = window.counts(self.name, x.shape[1:3])
        value = value_in(self.name, self.value, x.dtype)
        return windows(pad(x, window, value), window, counts).compact()

    def gradient(self, out_grad: Any, node: Any) -> Any:
        _, h, w, _ = node.inputs[0].shape
        return apply(Fold((h, w), *self.window[1:]), (out_grad,))

    def emit_te(self, k: Any, x: Any) -> Any:
        window = self.window
        n, h, w, c = x.shape
        (s, t), (d, e) = window.stride, window.dilation
        value = value_in(self.name, self.value, _te.dtype_of(x))
        x = pad_te(k, x, window, _te.full_like(k, x, value))
        shape = (n, *counts_te(window, h, w), *window.kernel, c)
        return k.te.compute(
            shape, lambda b, y, z, i, j, f: x[b, y * s + i * d, z * t + j * e, f], name="unfold"
        )


@register
class Fold(Op):
    """y (N, *size, C): windows (N, rows, columns, kh, kw, C) added up where they overlap."""

    size: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    infer_first = True
    samples = tuple(
        sample(
            Unfold(**attributes).infer(Spec(shape, "float32")).shape,
            size=shape[1:3],
            **{name: value for name, value in attributes.items() if name != "kernel"},
        )
        for shape, attributes in _CASES
    )
    error_samples = (
        error(ShapeError, r"\(3, 3\), not 6 axes", (3, 3), size=(3, 3)),
        error(ShapeError, r"\(3, 3\) windows.*\(2, 2\)", (1, 3, 3, 2, 2, 1), size=(3, 3)),
        error(TypeError, "bool", Arg((1, 2, 2, 2, 2, 1), dtype="bool"), size=(3, 3)),
    )

    def window_of(self, shape: Any) -> Window:
        return as_window(self.name, tuple(shape[3:5]), self.stride, self.padding, self.dilation)

    def infer(self, x: Spec) -> Spec:
        check_rank(self.name, "the input", x, 6)
        if x.dtype == "bool":
            raise TypeError(f"{self.name}: the input is bool, which does not add up")
        counts = self.window_of(x.shape).counts(self.name, self.size)
        if counts != x.shape[1:3]:
            raise ShapeError(
                f"{self.name}: {x.shape[1:3]} windows given, size {self.size} has {counts}"
            )
        return Spec((x.shape[0], *self.size, x.shape[5]), x.dtype, x.device)

    def reduction_length(self, x: Spec) -> int:
        return prod(x.shape[3:5])

    def reference(self, x: Any) -> Any:
        window = self.window_of(x.shape)
        (p, q) = window.padding
        out = np.zeros((x.shape[0], *window.padded(self.size), x.shape[5]), x.dtype)
        for i, j, key in window.keys(x.shape[1:3]):
            out[key] += x[:, :, :, i, j]
        return out[:, p : p + self.size[0], q : q + self.size[1]]

    @in_float32
    def compute(self, x: Any) -> Any:
        return overlap(x, self.window_of(x.shape), self.size)

    def gradient(self, out_grad: Any, node: Any) -> Any:
        return apply(Unfold(*self.window_of(node.inputs[0].shape)), (out_grad,))

    def emit_te(self, k: Any, x: Any) -> Any:
        window = self.window_of([int(n) if a in (3, 4) else n for a, n in enumerate(x.shape)])
        n, rows, columns, kh, kw, c = x.shape
        i = k.te.reduce_axis((0, kh), name="i")
        j = k.te.reduce_axis((0, kw), name="j")
        zero = _te.full_like(k, x, 0)

        def body(b: Any, y: Any, z: Any, f: Any) -> Any:
            row, column, hits = windows_at(k, window, y, z, i, j)
            hit = k.tirx.all(*hits, row < rows, column < columns)
            return k.te.sum(k.tirx.if_then_else(hit, x[b, row, column, i, j, f], zero), axis=[i, j])

        return k.te.compute((n, *self.size, c), body, name="fold")


def lowest(dtype: str) -> float:
    """What no element of a floating or integer dtype is below."""
    return float("-inf") if is_floating(dtype) else int(np.iinfo(dtype).min)


def unfold(
    a: Tensor, kernel: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1, value: float = 0
) -> Tensor:
    """Every window of `a` (N, H, W, C), padded with `value`: (N, rows, columns, kh, kw, C).

    The others are ints or pairs (rows, columns). ShapeError when no window fits.
    """
    window = as_window("unfold", kernel, stride, padding, dilation)
    return apply(Unfold(*window, value), (a,))


def fold(a: Tensor, size: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> Tensor:
    """Windows (N, rows, columns, kh, kw, C), added up where they overlap: (N, *size, C)."""
    window = as_window("fold", 1, stride, padding, dilation)
    return apply(Fold(_pair("fold", "size", size, 0), *window[1:]), (a,))
