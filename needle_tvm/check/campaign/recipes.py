"""Recipes for ops whose operands or attributes must fit each other; `draw` uses `BUILDERS`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from needle.backend_ndarray.dtypes import is_floating
from needle.op import REGISTRY, Op
from needle.ops._update import Update
from needle_tvm.check.campaign import elementwise_draws, loops, scans
from needle_tvm.check.campaign.drawer import Drawer, Made
from needle_tvm.check.campaign.sizes import Extent

Builder = Callable[[Drawer, type[Op]], bool]


def _any(d: Drawer, least_rank: int = 0) -> Made:
    found = d.pick(lambda v: len(v.shape) >= least_rank)
    return found or d.leaf(d.shape(max(1, least_rank)))


def _reshape(d: Drawer, cls: type[Op]) -> bool:
    """Add a reshape to a shape of grouped prime factors, sometimes with a -1."""
    value, rng = _any(d), d.rng
    dims = [n for n in value.shape if isinstance(n, Extent)]
    size, shape = math.prod(n for n in value.shape if not isinstance(n, Extent)), [1]
    if size == 0:
        shape, dims = [*value.shape, rng.choice([1, 3])], []
    for factor in [*dims, *_factors(size)]:
        if rng.random() < 0.5:
            shape.append(1)
        shape[-1] *= factor
    rng.shuffle(shape)
    if size and rng.random() < 0.3:
        shape[rng.randrange(len(shape))] = -1
        return d.add(f"ops.reshape({{0}}, {tuple(shape)})", value) is not None
    return d.apply(cls, f"shape={tuple(shape)}", value)


def _factors(n: int) -> list[int]:
    found, factor = [], 2
    while factor <= n:
        if n % factor:
            factor += 1
        else:
            found.append(factor)
            n //= factor
    return found


def _broadcast_to(d: Drawer, cls: type[Op]) -> bool:
    value, rng = _any(d), d.rng
    shape = [rng.choice([2, 3, 7, 16]) if n == 1 and rng.random() < 0.7 else n for n in value.shape]
    lead = [rng.choice([1, 2, 5]) for _ in range(rng.randint(0, 2))]
    return d.apply(cls, f"shape={tuple(lead + shape)}", value)


def _permute(d: Drawer, cls: type[Op]) -> bool:
    value = _any(d, 1)
    order = d.rng.sample(range(len(value.shape)), len(value.shape))
    return d.apply(cls, f"axes={tuple(order)}", value)


def _transpose(d: Drawer, cls: type[Op]) -> bool:
    value = _any(d, 2)
    pair = tuple(d.rng.sample(range(-len(value.shape), len(value.shape)), 2))
    return d.apply(cls, f"axes={d.rng.choice([None, pair])}", value)


def _slices(d: Drawer, shape: tuple[int, ...]) -> str:
    """Return the key of ops.Slice: one slice per axis, as the op stores them."""
    return f"tuple(np.s_[{', '.join(d.slice(n) for n in shape)},])"


def _slice(d: Drawer, cls: type[Op]) -> bool:
    value = _any(d, 1)
    return d.add(f"ops.slice({{0}}, {_slices(d, value.shape)})", value) is not None


def _unslice(d: Drawer, cls: type[Op]) -> bool:
    """Add a slice, and put its values back in their positions among zeros."""
    value = _any(d, 1)
    key = _slices(d, value.shape)
    made = d.add(f"ops.slice({{0}}, {key})", value)
    return (
        made is not None and d.add(f"ops.unslice({{0}}, {key}, {value.shape})", made[0]) is not None
    )


def _pad(d: Drawer, cls: type[Op]) -> bool:
    value = _any(d, 1)
    widths = tuple((d.rng.randint(0, 3), d.rng.randint(0, 3)) for _ in value.shape)
    return d.apply(cls, f"padding={widths}, value={d.rng.choice([0, 0, 1.5])}", value)


def _squeeze(d: Drawer, cls: type[Op]) -> bool:
    value = _any(d)
    ones = [i for i, n in enumerate(value.shape) if n == 1]
    chosen = tuple(d.rng.sample(ones, d.rng.randint(0, len(ones))))
    return d.apply(cls, f"axes={d.rng.choice([None, chosen])}", value)


def _unsqueeze(d: Drawer, cls: type[Op]) -> bool:
    value = _any(d)
    return d.apply(cls, f"axes={d.rng.randint(-len(value.shape) - 1, len(value.shape))}", value)


def _dilated(d: Drawer, cls: type[Op]) -> bool:
    value = _any(d, 1)
    return d.apply(cls, f"axes={d.axes(value.shape)}, dilation={d.rng.randint(0, 2)}", value)


def _several(d: Drawer, cls: type[Op]) -> bool:
    """Join values of the same shape, or of shapes that differ along one axis."""
    first, rng = _any(d, 1), d.rng
    parts = [first]
    axis = d.axis(first.shape)
    for _ in range(rng.randint(1, 3)):
        shape = list(first.shape)
        if cls.name == "concat":
            shape[axis] = rng.choice([1, 2, 5])
        wanted = tuple(shape)
        found = d.pick(lambda v, wanted=wanted: v.shape == wanted)  # type: ignore[misc]
        parts.append(found if found and rng.random() < 0.8 else d.leaf(shape))
    listed = ", ".join(f"{{{i}}}" for i in range(len(parts)))
    return d.add(f"ops.{cls.name}([{listed}], {axis})", *parts) is not None


def _split(d: Drawer, cls: type[Op]) -> bool:
    found = d.pick(lambda v: any(0 < n <= 5 for n in v.shape)) or d.leaf([d.rng.randint(1, 5), 3])
    axis = d.rng.choice([i for i, n in enumerate(found.shape) if 0 < n <= 5])
    parts = found.shape[axis]
    text = f"ops.split({{0}}, {axis})" + ("[0]" if parts == 1 else "")
    return d.add(text, found, results=parts) is not None


def _tuple(d: Drawer, cls: type[Op]) -> bool:
    one, other = _any(d), _any(d)
    number = d.rng.randint(0, 1)
    text = f"ops.tuple_get_item(ops.make_tuple({{0}}, {{1}}), {number})"
    return d.add(text, one, other) is not None


def _added(d: Drawer, cls: type[Op]) -> bool:
    scalars = ", ".join(f"{name}={d.rng.choice([1, -2, 0.5])}" for name in ("c0", "c1"))
    return d.apply(cls, scalars, d.floating(), results=2)


def _where(d: Drawer, cls: type[Op]) -> bool:
    value = _any(d)
    condition = d.like(value, "bool")
    return d.apply(cls, "", condition, value, d.like(value))


def _power(d: Drawer, cls: type[Op]) -> bool:
    base = d.within(_any(d), 0.3, 2.5)
    return base is not None and d.apply(cls, "", base, d.like(base))


def _power_scalar(d: Drawer, cls: type[Op]) -> bool:
    base = d.within(d.floating(), 0.3, 2.5)
    exponent = d.rng.choice(["2", "3", "0.5", "-1", "-0.5", "1.7", "0", "1"])
    return base is not None and d.apply(cls, f"scalar={exponent}", base)


def _matmul(d: Drawer, cls: type[Op]) -> bool:
    """Add a matmul of values of any rank, with broadcast leading axes, or of a value and its
    transpose."""
    a, rng = _any(d, 1), d.rng
    terms = a.shape[-1]
    if len(a.shape) >= 2 and rng.random() < 0.2:
        return d.add("{0} @ ops.transpose({0})", a) is not None
    columns = rng.choice([1, 3, 8, 16, 17, 32, 50])
    lead = [1 if rng.random() < 0.3 else n for n in a.shape[:-2]]
    shape = rng.choice([[terms], [terms, columns], [terms, columns], [*lead, terms, columns]])
    wanted = tuple(shape)
    b = d.pick(lambda v: v.shape == wanted and v.dtype == a.dtype)
    if b is None or rng.random() < 0.5:
        b = d.leaf(shape, a.dtype, -1, 1)
    return d.apply(cls, "", a, b)


def image(d: Drawer) -> Made:
    """Return a floating-point image of shape (N, H, W, C)."""
    rng = d.rng
    found = d.pick(lambda v: len(v.shape) == 4 and is_floating(v.dtype) and min(v.shape) > 0)
    if found is not None and rng.random() < 0.7:
        return found
    side = [d.extent([1, 3, 5, 6, 8, 13, 17, 28]) for _ in "hw"]
    batch, channels = d.extent([1, 2, 3]), rng.choice([1, 3, 4, 8, 16])
    dtype = d.dtype() if rng.random() < 0.4 else d.float_dtype()
    return d.leaf([batch, *side, channels], dtype)


def _window(d: Drawer, value: Made) -> tuple[str, tuple[int, int], tuple[int, int]]:
    """Return (attributes, kernel size, result size) of a convolution that fits an image."""
    rng = d.rng
    while True:
        kernel = rng.choice([(1, 1), (3, 3), (3, 3), (5, 5), (2, 3), (1, 4), (7, 7)])
        stride, padding = (tuple(rng.choice(p)) for p in (_STRIDES, _PADDINGS))
        dilation = rng.choice([(1, 1), (1, 1), (1, 1), (2, 2), (1, 2)])
        sizes = tuple(
            (n + 2 * p - w * (k - 1) - 1) // s + 1
            for n, p, w, k, s in zip(
                value.shape[1:3], padding, dilation, kernel, stride, strict=True
            )
        )
        if min(sizes) > 0:
            text = f"stride={stride}, padding={padding}, dilation={dilation}"
            return text, kernel, sizes  # type: ignore[return-value]


_STRIDES = ((1, 1), (1, 1), (2, 2), (1, 2), (3, 1))
_PADDINGS = ((0, 0), (1, 1), (1, 1), (2, 2), (3, 3), (0, 2))


def _divides(groups: int, channels: int) -> bool:
    return not isinstance(groups, Extent) and channels % groups == 0


def grouping(d: Drawer, channels: int) -> tuple[int, int]:
    """Draw (groups, output channels)."""
    groups = d.rng.choice([g for g in (1, 1, 2, 4, channels) if _divides(g, channels)])
    return groups, groups * d.rng.choice([1, 2, 5, 8, 16])


def _conv(d: Drawer, cls: type[Op]) -> bool:
    x = image(d)
    text, kernel, _ = _window(d, x)
    groups, outputs = grouping(d, x.shape[-1])
    w = d.leaf([*kernel, x.shape[-1] // groups, outputs], x.dtype, -0.5, 0.5)
    return d.apply(cls, f"{text}, groups={groups}", x, w)


def _conv_gradients(d: Drawer, cls: type[Op]) -> bool:
    """Add the gradient of a convolution's input or weight."""
    x = image(d)
    text, kernel, size = _window(d, x)
    groups, outputs = grouping(d, x.shape[-1])
    back = d.leaf([x.shape[0], *size, outputs], x.dtype, -0.5, 0.5)
    if cls.name == "conv_weight":
        return d.apply(cls, f"kernel={kernel}, {text}, groups={groups}", x, back)
    w = d.leaf([*kernel, x.shape[-1] // groups, outputs], x.dtype, -0.5, 0.5)
    return d.apply(cls, f"size={x.shape[1:3]}, {text}, groups={groups}", back, w)


def _pooled(d: Drawer, cls: type[Op]) -> bool:
    """Add pooling with windows that fit into the image and are at most half padding."""
    x, rng = image(d), d.rng
    kernel = tuple(rng.randint(1, min(4, n)) for n in x.shape[1:3])
    padding = tuple(rng.randint(0, k // 2) for k in kernel)
    stride = (rng.randint(1, 3), rng.randint(1, 3))
    return d.apply(cls, f"kernel={kernel}, stride={stride}, padding={padding}", x)


def _sliding_windows(d: Drawer, cls: type[Op]) -> bool:
    x = image(d)
    text, kernel, _ = _window(d, x)
    value = d.rng.choice(["0.0", "1.5", "-2.0"])
    return d.apply(cls, f"kernel={kernel}, {text}, value={value}", x)


def _overlap_add(d: Drawer, cls: type[Op]) -> bool:
    """Copy the windows of an image, and add them back."""
    x = image(d)
    text, kernel, _ = _window(d, x)
    made = d.add(f"ops.SlidingWindows(kernel={kernel}, {text}, value=0.0)({{0}})", x)
    return made is not None and d.apply(cls, f"size={x.shape[1:3]}, {text}", made[0])


def places(d: Drawer, extent: int, shape: list[int] | None = None) -> Made:
    """Return positions along an axis: integers in [0, `extent`)."""
    if shape is None:
        shape = [d.extent([n]) for n in d.rng.choice([[], [1], [3], [7], [2, 3]])]
    dtype = d.rng.choice(["int32", "int64", "uint8"])
    if dtype == "uint8" and not (isinstance(extent, int) and extent <= 256):
        dtype = "int32"
    return d.leaf(shape, dtype, 0, max(1, extent))


def _take(d: Drawer, cls: type[Op]) -> bool:
    value = d.pick(lambda v: bool(v.shape) and min(v.shape) > 0)
    if value is None:
        return False
    axis = d.axis(value.shape)
    return d.apply(cls, f"axis={axis}", value, places(d, value.shape[axis]))


def _ravel_index(d: Drawer, cls: type[Op]) -> bool:
    extents = [d.rng.choice([1, 3, 4, 7]) for _ in range(d.rng.randint(1, 3))]
    shape = [d.extent([n]) for n in d.rng.choice([[], [1], [5], [2, 3]])]
    indices = [places(d, n, d.rng.choice([shape, shape[-1:]])) for n in extents]
    return d.apply(cls, f"extents={tuple(extents)}", *indices)


def _segment_sum(d: Drawer, cls: type[Op]) -> bool:
    value = d.pick(lambda v: bool(v.shape) and min(v.shape) > 0)
    if value is None:
        return False
    axis, extent = d.rng.randrange(len(value.shape)), d.rng.choice([1, 3, 9])
    index = places(d, extent, list(value.shape[axis : axis + d.rng.choice([1, 1, 2])]))
    return d.apply(cls, f"extent={extent}, axis={axis}", value, index)


def _along(d: Drawer, cls: type[Op]) -> bool:
    """Take or put elements along an axis, each at its own position."""
    value = d.pick(lambda v: bool(v.shape) and min(v.shape) > 0)
    if value is None:
        return False
    axis = d.rng.randrange(len(value.shape))
    shape = list(value.shape)
    shape[axis] = d.rng.choice([1, 2, 7])
    index = places(d, value.shape[axis], shape)
    if cls.name == "take_along_axis":
        return d.apply(cls, f"axis={axis}", value, index)
    return d.apply(cls, f"how={_how(d, value)!r}, axis={axis}", value, index,
                   d.leaf(shape, value.dtype))  # fmt: skip


def _put(d: Drawer, cls: type[Op]) -> bool:
    value = d.pick(lambda v: bool(v.shape) and min(v.shape) > 0)
    if value is None:
        return False
    axis = d.rng.randrange(len(value.shape))
    index = places(d, value.shape[axis])
    shape = [*value.shape[:axis], *index.shape, *value.shape[axis + 1 :]]
    return d.apply(cls, f"how={_how(d, value)!r}, axis={axis}", value, index,
                   d.leaf(shape, value.dtype))  # fmt: skip


def _how(d: Drawer, value: Made) -> str:
    return "set" if value.dtype == "bool" else d.rng.choice(["set", "add", "mul", "max", "min"])


def _set_slice(d: Drawer, cls: type[Op]) -> bool:
    value = _any(d, 1)
    key = _slices(d, value.shape)
    made = d.add(f"ops.slice({{0}}, {key})", value)
    if made is None:
        return False
    new = d.leaf(list(made[0].shape), value.dtype)
    return d.add(f"ops.set_slice({{0}}, {{1}}, {key})", value, new) is not None


def _one_hot(d: Drawer, cls: type[Op]) -> bool:
    classes = d.rng.choice([1, 3, 8])
    dtype = d.rng.choice(["float32", "float64", "int32", "bool", "float16", "int8"])
    return d.apply(cls, f"num_classes={classes}, dtype={dtype!r}", places(d, classes))


def _normalized(d: Drawer, cls: type[Op]) -> bool:
    batch = cls.name == "batch_norm_train"
    x = d.floating(2 if batch else 1)
    axis = 1 if batch and d.rng.random() < 0.7 else -1
    w, b = (d.leaf([x.shape[axis]], x.dtype) for _ in "wb")
    if not batch:
        return d.apply(cls, f"eps={d.rng.choice([1e-5, 1e-3])}", x, w, b)
    return d.apply(cls, f"axis={axis}, eps={d.rng.choice([1e-5, 1e-3])}", x, w, b, results=3)


def _grouped(d: Drawer, cls: type[Op]) -> bool:
    x = d.floating(2)
    channels = x.shape[1]
    if not isinstance(channels, int) or channels < 1:
        return False
    groups = d.rng.choice([n for n in range(1, channels + 1) if channels % n == 0])
    w, b = (d.leaf([channels], x.dtype) for _ in "wb")
    return d.apply(cls, f"groups={groups}, eps={d.rng.choice([1e-5, 1e-3])}", x, w, b)


def _random(d: Drawer, cls: type[Op]) -> bool:
    shape = tuple(d.rng.choice([1, 2, 5, 16]) for _ in range(d.rng.randint(0, 3)))
    state = d.leaf([2], "int64", 0, 1000)
    return d.apply(cls, f"shape={shape}, wide={d.rng.random() < 0.3}", state)


def _update(d: Drawer, cls: type[Op]) -> bool:
    """Add an optimizer's step, with attributes from the op's samples and a positive state."""
    sample = d.rng.choice(cls.samples)
    op: Any = cls(**sample.attributes)
    param = d.floating()
    shape, squares = list(param.shape), ("v", "v_max")  # not below the other states' squares
    like = [
        d.leaf(
            [] if name in op.numbers else shape,
            param.dtype,
            *((1.0, 2.0) if name in squares else (0.5, 1.0)),
        )
        for name in ("gradient", *op.states)
    ]
    lr = d.leaf([], "float32", 0.1, 0.5)
    step = d.add("ops.cast({0}, 'int64')", d.leaf([], "float32", 0.0, 9.0))
    if step is None:
        return False
    attributes = ", ".join(f"{name}={value!r}" for name, value in sample.attributes.items())
    return d.apply(cls, attributes, param, *like, lr, step[0], results=len(op.states) + 2)


def _lstm(d: Drawer, cls: type[Op]) -> bool:
    dtype, batch = d.float_dtype(), d.extent([1, 1, 2, 3, 5, 9])
    hidden = d.rng.choice([1, 2, 4, 7, 8, 16, 20])
    c = d.leaf([batch, hidden], dtype)
    return d.apply(cls, "", d.leaf([batch, 4 * hidden], dtype), c, results=2)


def _gru(d: Drawer, cls: type[Op]) -> bool:
    dtype, batch = d.float_dtype(), d.extent([1, 1, 2, 3, 5, 9])
    hidden = d.rng.choice([1, 2, 4, 7, 8, 16, 20])
    gates = [d.leaf([batch, 3 * hidden], dtype) for _ in range(2)]
    return d.apply(cls, "", *gates, d.leaf([batch, hidden], dtype))


def _arange(d: Drawer, cls: type[Op]) -> bool:
    return d.apply(cls, f"count={d.rng.randint(1, 9)}, first={d.rng.randint(-3, 3)}", d.leaf(()))


BUILDERS: dict[str, Builder] = {
    "arange": _arange,
    "reshape": _reshape,
    "broadcast_to": _broadcast_to,
    "permute": _permute,
    "transpose": _transpose,
    "slice": _slice,
    "unslice": _unslice,
    "pad": _pad,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "dilate": _dilated,
    "undilate": _dilated,
    "concat": _several,
    "stack": _several,
    "split": _split,
    "make_tuple": _tuple,
    "tuple_get_item": _tuple,
    "fused_add_scalars": _added,
    "where": _where,
    "power": _power,
    "power_scalar": _power_scalar,
    "matmul": _matmul,
    "conv": _conv,
    "conv_input": _conv_gradients,
    "conv_weight": _conv_gradients,
    "max_pool": _pooled,
    "avg_pool": _pooled,
    "sliding_windows": _sliding_windows,
    "overlap_add": _overlap_add,
    "take": _take,
    "ravel_index": _ravel_index,
    "take_along_axis": _along,
    "put_along_axis": _along,
    "put": _put,
    "set_slice": _set_slice,
    "segment_sum": _segment_sum,
    "one_hot": _one_hot,
    "layer_norm": _normalized,
    "batch_norm_train": _normalized,
    "gru_gates": _gru,
    "group_norm": _grouped,
    "random_uniform": _random,
    **{name: _update for name, op in REGISTRY.items() if issubclass(op, Update)},
    "lstm_gates": _lstm,
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), scans.scan),
    "linear_scan": scans.linear,
    "scan": loops.scan,
    "cond": loops.cond,
    "while_loop": loops.while_loop,
    **dict.fromkeys(("cummax", "cummin", "sort", "topk"), scans.ordered),
    "searchsorted": scans.searchsorted,
    "resample": scans.resample,
    "weighted_elements": scans.weighted_elements,
    "grouped_matmul": scans.grouped_matmul,
    **dict.fromkeys(("round", "condition"), elementwise_draws.of_one),
    **dict.fromkeys(("logical", "whole_division"), elementwise_draws.of_two),
    **dict.fromkeys(("bitwise", "bitwise_not", "bitcast"), elementwise_draws.bits),
    "clip": elementwise_draws.clip,
}
