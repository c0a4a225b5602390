"""PyTorch layers and expressions as users write them; a random program applies each as a whole.

`recipes` picks from `IDIOMS`.
"""

from __future__ import annotations

from collections.abc import Sequence

from needle_tvm.check.campaign.torch.draw import Drawer, Made, Recipe, size_of
from needle_tvm.check.campaign.torch.operators import ACTIVATIONS, filled

_POINTWISE = (
    "{0} - {1}", "{0} + {1}", "{0} * {1}", "torch.maximum({0}, {1})", "({0} - {1}).pow(2)",
    "({0} - {1}).abs()", "torch.where({0} > {1}, {0}, {1})", "{0} <= {1}", "{0} / ({1}.abs() + 1)",
    "(-({0} - {1}) ** 2).exp()", "{0}.minimum({1})",
)  # fmt: skip

_MOST_PAIRS = 1 << 24  # most elements when all pairs are combined


def _rows(d: Drawer, rank: int) -> Made:
    """Return a tensor of this rank and the program's dtype: an existing one, or an input."""
    found = d.pick(lambda v: v.dtype == d.dtype and len(v.shape) == rank and 0 not in v.shape)
    if found is not None and d.rng.random() < 0.7:
        return found
    choices = ([1, 2, 3, 4], [1, 2, 3], [1, 3, 4, 7], [1, 2, 4, 6, 8, 16])
    return d.input([d.rng.choice(c) for c in choices[-rank:]])


def _linear(d: Drawer, x: Made | str, inputs: int, outputs: int) -> str:
    bias = d.rng.random() < 0.7
    return f"{d.module(f'nn.Linear({inputs}, {outputs}, bias={bias})')}({x})"


def views(d: Drawer) -> None:
    """Add views of one tensor or two, combined with each other and with other values."""
    rng, first = d.rng, d.floating(1, 2, 3)
    x = first
    for _ in range(rng.randint(1, 3)):
        other = first if rng.random() < 0.8 else d.floating(1, 2, 3)
        if size_of(x.shape) * size_of(other.shape) > _MOST_PAIRS:
            return
        text = rng.choice(_POINTWISE).replace("{0}", _view(d, x)).replace("{1}", _view(d, other))
        made = d.step(text)
        if made and made[0].dtype == d.dtype:
            x = made[0]
    if x is not first and x.shape and rng.random() < 0.6:
        d.step(f"{x}.{rng.choice(['sum', 'mean', 'amax', 'softmax'])}({d.axis(x)})")


def _view(d: Drawer, x: Made) -> str:
    """Return a view: with unit axes, with split or permuted axes, a slice, or the tensor itself."""
    rng, shape = d.rng, list(x.shape)
    rank = len(shape)
    parts = [":"] * rank
    for _ in range(rng.choice([1, 1, 2])):
        parts.insert(rng.randint(0, len(parts)), "None")
    cut = [f for n in shape for f in ([2, n // 2] if n % 2 == 0 and rng.random() < 0.5 else [n])]
    cut.insert(rng.randint(0, len(cut)), 1)
    options = [f"{x}[{', '.join(parts)}]"] * 3 + [f"{x}.reshape({cut})", f"{x}.view({cut})", str(x)]
    options += [f"{x}.unsqueeze({rng.randint(-rank - 1, rank)})"] * 2
    if rank > 1:
        options += [f"{x}.mT", f"{x}.permute({rng.sample(range(rank), rank)})", f"{x}[..., :1]"]
    return rng.choice(options)


def pairs(d: Drawer) -> None:
    """Combine every row with every other row, or with the rows of another tensor."""
    x, rng = _rows(d, d.rng.choice([2, 3])), d.rng
    other = x if rng.random() < 0.6 else d.parameter(x.shape)
    if size_of(x.shape) * size_of(other.shape) > _MOST_PAIRS:
        return
    lead = ":, " * (len(x.shape) - 2)
    one, two = rng.choice([
        ("{0}.unsqueeze(-2)", "{1}.unsqueeze(-3)"), ("{0}[..., None, :]", "{1}[..., None, :, :]"),
        (f"{{0}}[{lead}:, None]", f"{{1}}[{lead}None]"),
    ])  # fmt: skip
    text = rng.choice(_POINTWISE).replace("{0}", one).replace("{1}", two)
    made = d.step(text.format(x, other))
    if made and made[0].dtype == d.dtype and rng.random() < 0.8:
        last = rng.choice([".sum(-1)", ".norm(dim=-1)", ".mean(-1).softmax(-1)", ".sum(-1).min(-1)[0]",
                           ".amax(-2)", ".sum(-1).sqrt()", ".sum(-1).argmin(-1)"])  # fmt: skip
        d.step(f"{made[0]}{'.abs()' if 'sqrt' in last else ''}{last}")


def by_hand(d: Drawer) -> None:
    """Add hand-written norms, softmax and losses, over any axes."""
    x, rng = _rows(d, d.rng.choice([2, 2, 3, 4])), d.rng
    rank = len(x.shape)
    dims = rng.sample(range(-rank, 0), rng.randint(1, rank)) if rng.random() < 0.4 else -1
    scale = d.parameter(x.shape[-1:])
    y = d.input(x.shape, None, 0.05, 1)
    text = rng.choice([
        f"({{0}} - {{0}}.mean({dims}, keepdim=True)) / ({{0}}.var({dims}, unbiased=False, keepdim=True) + 1e-3).sqrt() * {scale}",
        f"{{0}} * torch.rsqrt({{0}}.pow(2).mean({dims}, keepdim=True) + 1e-3) * (1 + {scale})",
        f"({{0}} - {{0}}.amax({dims}, keepdim=True)).exp() / ({{0}} - {{0}}.amax({dims}, keepdim=True)).exp().sum({dims}, keepdim=True)",
        f"{{0}} / {{0}}.norm(dim={dims}, keepdim=True).clamp(min=1e-2)",
        f"F.normalize({{0}}, dim=-1) @ F.normalize({{0}} + {scale}, dim=-1).mT",
        "F.cosine_similarity({0}[..., None, :], {0}[..., None, :, :], dim=-1)",
        f"({{0}} * {y}).sum({dims}, keepdim=True) / {y}.sum({dims}, keepdim=True)",
        f"F.binary_cross_entropy_with_logits({{0}}, {y})", f"F.huber_loss({{0}}, {y})",
        f"F.kl_div(F.log_softmax({{0}}, -1), {y}, reduction='batchmean')",
        f"-(F.log_softmax({{0}}, -1) * {y}).sum(-1).mean()", f"F.gaussian_nll_loss({{0}}, {y}, {y})",
        f"torch.std_mean({{0}}, {dims})[0] + torch.var_mean({{0}}, {dims})[1]",
    ])  # fmt: skip
    d.step(text.replace("{0}", str(x)))


def shifted(d: Drawer) -> None:
    """Combine a tensor with its neighbours along an axis."""
    x, rng = _rows(d, d.rng.choice([2, 3])), d.rng
    n = x.shape[-1]
    by = rng.randint(0, n)
    a, b = f"{x}[..., {by}:]", f"{x}[..., :{n - by}]"
    rest = f"torch.zeros_like({x}[..., :{by}])"
    text = rng.choice([
        f"{a} - {b}", f"torch.cat([{rest}, {b}], -1) + {x}", f"torch.cat([-{a}, {x}[..., :{by}]], -1) * {x}",
        f"F.pad({x}, ({by}, 0))[..., :{n}] - {x}", f"F.pad({x}, (1, 1)).unfold(-1, 3, 1).mean(-1)",
        f"torch.roll({x}, {by}, -1) * {x}", f"F.pad({x}[:, {min(1, x.shape[1])}:], ({by}, -{by})) * 0.5",
        f"{x}.cumsum(-1) / torch.arange(1, {n + 1})", f"{x}.flip(-1).cumsum(-1).flip(-1)",
        f"torch.stack([{x}[..., 0::2].sum(-1), {x}[..., 1::2].sum(-1)], -1)",
    ])  # fmt: skip
    d.step(text)


def gated(d: Drawer) -> None:
    """Multiply two halves of a linear layer, or weight several layers by a gate."""
    x, rng = _rows(d, d.rng.choice([2, 3])), d.rng
    width, out = rng.choice([1, 3, 8]), rng.choice([1, 4, 5])
    if rng.random() < 0.6:
        made = d.step(f"{_linear(d, x, x.shape[-1], 2 * width)}.chunk(2, -1)", 2)
        if made:
            a, b = made
            gate = filled(d, rng.choice(ACTIVATIONS), b)
            d.step(_linear(d, f"({a} * {gate})", width, out))
        return
    weights = f"{_linear(d, x, x.shape[-1], 3)}.softmax(-1)"
    each = ", ".join(_linear(d, x, x.shape[-1], out) for _ in range(3))
    text = rng.choice([
        f"({weights}.unsqueeze(-1) * torch.stack([{each}], -2)).sum(-2)",
        f"torch.einsum('...e,...eo->...o', {weights}, torch.stack([{each}], -2))",
        f"torch.stack([{each}], -1) @ {weights}[..., None]",
    ])  # fmt: skip
    d.step(text)


def cells(d: Drawer) -> None:
    """Add a hand-written, maybe gated recurrence: matmuls of each input and the previous state."""
    x, rng = _rows(d, 3), d.rng
    steps, hidden = x.shape[1], rng.choice([1, 3, 8])
    into, back, gate = (
        d.module(f"nn.Linear({n}, {hidden}, bias={bias})")
        for n, bias in ((x.shape[-1], True), (hidden, False), (hidden, True))
    )
    h, states = str(d.parameter([rng.choice([1, x.shape[0]]), hidden])), []
    for t in range(min(steps, rng.randint(1, 3))):
        new = f"torch.tanh({into}({x}[:, {t}]) + {back}({h}))"
        if rng.random() < 0.4:
            new = f"torch.lerp({new}, {h}, torch.sigmoid({gate}({h})))"
        made = d.step(new)
        if not made:
            return
        h = made[0].name
        states.append(h)
    d.step(f"torch.stack([{', '.join(states)}], {rng.choice([0, 1])})")


def heads(d: Drawer) -> None:
    """Add hand-written attention.

    View and transpose split the heads. There may be fewer key heads than query heads, and a mask, a
    bias or a rotary embedding.
    """
    x, rng = _rows(d, 3), d.rng
    batch, length, size = x.shape
    groups, per_group, width = rng.choice([1, 2]), rng.choice([1, 2]), rng.choice([2, 4, 8])
    many = groups * per_group

    def parts(heads: int) -> str:
        made = f"{_linear(d, x, size, heads * width)}.view({batch}, {length}, {heads}, {width})"
        return f"{made}.transpose(1, 2)"

    made = [d.step(parts(n)) for n in (many, groups, groups)]
    if not all(made):
        return
    q, k, v = (values[0].name for values in made if values)
    if rng.random() < 0.3:
        half = width // 2
        sin, cos = (d.parameter([length, width]) for _ in "sc")
        q, k = (
            f"({t} * {cos} + torch.cat([-{t}[..., {half}:], {t}[..., :{half}]], -1) * {sin})"
            for t in (q, k)
        )
    if per_group > 1:
        k, v = (
            rng.choice([
                f"{t}.repeat_interleave({per_group}, 1)",
                f"{t}[:, :, None].expand(-1, -1, {per_group}, -1, -1).reshape({batch}, {many}, {length}, {width})",
            ])
            for t in (k, v)
        )  # fmt: skip
    scores = d.step(rng.choice([
        f"{q} @ {k}.transpose(-2, -1) * {width**-0.5:.6g}", f"torch.einsum('bhid,bhjd->bhij', {q}, {k}) / {width**0.5:.6g}",
    ]))  # fmt: skip
    if not scores:
        return
    seen = rng.choice([
        "{0}", f"{{0}} + {d.parameter([many, length, length])}",
        f"{{0}}.masked_fill(torch.ones({length}, {length}, dtype=torch.bool).triu(1), float('-inf'))",
        f"{{0}}.masked_fill(torch.tril(torch.ones({length}, {length})) == 0, float('-inf'))",
        f"{{0}} + torch.arange({length}).sub(torch.arange({length})[:, None]) * {{0}}.new_tensor(0.1)",
    ]).replace("{0}", str(scores[0]))  # fmt: skip
    out = rng.choice([
        f"({seen}).softmax(-1) @ {v}", f"torch.einsum('bhij,bhjd->bhid', ({seen}).softmax(-1), {v})",
        f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal={rng.random() < 0.5})",
    ])  # fmt: skip
    d.step(
        _linear(d, f"({out}).transpose(1, 2).reshape({batch}, {length}, -1)", many * width, size)
        + f" + {x}"
    )


def patches(d: Drawer) -> None:
    """Pool, repeat or shift the blocks of an image, or use them as rows of a matmul."""
    x, rng = _rows(d, 4), d.rng
    b, c, h, w = x.shape
    i, j = (rng.choice([f for f in range(1, 5) if n % f == 0]) for n in (h, w))
    blocks = f"{x}.reshape({b}, {c}, {h // i}, {i}, {w // j}, {j})"
    text = rng.choice([
        f"{blocks}.mean((3, 5))", f"{blocks}.amax(5).amax(3)", f"{blocks}.permute(0, 2, 4, 3, 5, 1).flatten(0, 2)",
        f"{x}[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 3).reshape({b}, {c}, {2 * h}, {3 * w})",
        f"{blocks}.permute(0, 2, 4, 1, 3, 5).reshape({b}, -1, {c * i * j}) @ {d.parameter([c * i * j, 5])}",
        f"torch.roll({x}, ({-(i // 2)}, {-(j // 2)}), (2, 3)).unfold(2, {i}, {i}).unfold(3, {j}, {j})",
        f"torch.cat([{', '.join(f'{x}[:, :, {p}::{i}, {q}::{j}]' for p in range(i) for q in range(j))}], 1)",
        f"{x} * torch.sigmoid({_linear(d, f'{x}.mean((2, 3))', c, c)})[:, :, None, None]",
        f"{_linear(d, f'{x}.permute(0, 2, 3, 1)', c, 3)}.permute(0, 3, 1, 2)",
        f"F.unfold({x}, ({min(h, 2)}, {min(w, 3)})).transpose(1, 2)", f"{x}.flatten(2).transpose(1, 2)",
        f"torch.cat([{x}.mean(1, keepdim=True), {x}.amax(1, keepdim=True)], 1)",
    ])  # fmt: skip
    d.step(text)


def decoded(d: Drawer) -> None:
    """Enlarge a small image by transposed convolutions, with norms and activations."""
    rng, channels = d.rng, d.rng.choice([1, 3, 8, 16])
    x: Made | str = d.input([rng.choice([1, 2]), channels, *rng.choice([(1, 1), (2, 1), (3, 4)])])
    for _ in range(rng.choice([1, 1, 2])):
        kernel, outputs = rng.choice([(2, 2), (3, 3), (4, 4), (3, 2)]), rng.choice([1, 4, 8])
        stride, padding = rng.choice([1, 2, 2, 3]), rng.choice([0, 0, 1])
        m = f"nn.ConvTranspose2d({channels}, {outputs}, {kernel}, {stride}, {padding}, {rng.randrange(stride)})"
        made = d.step(f"{d.module(m)}({x})")
        if not made:
            return
        x, channels = made[0], outputs
        if rng.random() < 0.5:
            x = f"{d.module(f'nn.BatchNorm2d({channels})')}({x})"
        made = d.step(rng.choice([f"F.relu({x})", f"torch.tanh({x})", f"F.silu({x})"]))
        if made:
            x = made[0]


def looked_up(d: Drawer) -> None:
    """Look up rows of a table and add positions; take the unmasked mean, or a loss over classes."""
    rng = d.rng
    rows, width, shape = rng.choice([1, 5, 20]), rng.choice([1, 4, 8]), rng.choice([[3], [2, 4]])
    ids = d.input(shape, "torch.int64", 0, rows)
    n = shape[-1]
    made = d.step(
        f"{d.module(f'nn.Embedding({rows}, {width})')}({ids}) + {d.module(f'nn.Embedding({n}, {width})')}(torch.arange({n}))"
    )
    if not made:
        return
    mask, classes = d.input(shape, "torch.bool"), d.input(shape, "torch.int64", 0, width)
    text = rng.choice([
        f"({{0}} * {mask}[..., None]).sum(-2) / {mask}.sum(-1, keepdim=True).clamp(min=1)",
        f"{{0}}.masked_fill(~{mask}[..., None], 0).amax(-2)", f"{{0}} @ {d.parameter([rows, width])}.T",
        f"{{0}}.log_softmax(-1).gather(-1, {classes}[..., None]).squeeze(-1)",
        f"F.cross_entropy({{0}}.reshape(-1, {width}), {classes}.reshape(-1), reduction='none')",
        f"torch.where({mask}[..., None], {{0}}, {{0}}.mean(-1, keepdim=True))",
    ])  # fmt: skip
    d.step(text.replace("{0}", str(made[0])))


IDIOMS: Sequence[Recipe] = (
    views,
    views,
    pairs,
    by_hand,
    shifted,
    gated,
    cells,
    heads,
    patches,
    decoded,
    looked_up,
)
