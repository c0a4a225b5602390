"""Layers and expressions as users write them; a random program applies each as a whole.

They contain the patterns that graph passes look for, and similar patterns that passes must not
mistake for them. `draw` picks from `LAYERS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from needle.backend_ndarray.dtypes import is_floating
from needle_tvm.check.campaign.drawer import Drawer, Made
from needle_tvm.check.campaign.recipes import grouping, image, places
from needle_tvm.check.campaign.sizes import Extent, least

ACTIVATIONS = (
    "{0}", "ops.relu({0})", "ops.gelu({0})", "ops.tanh({0})", "ops.silu({0})",
    "ops.sigmoid({0})", "{0} * ops.sigmoid({0})", "ops.maximum({0}, {0} * 0.1)",
)  # fmt: skip
_POINTWISE = (
    "{0} - {1}", "{0} + {1}", "{0} * {1}", "ops.maximum({0}, {1})", "ops.minimum({0}, {1})",
    "{0} / (ops.abs({1}) + 1)", "ops.where({0} > {1}, {0}, {1})", "({0} - {1}) * ({0} - {1})",
    "{0} <= {1}", "ops.exp(-ops.abs({0} - {1}))",
)  # fmt: skip


def _linear(d: Drawer, x: Made, features: int, activation: str = "{0}") -> Made:
    """Add act(x @ w + b), with a bias of shape (features,) or (1, features), or none."""
    w = d.leaf([x.shape[-1], features], x.dtype, -0.7, 0.7, "parameter")
    x = d.one("{0} @ {1}", x, w)
    if d.rng.random() < 0.8:
        b = d.leaf([*d.rng.choice([[], [1]]), features], x.dtype, -1, 1, "parameter")
        x = d.one("{0} + {1}", x, b)
    return d.one(activation, x) if activation != "{0}" else x


def _rows(d: Drawer, rank: int | None = None) -> Made:
    """Return an existing or new floating-point tensor of that rank, without empty axes."""
    rank = rank or d.rng.choice([2, 2, 3])
    found = d.pick(lambda v: is_floating(v.dtype) and len(v.shape) == rank and 0 not in v.shape)
    if found is not None and d.rng.random() < 0.6:
        return found
    choices = ([1, 2, 3, 5], [1, 3, 4, 10], [1, 2, 4, 5, 8, 16])
    return d.leaf([d.extent(c) for c in choices[-rank:]], d.float_dtype(), kind="input")


# Networks.


def mlp(d: Drawer) -> None:
    x = d.floating(2)
    for _ in range(d.rng.randint(1, 3)):
        width = d.rng.choice([1, 4, 10, 16, 17, 32, 48, 64])
        x = _linear(d, x, width, d.rng.choice(ACTIVATIONS))


def attention(d: Drawer) -> None:
    """Add softmax(q k^T / s + mask) v with one or several heads.

    Queries, keys and values are projections of one tensor, or of its three layer norms.
    """
    rng = d.rng
    batch, heads = d.extent([1, 2, 3]), rng.choice([1, 2, 4])
    length, width = d.extent([1, 3, 10, 17]), rng.choice([4, 8, 16])
    x = d.leaf([batch, length, heads * width], d.float_dtype(), kind="input")
    norms = rng.choice([0, 1, 3])
    if norms == 1:
        x = _normed(d, x)
    split = f"ops.permute(ops.reshape({{0}}, ({batch}, {length}, {heads}, {width})), (0, 2, 1, 3))"
    seen = [_normed(d, x) if norms == 3 else x for _ in "qkv"]
    q, k, v = (d.one(split, _linear(d, each, heads * width)) for each in seen)
    if rng.random() < 0.2:
        q, k = (_rotated(d, each) for each in (q, k))
    scores = d.one(f"({{0}} @ ops.transpose({{1}})) * {1 / math.sqrt(width):.6g}", q, k)
    if rng.random() < 0.4:
        shape = rng.choice([[length, length], [heads, 1, length], [batch, 1, 1, length]])
        scores = d.one("{0} + {1}", scores, d.leaf(shape, x.dtype, -3, 3, "constant"))
    out = d.one("{0} @ {1}", d.one("ops.softmax({0})", scores), v)
    joined = f"ops.reshape(ops.permute({{0}}, (0, 2, 1, 3)), ({batch}, {length}, {heads * width}))"
    out = d.one(joined, out)
    if rng.random() < 0.7:
        d.one("{0} + {1}", _linear(d, out, heads * width), x)


def _normed(d: Drawer, x: Made) -> Made:
    w, b = (d.leaf(x.shape[-1:], x.dtype) for _ in "wb")
    return d.one("ops.layer_norm({0}, {1}, {2})", x, w, b)


def _rotated(d: Drawer, x: Made) -> Made:
    """Add a rotary position embedding of the last axis (Su et al., "RoFormer", 2021)."""
    half = x.shape[-1] // 2
    sin, cos = (d.leaf(x.shape[-2:], x.dtype, -1, 1, "constant") for _ in "sc")
    turned = d.one(f"ops.concat([-{{0}}[..., {half}:], {{0}}[..., :{half}]], -1)", x)
    return d.one("{0} * {1} + {2} * {3}", x, cos, turned, sin)


def convolutions(d: Drawer) -> None:
    """Add convolutions with normalisation and activation.

    Normalisation is batch norm in eval mode, or a scale and a shift. A residual, a channel gate or
    a head may follow. The layout is (N, H, W, C), or (N, C, H, W) as in `needle.nn`.
    """
    x, rng = image(d), d.rng
    turned = rng.random() < 0.5
    axis, rest = (1, "(2, 3)") if turned else (3, "(1, 2)")
    conv = "ops.Conv({0})({{0}}, {{1}})"
    if turned:
        conv = "ops.permute(ops.Conv({0})(ops.permute({{0}}, (0, 2, 3, 1)), {{1}}), (0, 3, 1, 2))"
        x = d.one("ops.permute({0}, (0, 3, 1, 2))", x) if rng.random() < 0.5 else x
    first = x
    for _ in range(rng.randint(1, 2)):
        kernel, channels = rng.choice([1, 3, 3, 5]), x.shape[axis]
        groups, outputs = grouping(d, channels)
        if rng.random() < 0.4:
            groups, outputs = 1, channels
        w = d.leaf([kernel, kernel, channels // groups, outputs], x.dtype, -0.4, 0.4, "parameter")
        step, spread = rng.choice([1, 1, 1, 2]), rng.choice([1, 1, 1, 2])
        geometry = f"stride=({step}, {step}), dilation=({spread}, {spread}), groups={groups}"
        padding = spread * (kernel // 2)
        x = d.one(conv.format(f"{geometry}, padding=({padding}, {padding})"), x, w)
        if not turned and rng.random() < 0.3:
            numbers = [d.leaf([outputs], x.dtype, 0.5, 1.5, "parameter") for _ in "wbmv"]
            x = d.one("ops.batch_norm({0}, {1}, {2}, {3}, {4})", x, *numbers)
        elif rng.random() < 0.7:
            shape = [1, outputs, 1, 1] if turned else rng.choice([[outputs], [1, 1, 1, outputs]])
            scale, shift = (d.leaf(shape, x.dtype, 0.5, 1.5, "parameter") for _ in "sb")
            x = d.one(
                rng.choice(["{0} * {1} + {2}", "{0} + {2}", "({0} - {2}) * {1}"]), x, scale, shift
            )
        x = d.one(rng.choice(ACTIVATIONS), x)
    if x.shape == first.shape and rng.random() < 0.5:
        x = d.one("ops.relu({0} + {1})", x, first)
    after = rng.choice(["none", "gate", "mean", "flat"])
    if after == "gate":
        pooled = d.one(f"ops.mean({{0}}, {rest})", x)
        gate = _linear(d, pooled, x.shape[axis], "ops.sigmoid({0})")
        shape = [x.shape[0], 1, 1, 1]
        shape[axis] = x.shape[axis]
        d.one(f"{{0}} * ops.reshape({{1}}, {tuple(shape)})", x, gate)
    elif after != "none":
        text = f"ops.mean({{0}}, {rest})" if after == "mean" else f"{{0}}.reshape({x.shape[0]}, -1)"
        _linear(d, d.one(text, x), rng.choice([1, 3, 10]))


def wide_convolution(d: Drawer) -> None:
    """Add a 3x3 convolution with enough channels for Winograd's filtering to pay off."""
    rng, dtype = d.rng, d.rng.choice([d.float_dtype(), "float32"])
    batch, h, w = (d.extent(c) for c in ([1, 1, 2], [4, 7, 8, 12], [4, 5, 8, 12]))
    channels = rng.choice([32, 48, 48, 64])
    x = d.leaf([batch, h, w, channels], dtype, -1, 1, "input")
    weight = d.leaf([3, 3, channels, rng.choice([32, 48])], dtype, -0.2, 0.2, "parameter")
    padding = (rng.choice([0, 1, 1]), rng.choice([0, 1, 1]))
    x = d.one(f"ops.Conv(stride=(1, 1), padding={padding}, groups=1)({{0}}, {{1}})", x, weight)
    shift = d.leaf(x.shape[-1:], dtype, -1, 1, "parameter")
    d.one(rng.choice(ACTIVATIONS), d.one("{0} + {1}", x, shift))


def upsampling(d: Drawer) -> None:
    """Add a transposed convolution of a small image, and its bias."""
    rng, dtype = d.rng, d.float_dtype()
    sides = [d.extent([1, 1, 2, 3, 5]) for _ in "hw"]
    kernel = [rng.choice([1, 1, 2, 3, 5]) for _ in "hw"]
    stride, padding = (
        [rng.choice([1, 2, 2, 3]) for _ in "hw"],
        [rng.randint(0, k // 2) for k in kernel],
    )
    # Convolving an image of this size gives one of size `sides`; on each axis, `s` sizes do so.
    size = tuple(
        max(1, (n - 1) * s + k - 2 * p + rng.randrange(s))
        for n, s, k, p in zip(sides, stride, kernel, padding, strict=True)
    )
    channels, outputs = rng.choice([1, 4, 16]), rng.choice([1, 3, 8, 16])
    x = d.leaf([d.extent([1, 2]), *sides, channels], dtype, kind="input")
    w = d.leaf([*kernel, outputs, channels], dtype, -0.5, 0.5, "parameter")
    geometry = f"size={size}, stride={tuple(stride)}, padding={tuple(padding)}, groups=1"
    x = d.one(f"ops.ConvInput({geometry})({{0}}, {{1}})", x, w)
    x = d.one("{0} + {1}", x, d.leaf([outputs], dtype, -1, 1, "parameter"))
    d.one(rng.choice(ACTIVATIONS), x)


def resized(d: Drawer) -> None:
    """Resize an image (N, C, H, W), or read it at the points of a grid."""
    rng, x = d.rng, d.one("ops.permute({0}, (0, 3, 1, 2))", image(d))
    if not is_floating(x.dtype) or rng.random() < 0.4:
        mode = rng.choice(["nearest", "nearest-exact"])
    else:
        mode = rng.choice(["bilinear", "bicubic", "area"])
    if x.dtype in ("float32", "float64") and rng.random() < 0.3:  # float16 rounds points to borders
        points = [rng.choice([1, 2, 5]), rng.choice([1, 3, 8])]
        grid = d.leaf([x.shape[0], *points, 2], x.dtype, -1.3, 1.3, "input")
        padding, kind = rng.choice(["zeros", "border"]), rng.choice(["bilinear", "bicubic"])
        text = f"mode={kind!r}, padding_mode={padding!r}, align_corners={rng.random() < 0.5}"
        d.one(f"nn.functional.grid_sample({{0}}, {{1}}, {text})", x, grid)
        return
    if any(isinstance(n, Extent) for n in x.shape) or rng.random() < 0.5:
        target = f"scale_factor={rng.choice([2, 3, 1.5, (2, 1)])}"
    else:
        target = f"size={tuple(rng.choice([1, 2, 5, 8, 13]) for _ in 'hw')}"
    align = rng.choice([", align_corners=True", ""]) if mode in ("bilinear", "bicubic") else ""
    d.one(f"nn.functional.interpolate({{0}}, {target}, mode={mode!r}{align})", x)


def products(d: Drawer) -> None:
    """Add a matmul with weights of any rank, whose leading axes broadcast against the input's."""
    rng, dtype = d.rng, d.rng.choice([d.float_dtype(), d.float_dtype(), "bfloat16"])
    lead, terms = (
        [d.extent([1, 2, 3]) for _ in range(rng.randint(0, 2))],
        rng.choice([1, 4, 5, 16]),
    )
    x = d.leaf([*lead, d.extent([1, 4, 7]), terms], dtype, -1, 1, "input")
    batch = [1 if rng.random() < 0.4 else n for n in lead]
    batch = rng.choice([batch, batch[1:], [rng.choice([1, 2]), *batch], [1] * len(lead)])
    w = d.leaf([*batch, terms, rng.choice([1, 3, 16, 17])], dtype, -1, 1, "parameter")
    x = d.one("{0} @ {1}", x, w)
    if rng.random() < 0.4:  # its rank may be higher than the result's
        shape = [1] * rng.randint(0, len(x.shape) + 1) + [rng.choice([1, x.shape[-1]])]
        scale = d.leaf(shape, dtype, 0.5, 1.5, "parameter")
        x = d.one(
            rng.choice(["{0} * {1}", "{1} * {0}", "({0} + 1) * {1}", "{0} * {1} - 1"]), x, scale
        )
    shift = d.leaf(x.shape[-1:], dtype, -1, 1, "parameter")
    d.one(rng.choice(ACTIVATIONS), d.one("{0} + {1}", x, shift))


def recurrence(d: Drawer) -> None:
    """Add an LSTM over a sequence of projected inputs, and read its result."""
    rng, dtype = d.rng, d.float_dtype()
    steps, batch = d.extent([1, 4, 6]), d.extent([1, 2, 4])
    width, hidden = rng.choice([3, 8]), rng.choice([4, 7, 16])
    x = d.leaf([steps, batch, width], dtype, kind="input")
    projected = _linear(d, x, 4 * hidden)
    h, c = (d.leaf([batch, hidden], dtype) for _ in "hc")
    w = d.leaf([hidden, 4 * hidden], dtype, -0.5, 0.5, "parameter")
    made = d.add("ndl.recurrence.layers.lstm({0}, {1}, {2}, {3})", projected, h, c, w, results=4)
    if made:
        d.one(rng.choice(["{0}[-1]", "{0}[:, -1]", "ops.permute({0}, (1, 0, 2))"]), made[0])


def cells(d: Drawer) -> None:
    """Add a hand-written, maybe gated recurrence: matmuls of each input and the previous state."""
    x, rng = _rows(d, 3), d.rng
    by_batch, hidden = rng.random() < 0.5, rng.choice([1, 3, 4, 16])
    steps, batch = (x.shape[1], x.shape[0]) if by_batch else x.shape[:2]
    u = d.leaf([hidden, hidden], x.dtype, -0.5, 0.5, "parameter")
    w = d.leaf([x.shape[-1], hidden], x.dtype, -0.5, 0.5, "parameter")
    h = d.leaf([rng.choice([1, batch]), hidden], x.dtype)
    states = []
    for t in range(min(least(steps), rng.randint(1, 4))):
        now = d.one(f"{{0}}[:, {t}]" if by_batch else f"{{0}}[{t}]", x)
        new = d.one("ops.tanh({0} @ {1} + {2} @ {3})", now, w, h, u)
        if rng.random() < 0.4:
            z = d.one("ops.sigmoid({0} @ {1})", h, u)
            new = d.one("{0} * {1} + (1 - {0}) * {2}", z, h, new)
        h = new
        states.append(h)
    listed = ", ".join(f"{{{i}}}" for i in range(len(states)))
    d.one(f"ops.stack([{listed}], {rng.choice([0, 1, -1])})", *states)


def loss(d: Drawer) -> None:
    """Add a loss over the last axis: cross entropy, or a loss against values of the same shape."""
    x, rng = d.floating(2), d.rng
    if x.shape[-1] == 0:
        return
    if rng.random() < 0.5:
        y = places(d, x.shape[-1], list(x.shape[:-1]))
        n = x.shape[-1]
        d.one(
            f"(ops.logsumexp({{0}}, -1) - ({{0}} * ops.one_hot({{1}}, {n})).sum(-1)).mean()", x, y
        )
        return
    y = d.leaf(x.shape, x.dtype, 0, 1, "input")
    text = rng.choice([
        "(({0} - {1}) * ({0} - {1})).mean()", "ops.abs({0} - {1}).sum(-1)",
        "ops.where(ops.abs({0} - {1}) < 1, ({0} - {1}) ** 2 / 2, ops.abs({0} - {1}) - 0.5).mean()",
        "(ops.relu({0}) - {0} * {1} + ops.log(1 + ops.exp(-ops.abs({0})))).mean(-1)",
        "-({1} * ops.logsoftmax({0})).sum(-1).mean()",
    ])  # fmt: skip
    d.one(text, x, y)


# Views of one tensor, combined with each other.


def _view(d: Drawer, x: Made) -> str:
    """Return a view: with unit axes, with split or permuted axes, a slice, or the tensor itself."""
    rng, shape = d.rng, x.shape
    kind = rng.choice(["units", "units", "units", "reshape", "permute", "slice", "same"])
    if kind == "units":
        return _with_units(d, len(shape))
    if kind == "reshape":
        parts = [f for n in shape for f in _cut(d, n)]
        for _ in range(rng.choice([0, 0, 1])):
            parts.insert(rng.randint(0, len(parts)), 1)
        return f"{{0}}.reshape{tuple(parts)}"
    if kind == "permute":
        return f"ops.permute({{0}}, {tuple(rng.sample(range(len(shape)), len(shape)))})"
    return f"{{0}}[{d.key(shape)}]" if kind == "slice" else "{0}"


def _with_units(d: Drawer, rank: int) -> str:
    parts = [":"] * rank
    for _ in range(d.rng.choice([1, 1, 2])):
        parts.insert(d.rng.randint(0, len(parts)), "None")
    return f"{{0}}[{', '.join(parts)}]"


def _cut(d: Drawer, n: int) -> list[int]:
    factors = [f for f in range(2, n) if n % f == 0]
    if not factors or d.rng.random() < 0.5:
        return [n]
    factor = d.rng.choice(factors)
    return [factor, n // factor]


def views(d: Drawer) -> None:
    """Add views of one tensor or two, combined with each other and with leaves."""
    rng, first = d.rng, d.floating(1)
    x = first
    for _ in range(rng.randint(1, 3)):
        one = d.one(_view(d, x), x)
        other = d.one(_view(d, first), first) if rng.random() < 0.7 else d.like(one)
        if rng.random() < 0.2:  # its rank is higher than the view's
            other = d.leaf([1] * len(one.shape) + [one.shape[-1] if one.shape else 1], one.dtype)
        pair = (one, other) if rng.random() < 0.5 else (other, one)
        made = d.add(rng.choice(_POINTWISE), *pair)
        if made and is_floating(made[0].dtype):
            x = made[0]
    if x is not first and x.shape:
        d.one(rng.choice([f"{{0}}.sum({d.axis(x.shape)})", "ops.relu({0})", "{0} * 2"]), x)


def pairs(d: Drawer) -> None:
    """Combine every row with every other row, or with the rows of another tensor."""
    x, rng = _rows(d), d.rng
    other = x if rng.random() < 0.6 else d.leaf(x.shape, x.dtype)
    *lead, n, terms = x.shape
    one, two = rng.choice([
        ("{0}[..., :, None, :]", "{1}[..., None, :, :]"),
        (f"{{0}}.reshape{(*lead, n, 1, terms)}", f"{{1}}.reshape{(*lead, 1, n, terms)}"),
        ("ops.unsqueeze({0}, -2)", "ops.unsqueeze({1}, -3)"),
        ("{0}[..., None]", "ops.transpose({1})[..., None, :, :]"),
    ])  # fmt: skip
    between = d.one(rng.choice(_POINTWISE).replace("{0}", one).replace("{1}", two), x, other)
    last = rng.choice(["sum", "mean", "max", "all"])
    if is_floating(between.dtype) and last != "all":
        d.one(f"ops.{last.replace('sum', 'summation')}({{0}}, {rng.choice([-1, -2])})", between)


# Reductions whose result is combined with the reduced tensor.


def _axes(d: Drawer, x: Made) -> str:
    return d.axes(x.shape) if d.rng.random() < 0.5 else "-1"


def standardised(d: Drawer) -> None:
    """Add a hand-written norm over any axes, scaled and shifted."""
    x, rng = _rows(d, d.rng.choice([2, 3])), d.rng
    axes = _axes(d, x)
    if rng.random() < 0.3:  # root mean square
        x = d.one(f"{{0}} * ops.rsqrt(ops.mean({{0}} * {{0}}, {axes}, True) + 1e-3)", x)
    else:
        centred = d.one(f"{{0}} - ops.mean({{0}}, {axes}, True)", x)
        text = f"ops.mean({{0}} * {{0}}, {axes}, True)"
        text = text if rng.random() < 0.5 else f"ops.var({{0}}, {axes}, True)"
        x = d.one(f"{{0}} / ops.sqrt({text} + 1e-3)", centred)
    if rng.random() < 0.7:
        x = d.one("{0} * {1}", x, d.like(x, x.dtype))
        d.one("{0} + {1}", x, d.like(x, x.dtype))


def weighed(d: Drawer) -> None:
    """Add a hand-written softmax over any axes, masked or not, and a sum weighted by it."""
    x, rng = _rows(d), d.rng
    axes = _axes(d, x)
    e = d.one(f"ops.exp({{0}} - ops.max({{0}}, {axes}, True))", x)
    if rng.random() < 0.4:
        e = d.one("{0} * {1}", e, d.leaf(x.shape[-1:], "bool"))
        weights = d.one(f"{{0}} / (ops.summation({{0}}, {axes}, True) + 1e-2)", e)
    else:
        weights = d.one(f"{{0}} / ops.summation({{0}}, {axes}, True)", e)
    if rng.random() < 0.6:
        d.one(f"ops.summation({{0}} * {{1}}, {axes}, {rng.random() < 0.5})", weights, d.like(x))


def similarity(d: Drawer) -> None:
    """Add the matmul of unit-length rows with their transpose."""
    x = _rows(d)
    rows = d.one("{0} / ops.sqrt(({0} * {0}).sum(-1, True) + 1e-3)", x)
    products = d.one("{0} @ ops.transpose({0})", rows)
    if d.rng.random() < 0.5:
        d.one("ops.softmax({0} * 5)", products)


# Parts of a tensor, combined with each other.


def shifted(d: Drawer) -> None:
    """Combine a tensor with its neighbours along an axis: differences, window sums, rotations."""
    x, rng = _rows(d, d.rng.choice([2, 3])), d.rng
    axis = rng.randrange(len(x.shape))
    n, before = x.shape[axis], ":, " * axis
    by = rng.randint(0, least(n))
    a, b = f"{{0}}[{before}{by}:]", f"{{0}}[{before}:{n - by}]"
    texts = [f"{a} - {b}", f"{a} * {b}", f"ops.concat([{a}, {b}], {axis})"]
    texts += [f"ops.concat([{{0}}[{before}{by}:], {{0}}[{before}:{by}]], {axis})"] * 2
    width = [(0, 0)] * len(x.shape)
    width[axis] = (by, 0)
    texts += [f"{{0}} + ops.pad({{0}}, {tuple(width)})[{before}:{n}]"] * 2
    made = d.one(rng.choice(texts), x)
    d.one(rng.choice(ACTIVATIONS[1:]), made)


def gated(d: Drawer) -> None:
    """Multiply one part of the last axis by another."""
    x, rng = _rows(d), d.rng
    x = _linear(d, x, rng.choice([2, 6, 8, 16, 34]))
    half = x.shape[-1] // 2
    a, b = f"{{0}}[..., :{half}]", f"{{0}}[..., {half}:]"
    text = f"{a} * ops.{rng.choice(['sigmoid', 'silu', 'gelu', 'tanh'])}({b})"
    x = _linear(d, d.one(text, x), rng.choice([1, 4, 5]))


def experts(d: Drawer) -> None:
    """Add a few linear layers of one input, weighted by a gate that reads the same input."""
    x, rng = _rows(d, 2), d.rng
    many, width = rng.choice([2, 3]), rng.choice([1, 4, 16])
    weights = d.one("ops.softmax({0})", _linear(d, x, many))
    made = [_linear(d, x, width, rng.choice(ACTIVATIONS)) for _ in range(many)]
    listed = ", ".join(f"{{{i + 1}}}" for i in range(many))
    d.one(f"({{0}}[:, :, None] * ops.stack([{listed}], 1)).sum(1)", weights, *made)


def patches(d: Drawer) -> None:
    """Pool the blocks of an image, stack them or use them as rows of a matmul; or repeat pixels."""
    x, rng = image(d), d.rng
    batch, channels, h, w = x.shape
    i, j = (rng.choice([f for f in range(1, 5) if n % f == 0]) for n in (h, w))
    blocks = f"{{0}}.reshape({batch}, {channels}, {h // i}, {i}, {w // j}, {j})"
    kind = rng.choice(["pooled", "repeated", "rows", "deep"])
    if kind == "pooled":
        d.one(f"ops.{rng.choice(['mean', 'max', 'summation'])}({blocks}, (3, 5))", x)
    elif kind == "repeated":
        wide = (batch, channels, h, 2, w, 3)
        text = f"ops.broadcast_to({{0}}.reshape({batch}, {channels}, {h}, 1, {w}, 1), {wide})"
        d.one(f"{text}.reshape({batch}, {channels}, {2 * h}, {3 * w})", x)
    elif kind == "rows":
        rows = f"ops.permute({blocks}, (0, 2, 4, 1, 3, 5))"
        shape = (batch, (h // i) * (w // j), channels * i * j)
        _linear(d, d.one(f"{rows}.reshape{shape}", x), rng.choice([1, 4, 16]))
    else:
        parts = ", ".join(f"{{0}}[:, :, {a}::{i}, {b}::{j}]" for a in range(i) for b in range(j))
        d.one(f"ops.concat([{parts}], 1)", x)


def looked_up(d: Drawer) -> None:
    """Look up rows of a table, add positions, and take the mean of the unmasked ones."""
    rng = d.rng
    many, width = rng.choice([1, 5, 20]), rng.choice([1, 4, 8])
    shape = [d.extent([n]) for n in rng.choice([[3], [2, 4]])]
    table = d.leaf([many, width], d.float_dtype(), kind="parameter")
    rows = d.one("ops.embedding({0}, {1})", places(d, many, shape), table)
    position = d.leaf([shape[-1], width], table.dtype, kind="parameter")
    rows = d.one("{0} + {1}", rows, position)
    mask = d.leaf(shape, "bool", kind="input")
    d.one("({0} * {1}[..., None]).sum(-2) / ({1}.sum(-1, True) + 1)", rows, mask)


def step(d: Drawer) -> None:
    """Add an optimiser's step: a moment, and a parameter updated by it."""
    p = d.leaf(d.shape(), d.float_dtype(), kind="parameter")
    g, m = (d.like(p, p.dtype) for _ in "gm")
    moment = d.one("0.9 * {0} + 0.1 * {1}", m, g)
    square = d.one("0.99 * {0} * {0} + 0.01 * {1} * {1}", m, g)
    d.one("{0} - 0.1 * {1} / (ops.sqrt({2}) + 1e-3)", p, moment, square)


LAYERS: tuple[Callable[[Drawer], Any], ...] = (
    mlp, attention, recurrence, cells, loss, standardised, weighed, similarity, gated, experts,
    looked_up, step, wide_convolution, upsampling, resized, products,
    *(convolutions, patches, pairs, shifted, views) * 2, views,
)  # fmt: skip
