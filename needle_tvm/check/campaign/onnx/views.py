"""Recipes of ONNX's operators that only move elements or axes; `layers` draws `view`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from needle_tvm.check.campaign.onnx.draw import Drawer, Made, Unfit


def view(d: Drawer) -> None:
    """Add an operator that only moves elements or axes."""
    _VIEWS[d.rng.choice(list(_VIEWS))](d, d.any())


def _reshape(d: Drawer, x: Made) -> None:
    size = x.array.size
    shape: list[int] = []
    if size == 0:
        raise Unfit
    while size > 1 and len(shape) < 3:
        factor = d.rng.choice([n for n in range(1, size + 1) if size % n == 0])
        shape.append(factor)
        size //= factor
    shape.append(size)
    d.rng.shuffle(shape)
    kept = [i for i, (a, b) in enumerate(zip(shape, x.shape, strict=False)) if a == b]
    if kept and d.rng.random() < 0.3:
        shape[d.rng.choice(kept)] = 0  # the extent that was there
    elif d.rng.random() < 0.4:
        shape[d.rng.randrange(len(shape))] = -1
    d.one("Reshape", x, d.constant(shape))


def _squeeze(d: Drawer, x: Made) -> None:
    ones = [i for i, n in enumerate(x.shape) if n == 1]
    axes = d.rng.sample(ones, d.rng.randint(0, len(ones)))
    axes = [axis - x.rank if d.rng.random() < 0.4 else axis for axis in axes]
    d.one("Squeeze", x, *([d.constant(axes)] if axes else []))


def _unsqueeze(d: Drawer, x: Made) -> None:
    rank = x.rank + d.rng.choice([1, 1, 2])
    axes = d.rng.sample(range(rank), rank - x.rank)
    axes = [axis - rank if d.rng.random() < 0.4 else axis for axis in axes]
    d.one("Unsqueeze", x, d.constant(axes))


def _transpose(d: Drawer, x: Made) -> None:
    order = d.rng.sample(range(x.rank), x.rank)
    options: dict[str, Any] = {"perm": order} if order and d.rng.random() < 0.8 else {}
    d.one("Transpose", x, **options)


def _expand(d: Drawer, x: Made) -> None:
    shape = [d.rng.choice([1, n, 3 if n == 1 else n]) for n in x.shape]
    lead = [d.rng.choice([1, 2]) for _ in range(d.rng.randint(0, 1))]
    d.one("Expand", x, d.constant(np.array([*lead, *shape], "int64")))


def _slice(d: Drawer, x: Made) -> None:
    rng = d.rng
    axes = rng.sample(range(x.rank), rng.randint(1, x.rank)) if x.rank else []
    if not axes:
        raise Unfit
    starts, ends, steps = [], [], []
    for axis in axes:
        n, step = x.shape[axis], rng.choice([1, 1, 1, 2, 3, -1, -2])
        starts.append(rng.randint(-n - 1, n + 1))
        ends.append(rng.choice([rng.randint(-n - 1, n + 1), 2**31 if step > 0 else -(2**31)]))
        steps.append(step)
    axes = [axis - x.rank if rng.random() < 0.4 else axis for axis in axes]
    more = [d.constant(axes), d.constant(steps)]
    d.one("Slice", x, d.constant(starts), d.constant(ends), *more)


def _pad(d: Drawer, x: Made) -> None:
    rng = d.rng
    mode = rng.choice(["constant", "constant", "reflect", "edge", "wrap"])
    if mode == "wrap" and d.opset < 19:
        mode = "edge"
    low = -1 if mode == "constant" and rng.random() < 0.3 else 0
    axes = list(range(x.rank))
    given: list[Made | None] = []
    if d.opset >= 18 and x.rank and rng.random() < 0.4:
        axes = rng.sample(axes, rng.randint(1, x.rank))
        signed = [axis - x.rank if rng.random() < 0.4 else axis for axis in axes]
        given = [None, d.constant(signed)]
    most = [min(2, max(0, x.shape[axis] - 1)) if mode == "reflect" else 2 for axis in axes]
    pads = [rng.randint(low, n) for n in most * 2]
    if mode == "constant" and rng.random() < 0.5:
        value = d.constant(1, x.dtype)
        given = [value, *given[1:]]
    if not pads:
        raise Unfit
    d.one("Pad", x, d.constant(pads), *given, mode=mode)


def _split(d: Drawer, x: Made) -> None:
    axis, rng = d.axis(x), d.rng
    n = x.shape[axis]
    if n < 2:
        raise Unfit
    at = rng.randint(1, n - 1)
    if d.opset >= 18 and rng.random() < 0.5:
        count = rng.randint(2, min(n, 3))
        d.node("Split", x, outputs=count, axis=axis, num_outputs=count)
    else:
        d.node("Split", x, d.constant([at, n - at]), outputs=2, axis=axis)


def _concat(d: Drawer, x: Made) -> None:
    axis, rng = d.axis(x), d.rng
    shape = list(x.shape)
    shape[axis] = d.extent()
    low, high = (0, 9) if x.dtype[0] == "u" else (-2, 2)
    parts = [x, *[d.weight(shape, x.dtype, low, high)] * rng.choice([0, 1, 1, 2])]
    rng.shuffle(parts)
    d.one("Concat", *parts, axis=axis)


def _tile(d: Drawer, x: Made) -> None:
    d.one("Tile", x, d.constant(np.array([d.rng.choice([1, 2, 3]) for _ in x.shape], "int64")))


def _trilu(d: Drawer, x: Made) -> None:
    given = [d.constant(d.rng.randint(-2, 2))] if d.rng.random() < 0.6 else []
    d.one("Trilu", x, *given, **d.some({"upper": (0, 1)}))


def _blocks(d: Drawer, x: Made) -> None:
    rng, size = d.rng, d.rng.choice([1, 2, 2, 3])
    channels, h, w = rng.choice([1, 2, 3]), rng.choice([1, 2, 3]), rng.choice([1, 2, 4])
    if rng.random() < 0.5:
        image = d.input([rng.choice([1, 2]), channels * size * size, h, w])
        d.one("DepthToSpace", image, blocksize=size, **d.some({"mode": ("DCR", "CRD")}))
    else:
        image = d.input([rng.choice([1, 2]), channels, h * size, w * size])
        d.one("SpaceToDepth", image, blocksize=size)


def _flatten(d: Drawer, x: Made) -> None:
    d.one("Flatten", x, axis=d.rng.randint(-x.rank, x.rank))


def _reversed(d: Drawer, x: Made) -> None:
    if x.rank < 2:
        raise Unfit
    time, batch = d.rng.choice([(0, 1), (1, 0)])
    lengths = d.weight([x.shape[batch]], "int64", 1, x.shape[time] + 1)
    d.one("ReverseSequence", x, lengths, time_axis=time, batch_axis=batch)


def _cropped(d: Drawer, x: Made) -> None:
    axes = d.rng.sample(range(x.rank), d.rng.randint(1, x.rank)) if x.rank else []
    if not axes:
        raise Unfit
    sizes = [d.rng.randint(1, x.shape[axis] + 3) for axis in axes]
    d.one("CenterCropPad", x, d.constant(sizes), axes=axes)


_VIEWS: dict[str, Callable[[Drawer, Made], None]] = {
    "reshape": _reshape, "squeeze": _squeeze, "unsqueeze": _unsqueeze, "transpose": _transpose,
    "expand": _expand, "slice": _slice, "pad": _pad, "split": _split, "concat": _concat,
    "tile": _tile, "trilu": _trilu, "blocks": _blocks, "flatten": _flatten,
    "reversed": _reversed, "cropped": _cropped,
}  # fmt: skip
