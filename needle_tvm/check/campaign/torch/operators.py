"""PyTorch operators in random programs: elementwise, reductions, views, indexing, matmuls.

`recipes` draws these operators in addition to its layers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from needle_tvm.check.campaign.torch.draw import Drawer, Made, size_of

ACTIVATIONS = (
    "torch.relu({})", "F.gelu({})", "F.gelu({}, approximate='tanh')", "torch.tanh({})",
    "torch.sigmoid({})", "F.silu({})", "F.elu({})", "F.elu({}, alpha=0.5)", "F.selu({})",
    "F.celu({}, alpha=2.0)", "F.leaky_relu({}, 0.2)", "F.hardtanh({})", "F.hardtanh({}, -0.5, 2.0)",
    "F.relu6({})", "F.hardswish({})", "F.hardsigmoid({})", "F.softplus({})",
    "F.softplus({}, beta=2.0, threshold=1.0)", "F.mish({})", "F.logsigmoid({})", "F.softsign({})",
    "F.tanhshrink({})", "F.softshrink({})", "F.hardshrink({})", "F.threshold({}, 0.1, -3.0)",
)  # fmt: skip

_FUNCTIONS = (
    "torch.exp({})", "torch.log({}.abs() + 0.1)", "torch.sqrt({}.abs())", "torch.rsqrt({}.abs() + 0.1)",
    "torch.abs({})", "-{}", "torch.sin({})", "torch.cos({})", "torch.tan({} * 0.3)", "torch.erf({})",
    "torch.floor({})", "torch.ceil({})", "torch.round({})", "torch.trunc({})", "torch.sign({})",
    "torch.square({})", "torch.reciprocal({}.abs() + 0.2)", "torch.expm1({})",
    "torch.log1p({}.abs())", "torch.log2({}.abs() + 0.1)", "torch.log10({}.abs() + 0.1)",
    "torch.sinh({})", "torch.cosh({})", "torch.asin({}.clamp(-0.9, 0.9))", "torch.atan({})",
    "torch.acos({}.clamp(-0.9, 0.9))", "torch.asinh({})", "torch.acosh({}.abs() + 1.1)",
    "torch.atanh({}.clamp(-0.9, 0.9))", "torch.frac({})", "torch.exp2({})", "torch.isnan({})",
    "torch.isinf({})", "torch.isfinite({})", "torch.nan_to_num({})", "torch.logical_not({})",
    "{}.clone()", "torch.zeros_like({})", "torch.ones_like({})", "torch.full_like({}, 0.3)",
    "torch.signbit({}.nan_to_num())", "torch.deg2rad({})", "torch.sinc({})",
    "{}.pow(2)", "{} ** 3", "{} ** 0.5", "2.0 ** {}", "{} + 1", "1 - {}", "{} * -0.5", "{} / 3",
    "2 / ({}.abs() + 0.5)", "{} // 0.7", "{} % 0.7", "torch.fmod({}, 0.7)", "torch.remainder({}, -0.7)",
    "torch.add({}, 1.5, alpha=2)", "torch.rsub({}, 1.0)", "torch.round({}, decimals=1)",
    "torch.bucketize({}, torch.tensor([-1.0, 0.0, 0.5]))", "torch.xlogy({}, 2.0)",
    "torch.special.expit({})", "torch.logit({}.clamp(0.1, 0.9))", "torch.heaviside({}, {})",
    "torch.fft.rfft({}.float()).abs()", "{}.round().to(torch.int64)", "torch.rad2deg({} * 0.1)",
    "torch.searchsorted(torch.linspace(-1, 1, 5).to({0}.dtype), {0})",
    "torch.erfc({})", "torch.lgamma({}.abs() + 0.1)", "torch.digamma({}.abs() + 0.2)",
    "torch.erfinv({}.clamp(-0.9, 0.9))", "torch.special.i0e({})", "torch.special.i1({})",
    "torch.angle({})", "{0}.masked_scatter({0} > 0, {0} * 2)", "{0}.as_strided({0}.shape, {0}.stride())",
)  # fmt: skip

_COMPARED = (
    "{} > 0", "{} <= 0.5", "{} == 0", "{} != 1", "torch.where({} > 0, {}, 0.0)", "{}.clamp(-0.5, 0.5)",
    "{}.clamp(min=0.1)", "{}.clamp(max=0.1)", "{}.masked_fill({} > 0.5, -1.0)",
    "{}.masked_fill({} < 0, float('-inf')).softmax(-1).nan_to_num()", "torch.clamp_min({}, 0.2)",
)  # fmt: skip

_BINARY = (
    "{} + {}", "{} - {}", "{} * {}", "{} / ({}.abs() + 0.5)", "torch.maximum({}, {})",
    "torch.minimum({}, {})", "({}.abs() + 0.1) ** {}", "torch.where({} > 0, {}, {})",
    "{} > {}", "{} <= {}", "{} == {}", "{} != {}", "torch.atan2({}, {})", "torch.fmod({}, {}.abs() + 0.3)",
    "torch.remainder({}, {}.abs() + 0.3)", "torch.lerp({}, {}, 0.3)", "torch.addcmul({}, {}, {})",
    "torch.addcdiv({}, {}, {}.abs() + 1)", "torch.hypot({}, {})", "torch.logaddexp({}, {})",
    "torch.floor_divide({}, {}.abs() + 0.3)", "torch.div({}, {}.abs() + 0.3, rounding_mode='trunc')",
    "torch.copysign({}, {}.nan_to_num())", "torch.logical_and({}, {})", "torch.logical_xor({}, {})",
    "torch.clamp({}, {} - 1, {} + 1)", "torch.fmax({}, {})", "F.mse_loss({}, {})", "F.l1_loss({}, {})",
    "F.smooth_l1_loss({}, {}, reduction='none')", "torch.sub({}, {}, alpha=0.5)",
    "torch.cdist({}, {})", "torch.fmin({}, {})",
    "torch.isclose({}, {})", "torch.true_divide({}, {}.abs() + 0.5)", "torch.logical_or({}, {})",
    "torch.logaddexp2({}, {})",
)  # fmt: skip

_REDUCED = ("sum", "amax", "amin", "mean", "prod")
_DTYPES = ("float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool")


def filled(d: Drawer, template: str, x: Made, *others: Made) -> str:
    """Fill a template's placeholders with these values in order, and further placeholders at
    random."""
    given = iter([x, *others])
    template = template.replace("{0}", str(x))
    return re.sub(r"\{\}", lambda _: str(next(given, d.rng.choice([x, *others]))), template)


def activation(d: Drawer) -> None:
    d.step(filled(d, d.rng.choice(ACTIVATIONS), d.floating()))


def function(d: Drawer) -> None:
    d.step(filled(d, d.rng.choice(_FUNCTIONS), d.floating()))


def integers(d: Drawer) -> None:
    """Add integer and boolean arithmetic."""
    x = d.pick(lambda v: not v.floating)
    if x is None or d.rng.random() < 0.3:
        dtype = d.rng.choice(["int64", "int64", "int32", "int8", "uint8", "bool"])
        x = d.input(d.shape(), f"torch.{dtype}", 0 if dtype == "uint8" else -9, 9)
    y = d.pick(lambda v: not v.floating and v.shape == x.shape) or x
    template = d.rng.choice(
        [
            "{} + {}", "{} * 2", "{} - {}", "{} // 2", "{} // -3", "{} % 3", "{} % -3", "{} & {}", "{} | {}",
            "{} ^ {}", "~{}", "-{}", "{}.abs()", "{} / 2", "{} / ({} * {} + 1)", "{} > {}", "{}.float() + 1",
            "{} + 1", "{}.sum(-1)", "{}.sum()", "{}.cumsum(-1)", "{}.clamp(-2, 5)", "{} ** 2", "{} + 0.5", "{} * 1.5",
            "torch.maximum({}, {})", "{}.amax(-1)", "{}.to(torch.float32).mean()", "{}.any()", "{}.all()",
            "torch.sqrt({}.abs())", "torch.exp({} * 0.1)", "{}.prod(-1)", "torch.sign({})",
            "torch.div({}, 2, rounding_mode='trunc')", "torch.div({}, -3, rounding_mode='floor')",
            "torch.fmod({}, 3)", "{} << 2", "{} >> 1", "torch.ldexp({}.float(), {}.clamp(-3, 3))", "F.one_hot({}.long().abs() % 5, 5)", "{}.argmax(-1)", "{}.max(-1)[0]",
            "torch.sigmoid({})", "torch.relu({})", "{}.logical_not()", "{}.any(-1)", "{}.all(0)", "{} == 1", "{} > -0.5", "{} < 1.5", "{} == 0.5",
        ]
    )  # fmt: skip
    d.step(filled(d, template, x, y))


def comparison(d: Drawer) -> None:
    d.step(filled(d, d.rng.choice(_COMPARED), d.floating()))


def binary(d: Drawer) -> None:
    """Combine two values whose shapes broadcast; the second is an earlier value or a new leaf."""
    x, rng = d.floating(), d.rng
    other = d.pick(lambda v: v.dtype == x.dtype and _broadcast(x.shape, v.shape))
    if other is None or rng.random() < 0.4:
        shape = [1 if rng.random() < 0.3 else n for n in x.shape][rng.randint(0, len(x.shape)) :]
        other = d.parameter(shape) if rng.random() < 0.7 else d.input(shape)
    first, second = (x, other) if rng.random() < 0.5 else (other, x)
    d.step(filled(d, rng.choice(_BINARY), first, second))


def mixed(d: Drawer) -> None:
    """Combine values of two dtypes, which PyTorch promotes."""
    x = d.any()
    y = d.pick(lambda v: v.dtype != x.dtype and _broadcast(x.shape, v.shape))
    if y is None or d.rng.random() < 0.3:  # a scalar seldom widens the other dtype
        number = d.rng.choice(["3", "2.5", "2.5, dtype=torch.float64", "3, dtype=torch.int32"])
        template = d.rng.choice(["{} * {}", "{} - {}", "{} > {}", "torch.where({} > 0, {}, {})"])
        d.step(filled(d, template, x, Made(f"torch.tensor({number})", None)))
    else:
        template = d.rng.choice(
            ["{} + {}", "{} * {}", "{} - {}", "torch.where({} > 0, {}, {})", "{} < {}"]
        )
        d.step(filled(d, template, x, y))


def cast(d: Drawer) -> None:
    x, dtype = d.any(), f"torch.{d.rng.choice(_DTYPES)}"
    likes = (
        f"torch.zeros_like({x}, dtype={dtype})", f"torch.ones_like({x}, dtype={dtype})",
        f"torch.full_like({x}, 2.5, dtype={dtype})", f"{x}.new_full((2, 3), 2, dtype={dtype})",
        f"{x}.new_zeros({x}.shape, dtype={dtype})", f"{x}.sum(dtype={dtype})",
        f"{x}.type_as({d.any()})", f"torch.full({x}.shape, 2, dtype={dtype})",
        f"torch.zeros_like({x}, dtype={dtype}).masked_fill_({x} > 0, 3)",
    )  # fmt: skip
    d.step(d.rng.choice(likes) if d.rng.random() < 0.4 else f"{x}.to({dtype})")


def _broadcast(one: Sequence[int], other: Sequence[int]) -> bool:
    pairs = zip(reversed(one), reversed(other), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


def reduction(d: Drawer) -> None:
    x, rng = d.floating(), d.rng
    rank = len(x.shape)
    if rank == 0:
        return
    axes = rng.sample(range(rank), rng.randint(1, rank))
    dims = tuple(axis - rank if rng.random() < 0.5 else axis for axis in axes)
    dim, keep = d.axis(x), f", keepdim={rng.random() < 0.5}"
    one = [
        f"({x}).{name}({dim}{keep})"
        for name in ("prod", "argmax", "argmin", "logsumexp", "any", "all")
    ]
    one += [
        f"{x}.{name}({dim})" for name in ("cumsum", "softmax", "log_softmax", "cumprod", "argsort")
    ]
    one += [
        f"{x}.max({dim}{keep})[0]",
        f"{x}.min({dim}{keep})[{rng.choice([0, 1])}]",
        f"F.softmin({x}, {dim})",
    ]
    one += [f"{x}.max({dim}{keep})[1]", f"F.normalize({x}, dim={dim})", f"F.glu({x}, {dim})"]
    one += [f"{x}.topk(1, {dim})[0]", f"{x}.sort({dim})[0]", f"{x}.sort({dim}, descending=True)[1]"]
    one += [
        f"torch.cumsum({x}, {dim}, dtype=torch.float64)",
        f"{x}.kthvalue(1, {dim})[0]",
        f"{x}.diff(dim={dim})",
    ]
    one += [f"{x}.cummax({dim})[{rng.choice([0, 1])}]", f"{x}.cummin({dim})[0]"]
    one += [f"{x}.logcumsumexp({dim})", f"{x}.nanmedian({dim})[0]"]
    one += [f"{x}.median({dim})[0]", f"{x}.count_nonzero({dim})"]
    one += [f"{x}.aminmax(dim={dim}{keep})[0]", f"{x}.nansum({dim})"]
    many = [
        f"{x}.{name}({dims}{keep})"
        for name in ("sum", "mean", "amax", "amin", "std", "var", "logsumexp")
    ] * 2
    many += [f"{x}.{name}({dims}, unbiased=False{keep})" for name in ("std", "var")]
    many += [f"{x}.norm({p}, {dims}{keep})" for p in (1, 2, 3, "inf")]
    many += [f"torch.linalg.vector_norm({x}, {p}, {dims}{keep})" for p in (0, 1, 2, 0.5)]
    whole = [
        f"{x}.{name}()"
        for name in ("sum", "mean", "max", "min", "std", "var", "prod", "argmax", "norm", "median")
    ]
    whole += [f"{x}.sum({dims}, dtype=torch.float64)", f"{x}.mean({dims}, dtype=torch.float64)"]
    d.step(rng.choice(rng.choices([one, many, whole], [5, 5, 2])[0]))


def view(d: Drawer) -> None:
    x, rng = d.any(), d.rng
    rank, shape = len(x.shape), list(x.shape)
    order = rng.sample(range(rank), rank)
    options = [
        f"{x}.reshape({_factors(d, size_of(shape))})",
        f"{x}.unsqueeze({rng.randint(-rank - 1, rank)})",
    ]
    options += [
        f"{x}.squeeze()",
        f"{x}.reshape(-1)",
        f"{x}.contiguous()",
        f"{x}.expand({[2, *shape]})",
    ]
    if rank:
        a, b = d.axis(x), d.axis(x)
        options += [
            f"{x}.permute({order})",
            f"{x}.transpose({a}, {b})",
            f"{x}.flatten({rng.randint(0, rank - 1)})",
        ] * 2
        options += [f"{x}.flip({a})", f"{x}.roll({rng.randint(-3, 3)}, {a})", f"{x}.roll(1)"]
        options += [
            f"{x}.repeat({[rng.choice([1, 2, 3]) for _ in range(rank + rng.randint(0, 1))]})"
        ]
        options += [
            f"{x}.squeeze({a})",
            f"{x}.movedim({a}, {b})",
            f"{x}.tile(2)",
            f"{x}.unflatten({a}, (-1, 1))",
        ]
        options += [
            f"{x}.repeat_interleave(2, {a})",
            f"{x}.expand({[-1 if n > 1 else 3 for n in shape]})",
        ]
        options += [
            f"torch.stack([{x}, {x} * 2], {rng.randint(-rank - 1, rank)})",
            f"{x}.flip({[*range(rank)]})",
        ]
        options += [
            f"torch.cat([{x}, {x}, {x}], {a})",
            f"{x}.permute({order}).reshape({_factors(d, size_of(shape))})",
        ]
        options += [
            f"{x}.unfold({a}, 2, {rng.choice([1, 2])})",
            f"torch.rot90({x}, 1, [0, {rank - 1}])",
        ]
    if rank > 1:
        options += [
            f"torch.tril({x})",
            f"torch.triu({x}, {rng.randint(-1, 1)})",
            f"{x}.mT",
            f"{x}.diagonal()",
        ]
    if rank == 2:
        options += [f"{x}.T", f"{x}.t()"]
    if rank == 4:
        options += [
            f"F.pixel_shuffle({x}, 2)",
            f"F.pixel_unshuffle({x}, 2)",
            f"F.channel_shuffle({x}, 2)",
        ]
    d.step(rng.choice(options))


def _factors(d: Drawer, size: int) -> list[int]:
    """Return a shape with `size` elements, sometimes with -1 for one of the extents."""
    shape: list[int] = []
    while size > 1 and len(shape) < 3:
        factor = d.rng.choice([n for n in range(1, size + 1) if size % n == 0])
        shape.append(factor)
        size //= factor
    shape.append(size)
    d.rng.shuffle(shape)
    if 0 not in shape and d.rng.random() < 0.3:
        shape[d.rng.randrange(len(shape))] = -1
    return shape


def parts(d: Drawer) -> None:
    """Add several results: chunks, splits, or one for each position along an axis."""
    x = d.pick(lambda v: len(v.shape) > 0)
    if x is None:
        return
    axis = d.axis(x)
    n, rng = x.shape[axis], d.rng
    if rng.random() < 0.4 and 2 <= n <= 5:
        d.step(f"{x}.unbind({axis})", n)
    elif n > 1:
        at = rng.randint(1, n - 1)
        text = rng.choice([f"{x}.split([{at}, {n - at}], {axis})", f"{x}.chunk(2, {axis})",
                           f"{x}.split({-(-n // 2)}, {axis})", f"torch.tensor_split({x}, 2, {axis})"])  # fmt: skip
        d.step(text, 2)


def joined(d: Drawer) -> None:
    x = d.pick(lambda v: len(v.shape) > 0)
    if x is None:
        return
    axis, rng = d.axis(x), d.rng
    shape = list(x.shape)
    shape[axis] = d.extent()
    other = d.pick(lambda v: v.shape == x.shape and v.dtype == x.dtype)
    if rng.random() < 0.5 or other is None:
        other = (
            d.input(shape, x.dtype, 0, 2)
            if rng.random() < 0.5
            else d.parameter(shape, x.dtype)
            if x.floating
            else x
        )
        d.step(f"torch.cat([{x}, {other}], {axis})")
    else:
        d.step(
            rng.choice(
                [f"torch.stack([{x}, {other}], {axis})", f"torch.cat(({other}, {x}), {axis})"]
            )
        )


def indexing(d: Drawer) -> None:
    """Index with every kind of key that PyTorch allows in brackets."""
    x, rng = d.any(), d.rng
    rank = len(x.shape)
    if rank == 0:
        d.step(f"{x}[{rng.choice(['None', '...', '(None, ...)'])}]")
        return
    items, tensors, common = [], 0, rng.choice([[2], [3], [1], [2, 2], [5]])
    for n in x.shape[: rng.randint(1, rank)]:
        start, stop, step = rng.randint(-n, n), rng.randint(-n - 2, n + 2), rng.choice([1, 1, 2, 3])
        kinds = [
            ":",
            ":",
            str(rng.randint(-n, n - 1)) if n else ":",
            f"{start}:{stop}:{step}",
            f"{start}:",
            f":{stop}",
        ]
        kinds += [
            "::2",
            "-1" if n else ":",
            "None, :",
            str([rng.randint(-n, n - 1) for _ in range(2)]) if n else ":",
        ]
        if n and rng.random() < 0.25:
            shape = common if rng.random() < 0.8 else [1]
            items.append(str(d.index(n, shape)))
            tensors += 1
        else:
            items.append(rng.choice(kinds))
    if rng.random() < 0.3:
        items.insert(rng.choice([0, len(items)]), "...")
    d.step(f"{x}[{', '.join(items)}]")


def chosen(d: Drawer) -> None:
    """Apply operators that take indices."""
    x, rng = d.any(1, 2, 3, 4), d.rng
    if 0 in x.shape:
        return
    axis = d.axis(x)
    n = x.shape[axis]
    one = d.input([rng.choice([1, 2, 5])], "torch.int64", 0, n)
    same = [
        extent if i == axis % len(x.shape) else rng.randint(1, extent)
        for i, extent in enumerate(x.shape)
    ]
    same[axis] = rng.choice([1, 2, 4])
    places = d.input(same, "torch.int64", 0, n)
    added = d.parameter(same, x.dtype) if x.floating else None
    same[axis] = 1  # PyTorch does not define which of several values for one position wins
    single = d.input(same, "torch.int64", 0, n)
    mask = d.input(x.shape[rng.randint(0, len(x.shape)) :], "torch.bool")
    source = d.parameter(same, x.dtype) if x.floating else None
    at = rng.randint(-n, n - 1)
    options = [
        f"torch.index_select({x}, {axis}, {one})",
        f"torch.gather({x}, {axis}, {places})",
    ] * 2
    options += [
        f"{x}.masked_fill({mask}, 1)",
        f"torch.where({mask}, {x}, {x} + 1)",
        f"torch.take_along_dim({x}, {places}, {axis})",
    ]
    options += [
        f"{x}.select({axis}, {at})",
        f"{x}.narrow({axis}, {rng.randint(0, n - 1)}, 1)",
        f"torch.take({x}, {places})",
    ]
    if source is not None:
        options += [
            f"{x}.scatter({axis}, {single}, {source})",
            f"{x}.scatter({axis}, {places}, 0.5)",
        ]
        options += [f"{x}.scatter_add({axis}, {places}, {added})"]
        rows = [one.shape[0] if i == axis % len(x.shape) else n for i, n in enumerate(x.shape)]
        row = d.parameter(rows, x.dtype)
        options += [
            f"{x}.index_add({axis}, {one}, {row})",
            f"{x}.index_copy({axis}, {one}[:1], {row}.narrow({axis}, 0, 1))",
            f"{x}.scatter_reduce({axis}, {places}, {added}, '{rng.choice(_REDUCED)}', "
            f"include_self={rng.random() < 0.6})",
            f"{x}.index_fill({axis}, {one}, 0.5)",
            f"{x}.index_put(({d.input([3], 'torch.int64', 0, x.shape[0])},), {x}[:1], accumulate=True)",
        ]
    d.step(rng.choice(options))


def product(d: Drawer) -> None:
    x, rng = d.floating(1, 2, 3, 4), d.rng
    n, rank = x.shape[-1], len(x.shape)
    out = rng.choice([1, 3, 8, 16, 17, 33])

    def make(shape: Sequence[int]) -> Made:
        return d.parameter(shape) if rng.random() < 0.5 else d.input(shape)

    other = d.pick(lambda v: v.dtype == x.dtype and len(v.shape) > 0 and v is not x)
    options = [lambda: f"{x} @ {make([n])}", lambda: f"{x} @ {make([n, out])}", lambda: f"{x} @ {x}.mT",
               lambda: f"torch.matmul({x}, {other or x})", lambda: f"{x}.mT @ {x}"]  # fmt: skip
    if rank == 1:
        options += [lambda: f"torch.dot({x}, {make([n])})", lambda: f"torch.outer({x}, {make([out])})",
                    lambda: f"{make([2, out, n])} @ {x}", lambda: f"torch.einsum('i,j->ij', {x}, {make([out])})",
                    lambda: f"torch.mv({make([out, n])}, {x})"]  # fmt: skip
    if rank == 2:
        options += [lambda: f"torch.mm({x}, {make([n, out])})", lambda: f"torch.einsum('ij,kj->ik', {x}, {make([out, n])})",
                    lambda: f"torch.addmm({make([out])}, {x}, {make([n, out])}, beta=0.5, alpha=2)",
                    lambda: f"torch.einsum('ij,ij->i', {x}, {x})", lambda: f"torch.einsum('ij->ji', {x})",
                    lambda: f"F.linear({x}, {make([out, n])}, {make([out])})"]  # fmt: skip
    if rank == 3:
        b, m, _ = x.shape
        options += [lambda: f"torch.bmm({x}, {make([b, n, out])})", lambda: f"torch.einsum('bij,bkj->bik', {x}, {make([b, out, n])})",
                    lambda: f"torch.einsum('bij,kj->bik', {x}, {make([out, n])})", lambda: f"torch.einsum('bij->b', {x})",
                    lambda: f"torch.baddbmm({make([1, m, out])}, {x}, {make([b, n, out])})",
                    lambda: f"torch.einsum('bij,bj->bi', {x}, {make([b, n])})"]  # fmt: skip
    if rank == 4:
        options += [lambda: f"torch.einsum('bhij,bhkj->bhik', {x}, {x})", lambda: f"torch.einsum('bhij,jk->bikh', {x}, {make([n, out])})",
                    lambda: f"F.scaled_dot_product_attention({x}, {x}, {x})",
                    lambda: f"F.scaled_dot_product_attention({x}, {x}, {x}, is_causal=True)"]  # fmt: skip
    d.step(rng.choice(options)())
