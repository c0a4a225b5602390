"""Recipes of random `torch.nn` modules: each adds one part, or nothing if it does not fit.

`torch.programs` calls `draw`. The recipes leave out operators that needle refuses by name: sparse
tensors, complex results, quantised modules, unpooling, fractional pooling and random operators.
They also leave out shapes that depend on values (nonzero, masked_select, unique), which compiled
code does not support.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle_tvm.check.campaign.torch.draw import Drawer, Made, Recipes, TorchProgram
from needle_tvm.check.campaign.torch.idioms import IDIOMS
from needle_tvm.check.campaign.torch.operators import (
    ACTIVATIONS,
    activation,
    binary,
    cast,
    chosen,
    comparison,
    filled,
    function,
    indexing,
    integers,
    joined,
    mixed,
    parts,
    product,
    reduction,
    view,
)


def draw(seed: int) -> TorchProgram:
    """Return the program of a seed."""
    return Drawer(seed).program(_RECIPES)


def linear(d: Drawer) -> None:
    x, rng = d.floating(1, 2, 3, 4), d.rng
    out, bias = rng.choice([1, 3, 4, 10, 16, 17, 32, 64]), rng.random() < 0.8
    if rng.random() < 0.15:
        other = (
            d.pick(lambda v: v.dtype == x.dtype and v.shape[:-1] == x.shape[:-1] and v.shape != ())
            or x
        )
        m = d.module(f"nn.Bilinear({x.shape[-1]}, {other.shape[-1]}, {min(out, 5)}, bias={bias})")
        d.step(f"{m}({x}, {other})")
        return
    m = d.module(f"nn.Linear({x.shape[-1]}, {out}, bias={bias})")
    made = d.step(f"{m}({x})")
    if made and rng.random() < 0.5:
        d.step(filled(d, rng.choice(ACTIVATIONS), made[0]))


def image(d: Drawer, dims: int) -> Made:
    """Return a tensor of shape (batch, channels, ...) or, rarely, (channels, ...)."""
    ranks = (dims + 2, dims + 2, dims + 1) if d.rng.random() < 0.15 else (dims + 2,)

    def fits(value: Made) -> bool:
        return value.dtype == d.dtype and len(value.shape) in ranks and 0 not in value.shape

    if d.values and fits(d.values[-1]) and d.rng.random() < 0.4:
        return d.values[-1]  # so that layers follow one another
    found = d.pick(fits)
    if found is not None and d.rng.random() < 0.8:
        return found
    rng = d.rng
    most = {1: 40, 2: 14, 3: 6}[dims]
    shape = [rng.choice([1, 1, 2, 3]), rng.choice([1, 2, 3, 4, 6, 8])]
    shape += [rng.randint(1, most) for _ in range(dims)]
    return d.input(shape[-rng.choice(ranks) :])


def convolution(d: Drawer) -> None:
    rng = d.rng
    dims = rng.choice([1, 1, 2, 2, 2, 2, 3])
    x = image(d, dims)
    channels = x.shape[-dims - 1]
    groups = rng.choice([g for g in {1, 2, channels} if channels % g == 0] + [1])
    out = groups * rng.choice([1, 2, 3, 8])

    def each(choices: Sequence[int]) -> Any:
        if rng.random() < 0.6:
            return rng.choice(choices)
        return tuple(rng.choice(choices) for _ in range(dims))

    kernel, bias = each([1, 2, 3, 3, 3, 5]), rng.random() < 0.7
    common = (
        f"{channels}, {out}, {kernel}, groups={groups}, bias={bias}, dilation={each([1, 1, 1, 2])}"
    )
    if rng.random() < 0.25:
        stride = rng.choice([1, 2, 2, 3])
        added = rng.choice([0, 0, *range(stride)])
        m = f"nn.ConvTranspose{dims}d({common}, stride={stride}, padding={each([0, 1])}, output_padding={added})"
    elif rng.random() < 0.1:
        m = f"nn.Conv{dims}d({common}, padding='{rng.choice(['same', 'valid'])}')"
    else:
        mode = rng.choice(["zeros"] * 8 + ["reflect", "replicate", "circular"])
        m = f"nn.Conv{dims}d({common}, stride={each([1, 1, 2, 3])}, padding={each([0, 1, 1, 2])}, padding_mode='{mode}')"
    try:
        made = d.step(f"{d.module(m)}({x})")
    except (ValueError, RuntimeError):  # the layer's constructor may refuse
        d.members.pop()
        return
    if made and rng.random() < 0.5:
        normalization(d, made[0])
    if made and rng.random() < 0.5:
        d.step(filled(d, rng.choice(ACTIVATIONS), d.values[-1]))


def pooling(d: Drawer) -> None:
    rng = d.rng
    dims = rng.choice([1, 2, 2, 2])
    x = image(d, dims)
    kernel, stride = rng.choice([1, 2, 2, 3]), rng.choice([1, 2, 2, 3])
    pad, ceil = rng.randint(0, kernel // 2), rng.random() < 0.3
    sizes = [rng.choice([1, 1, 2, 3, 5, 9, 25]) for _ in range(dims)]  # some exceed a vector
    text = rng.choice(
        [
            f"nn.MaxPool{dims}d({kernel}, {stride}, {pad}, dilation={rng.choice([1, 1, 2])}, ceil_mode={ceil})",
            f"nn.AvgPool{dims}d({kernel}, {stride}, {pad}, ceil_mode={ceil}, count_include_pad={rng.random() < 0.5})",
            f"nn.AdaptiveAvgPool{dims}d({sizes if dims > 1 else sizes[0]})",
            f"nn.AdaptiveMaxPool{dims}d({1 if rng.random() < 0.5 else sizes if dims > 1 else sizes[0]})",
            f"nn.LPPool{dims}d(2, {kernel}, {stride})",
        ]
    )
    d.step(f"{d.module(text)}({x})")


def normalization(d: Drawer, x: Made | None = None) -> None:
    rng = d.rng
    x = x or d.floating(2, 3, 4)
    rank, shape = len(x.shape), x.shape
    if rank < 2 or 0 in shape:
        return
    affine, channels = rng.random() < 0.8, shape[1]
    last = list(shape[-rng.randint(1, min(3, rank)) :])
    options = [f"nn.LayerNorm({last}, elementwise_affine={affine})", f"nn.RMSNorm({last[-1:]})"]
    groups = rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
    options.append(f"nn.GroupNorm({groups}, {channels}, affine={affine})")
    names = {2: ["1d"], 3: ["1d"], 4: ["2d"], 5: ["3d"]}[rank]
    options += [f"nn.BatchNorm{name}({channels}, affine={affine})" for name in names] * 2
    if rank > 2:
        options.append(
            f"nn.InstanceNorm{names[0]}({channels}, affine={affine}, track_running_stats={rng.random() < 0.3})"
        )
    if rng.random() < 0.1:
        options = [f"nn.BatchNorm{names[0]}({channels}, track_running_stats=False)"]
    d.step(f"{d.module(rng.choice(options))}({x})")


def embedding(d: Drawer) -> None:
    rng = d.rng
    rows, width = rng.choice([1, 3, 10, 50]), rng.choice([1, 3, 8, 16])
    ids = d.input(
        d.shape(rng.choice([1, 2, 2])), rng.choice(["torch.int64", "torch.int32"]), 0, rows
    )
    if rng.random() < 0.25:
        mode = rng.choice(["sum", "mean", "max"])
        d.step(f"{d.module(f'nn.EmbeddingBag({rows}, {width}, mode={mode!r})')}({ids})")
        return
    padding = f", padding_idx={rng.randint(0, rows - 1)}" if rng.random() < 0.3 else ""
    d.step(f"{d.module(f'nn.Embedding({rows}, {width}{padding})')}({ids})")


def recurrent(d: Drawer) -> None:
    rng = d.rng
    kind = rng.choice(["LSTM", "LSTM", "GRU", "RNN"])
    width, hidden = rng.choice([1, 3, 8, 16]), rng.choice([1, 3, 16, 16, 64])
    layers, both, first = rng.choice([1, 1, 2]), rng.random() < 0.3, rng.random() < 0.5
    steps, batch = rng.choice([1, 2, 4, 6]), rng.choice([1, 1, 1, 2, 3])
    x = d.pick(
        lambda v: (
            v.dtype == d.dtype and len(v.shape) == 3 and 0 not in v.shape and max(v.shape[:2]) < 9
        )
    )
    if x is None or rng.random() < 0.5:
        shape = [batch, steps, width] if first else [steps, batch, width]
        x = d.input(shape[1:] if rng.random() < 0.1 else shape)
    options = f"{x.shape[-1]}, {hidden}, {layers}, batch_first={first}, bidirectional={both}"
    options += f", bias={rng.random() < 0.85}"
    if kind == "RNN" and rng.random() < 0.3:
        options += ", nonlinearity='relu'"
    if kind == "LSTM" and rng.random() < 0.1 and hidden > 3:
        options += ", proj_size=2"
    m = d.module(f"nn.{kind}({options})")
    state = ""
    if rng.random() < 0.25 and len(x.shape) == 3:
        n = x.shape[0 if first else 1]
        shape = [layers * (2 if both else 1), n, hidden]
        given = [str(d.input(shape)) for _ in range(2 if kind == "LSTM" else 1)]
        state = f", ({', '.join(given)})" if kind == "LSTM" else f", {given[0]}"
    call = f"{m}({x}{state})"
    what = rng.choice(["[0]", "[0]", "[1]", "both", "last"])
    if what == "last":
        d.step(f"{call}[0]{rng.choice(['[:, -1]', '[-1]', '[:, [-1, 0]]'])}")
    elif what == "both":
        d.step(call if kind != "LSTM" else f"{call}[1]", 2)
    else:
        h = "[1][0]" if kind == "LSTM" and what == "[1]" else what
        made = d.step(f"{call}{h}")
        if made and rng.random() < 0.5:
            d.step(f"{made[0]}{rng.choice(['[0]', '[-1]', '[:, -1]'])}")


def cell(d: Drawer) -> None:
    rng = d.rng
    kind, hidden = rng.choice(["LSTMCell", "GRUCell", "RNNCell"]), rng.choice([1, 3, 16, 32])
    x = d.floating(1, 2)
    m = d.module(f"nn.{kind}({x.shape[-1]}, {hidden})")
    made = d.step(f"{m}({x})", 2 if kind == "LSTMCell" else 1)
    if made and rng.random() < 0.6:
        given = ", ".join(value.name for value in made)
        d.step(f"{m}({x}, ({given}))" if len(made) > 1 else f"{m}({x}, {given})", len(made))


def attention(d: Drawer) -> None:
    rng = d.rng
    heads, width = rng.choice([1, 2, 4]), rng.choice([1, 4, 8])
    size, batch, length = heads * width, rng.choice([1, 2, 3]), rng.choice([1, 3, 7, 10])
    first = rng.random() < 0.6
    x = d.pick(
        lambda v: (
            v.dtype == d.dtype
            and len(v.shape) == 3
            and v.shape[-1] % heads == 0
            and 0 not in v.shape
        )
    )
    if x is None or rng.random() < 0.5:
        x = d.input([batch, length, size] if first else [length, batch, size])
    size = x.shape[-1]
    n, t = (x.shape[0], x.shape[1]) if first else (x.shape[1], x.shape[0])
    if rng.random() < 0.5:
        m = d.module(
            f"nn.MultiheadAttention({size}, {heads}, batch_first={first}, bias={rng.random() < 0.8})"
        )
        options = ""
        if rng.random() < 0.3:
            options += f", attn_mask=torch.triu(torch.ones({t}, {t}, dtype=torch.bool), 1)"
        if rng.random() < 0.2:
            mask = d.input([n, t], "torch.bool")
            options += f", key_padding_mask={mask} & (torch.arange({t}) > 0)"
        if rng.random() < 0.5:
            d.step(f"{m}({x}, {x}, {x}, need_weights=False{options})[0]")
        else:
            d.step(f"{m}({x}, {x}, {x}{options})", 2)
        return
    options = f"{size}, {heads}, {rng.choice([8, 16])}, dropout=0.0, batch_first={first}, norm_first={rng.random() < 0.5}"
    options += f", activation='{rng.choice(['relu', 'gelu'])}'"
    if rng.random() < 0.3:
        m = d.module(f"nn.TransformerDecoderLayer({options})")
        d.step(f"{m}({x}, {x})")
    else:
        m = d.module(f"nn.TransformerEncoderLayer({options})")
        d.step(f"{m}({x})")


def resized(d: Drawer) -> None:
    rng, x = d.rng, image(d, d.rng.choice([1, 2, 2, 2]))
    dims = len(x.shape) - 2
    if dims < 1:
        return
    size = [rng.choice([1, 2, 5, 8, 25]) for _ in range(dims)]
    modes = {1: ["linear"], 2: ["bilinear", "bicubic"]}.get(dims, [])
    mode = rng.choice(["nearest", "area", *modes])
    align = f", align_corners={rng.random() < 0.5}" if mode in modes else ""
    to = f"size={size}" if rng.random() < 0.6 else f"scale_factor={rng.choice([2, 2, 3, 0.5, 1.5])}"
    d.step(f"F.interpolate({x}, {to}, mode='{mode}'{align})")


def padded(d: Drawer) -> None:
    rng, x = d.rng, d.floating(1, 2, 3, 4)
    mode = rng.choice(["constant", "constant", "reflect", "replicate", "circular"])
    dims = rng.randint(1, len(x.shape))
    if mode != "constant":  # pads the last axes, after one or two others
        dims = max(1, len(x.shape) - rng.choice([1, 2]))
    low = -1 if mode == "constant" and rng.random() < 0.3 else 0
    amounts = tuple(rng.randint(low, 2) for _ in range(2 * dims))
    value = f", value={rng.choice([0.0, -1.5, 3.0])}" if mode == "constant" else ""
    d.step(f"F.pad({x}, {amounts}, mode='{mode}'{value})")


def sampled(d: Drawer) -> None:
    rng, x = d.rng, image(d, 2)
    if len(x.shape) != 4:
        return
    grid = d.input([x.shape[0], rng.randint(1, 5), rng.randint(1, 5), 2], None, -1.3, 1.3)
    mode, padding = (
        rng.choice(["bilinear", "bilinear", "nearest"]),
        rng.choice(["zeros", "border", "reflection"]),
    )
    d.step(
        f"F.grid_sample({x}, {grid}, mode='{mode}', padding_mode='{padding}', align_corners={rng.random() < 0.5})"
    )


def inplace(d: Drawer) -> None:
    """Add an in-place write to a copy, or an operator that is easily mistaken for one."""
    x, rng = d.floating(1, 2, 3), d.rng
    text = rng.choice(["{}.clone().add_(1)", "torch.relu_({}.clone())", "F.dropout({}, 0.5, training=False)",
                       "{}.clone().mul_({})", "{}.clone().fill_(0.5)", "{}.clone().zero_()", "{}.detach()",
                       "torch.zeros({shape}).to({dtype}) + {}", "torch.arange({n}).to({dtype}) * {}",
                       "torch.linspace(0, 1, {n}).to({dtype}) + {}", "torch.eye({n}, dtype={dtype}) @ {}.mT"])  # fmt: skip
    text = (
        text.replace("{shape}", str(list(x.shape)))
        .replace("{n}", str(x.shape[-1]))
        .replace("{dtype}", d.dtype)
    )
    d.step(filled(d, text, x))


_RECIPES: Recipes = (
    (IDIOMS, 20),
    ((linear,), 12),
    ((convolution,), 10),
    ((pooling, normalization), 10),
    ((recurrent, recurrent, cell), 7),
    ((attention,), 4),
    ((embedding,), 2),
    ((activation, function, binary, comparison), 20),
    ((integers, mixed, cast), 6),
    ((reduction,), 10),
    ((view, parts, joined), 14),
    ((indexing, chosen), 11),
    ((product,), 6),
    ((resized, padded, sampled), 5),
    ((inplace,), 2),
)
