"""Converters of shapes, parts, creation, indexing and sorting, compared with PyTorch."""

import numpy as np
import pytest

import needle as ndl
import needle.torch
import needle_tvm
from needle.errors import UnsupportedError
from needle.torch.reading import array_of

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore:.*reduce")]
F = torch.nn.functional
LONG = torch.int64


class Applied(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def normal(*shape, seed=3):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


def views(x):
    return (
        *(x.view(6, -1), x.flatten(1).unflatten(1, (2, 2, -1)), x.permute(2, 0, -2)),
        *(x.transpose(0, -1), x.movedim(0, 2), x[0].t(), x.mT, x.unsqueeze(-1).squeeze()),
        *(x[:1].expand(3, -1, 4), x[:1].squeeze(0, 1), x.unfold(2, 2, 2), x.unfold(1, 2, 1)),
        *(x.diagonal(0, 1, 2), x.diagonal(-1, 2, 0), torch.rot90(x, 1, (0, 2)), x[0, 0, 0].view(1)),
    )


def parts(x):
    return (
        *(x[:, 1:, ::2], x[0], x[..., -1], x[:, None, -2:], x[-9:9], x[1:1], x.narrow(2, -3, 2)),
        *(x.split(2, 1), x.chunk(3, 2), x.unbind(0), x.split([1, 3], 2), x.tensor_split(3, -1)),
        *(x.flip(0, -1), x.roll(1), x.roll((1, -2), (0, 2)), x.tril(-1), x.triu(1), x[0].diag(1)),
        *(
            torch.cat([x, x.int(), torch.zeros(0)], -1),
            torch.stack([x, x + 1], 1),
            x.repeat(2, 1, 1, 3),
        ),
        *(
            x.repeat_interleave(2, 1),
            torch.block_diag(x[0], x[1]),
            torch.cartesian_prod(x[0, 0], x[1, 0]),
        ),
        *(torch.diag_embed(x[0], 1), torch.meshgrid(x[0, 0], x[0, :, 0], indexing="xy")),
    )


def strided(x):
    y = x * 1
    y.as_strided((3,), (5,), 1).zero_()
    return x.as_strided((3, 2), (2, 5), 1), (x * 2).t().as_strided((3, 4), (1, 1)), y


def made(x):
    filled = torch.empty_like(x)
    filled[:1] = x[:1]
    filled[1:] = 2
    return (
        *(torch.zeros_like(x), x.new_full((2,), 3.0), x.new_ones(3, dtype=LONG), filled),
        *(torch.full_like(x, 2.5, dtype=torch.int8), torch.arange(0, 1, 0.25) + x[0, 0, 0]),
        *(torch.eye(3) * x[0, 0, 0], torch.linspace(0, 1, 4) * x[0, 0], torch.tril_indices(3, 3)),
    )


def taken(x, i):
    return (
        *(x[i], x[:, i], x[i, :, i], x[i, i], x[0, :, i], x[i[0, 0]], x[i.int()], x[:, i, None, i]),
        *(x.index_select(1, i[0]), x.gather(2, i[None, :1].abs()), x.take(i), x[:, [1, 0]]),
        *(torch.take_along_dim(x, i[None, :1], 2), x[torch.tensor([], dtype=LONG)]),
    )


def inplace(x):
    y, z, w, v = (x.clone() for _ in range(4))
    y[1] = 0
    y[:, 1:] += 1
    y.diagonal(0, 1, 2).zero_()
    y.view(-1)[3:5] = 9
    z[x > 0] = 0.5
    w[:, x[0, :, 0] < 0] = 5
    v[x[:, 0, 0] < 9] = x[0] * 2
    return y, z, w, v


def replaced(x, i, s):
    place = i[:1, :, None].abs().expand(2, 2, 4)
    aten = torch.ops.aten
    return (
        *(
            x.index_put((i[0],), s[0]),
            x.index_put((i, i), s[..., 0, :], True),
            x.masked_scatter(x > 0, s),
        ),
        *(aten.index_put(x, [None, i[0]], s[0, :1, :1]), x.put(i, s[..., 0, 0], True)),
        *(
            x.index_add(1, i[0], s[0, :, :2], alpha=2),
            x.index_copy(0, i[1], s[0]),
            x.index_fill(2, i[0], 1.5),
        ),
        *(
            x.scatter(0, place[:1], s[0, :1, :2]),
            x.scatter(2, place, 3.0),
            x.scatter_add(1, place, s[0, :, :2]),
        ),
        *(x.select_scatter(s[0, 0, :, :], 0, 1), x.slice_scatter(s[0, :, :, :1], 2, 1, 4, 9)),
        *(x.diagonal_scatter(s[0, :, :, 0], 1, 1, 2),),
    )


def reduced(x, i, s):
    place = i[:1, :, None].abs().expand(2, 2, 4)
    found = []
    for kind in ("sum", "prod", "mean", "amax", "amin"):
        for own in (False, True):
            found.append(x.scatter_reduce(0, place, s[0, :, :2], kind, include_self=own))
            if kind != "sum":
                found.append(x.index_reduce(1, i[0], s[0, :, :2], kind, include_self=own))
    return tuple(found)


def reduced_others(n, f, i):
    """Reductions of integers and truth values, and those that PyTorch does not derive."""
    kinds = ("sum", "prod", "mean", "amax", "amin")
    found = [n.scatter_reduce(0, i, n[:2], each, include_self=False) for each in kinds]
    found += [f.scatter_reduce(0, i, f[:2], each) for each in ("sum", "prod", "amax", "amin")]
    found += [n.scatter(0, i, n, reduce="multiply"), n.scatter(1, i, 2, reduce="add")]
    return (*found, f.index_put((i[0],), f, True), f.scatter_add(0, i, f[:2]))


def sorted_(x):
    short = x[0].round(decimals=1)
    return (
        *(*x.sort(1), *x.sort(-1, descending=True), short.sort(stable=True, dim=0)[1], x.msort()),
        *(*x.topk(2, 1), *x.topk(3, -1, largest=False), *x.kthvalue(2, 1), x.argsort(0)),
        *(
            torch.searchsorted(x.sort()[0], x),
            torch.bucketize(x, torch.tensor([-1.0, 0, 1]), right=True),
        ),
        *(torch.isin(short, short[:2]), torch.histc(x, 5), torch.histc(x, 4, -1, 1)),
        torch.nonzero_static(x > 0, size=5),
    )


def padded(x):
    modes = ("reflect", "replicate", "circular")
    pads = ((1, 2), (-1, 2), (2, -3), (1, 1, -1, 1))
    return (
        *(F.pad(x if len(pad) == 4 else x[0], pad, mode=mode) for mode in modes for pad in pads),
        *(F.pad(x, pad, value=2.5) for pad in pads),
    )


def embedded(w, i):
    counts = F.embedding(i, w[0], scale_grad_by_freq=True)
    return F.embedding(i, w[0], padding_idx=-2) * 2, counts, F.one_hot(i[0], 5)


X, AT = normal(2, 3, 4), torch.tensor([[0, 1], [1, 0]])
S = normal(2, 2, 3, 4, seed=5)
SMALL = torch.tensor([[3, -2, 5], [0, 2, 2], [7, 1, -1]])
WITH_GRADIENTS = {
    "views": (views, (X,)),
    "parts": (parts, (X,)),
    "strided": (strided, (normal(4, 6),)),
    "taken": (taken, (X, AT)),
    "inplace": (inplace, (X,)),
    "replaced": (replaced, (X, AT, S)),
    "reduced": (reduced, (X, AT, S)),
    "padded": (padded, (normal(2, 3, 4, 5),)),
    "embedded": (embedded, (X, AT)),
}
TABLE = (
    WITH_GRADIENTS
    | {
        "made": (made, (X,)),
        "sorted": (sorted_, (X,)),
        "reduced_others": (
            reduced_others,
            (SMALL, SMALL > 1, torch.tensor([[0, 2, 0], [0, 1, 2]])),
        ),
        "arange": (
            lambda x: torch.arange(128, dtype=torch.int8) + x,
            (torch.ones(1, dtype=torch.int8),),
        ),
        "0-d": (
            lambda x, i: (
                x.flip(0),
                x.sort()[0],
                x.gather(0, i),
                x.index_select(0, i),
                x.unfold(0, 1, 1),
            ),
            (torch.tensor(2.0), torch.tensor(0)),
        ),
        "as_strided_scatter": (  # the gradient of which is wrong in PyTorch 2.13
            lambda x, s: torch.as_strided_scatter(x, s[0, 0, :2], (2, 4), (4, 1), 1),
            (X, S),
        ),
        "large slices": (lambda x: (x[: 2**62], x[-(2**62) :]), (X,)),
        "repeats": (
            lambda x, i: x.repeat_interleave(i, 1, output_size=5),
            (X, torch.tensor([0, 4, 1])),
        ),
    }
)


def loaded(name):
    function, inputs = TABLE[name]
    model = Applied(function).eval()
    return model, inputs, needle.torch.load(model, *inputs)


def agree(found, wanted):
    found, wanted = (torch.utils._pytree.tree_leaves(each) for each in (found, wanted))
    assert len(found) == len(wanted)
    for have, want in zip(found, wanted, strict=True):
        have = have.numpy() if hasattr(have, "numpy") else have
        assert (have.dtype.name, have.shape) == (str(want.dtype)[6:], tuple(want.shape))
        np.testing.assert_allclose(have, want.detach().numpy(), 2e-6, 1e-5)


@pytest.mark.parametrize("name", TABLE)
def test_results_are_pytorchs(name):
    model, inputs, mine = loaded(name)
    agree(mine(*map(array_of, inputs)), model(*inputs))


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients_are_pytorchs(name):
    model, inputs, mine = loaded(name)
    theirs = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    own = [ndl.Tensor(array_of(x), requires_grad=x.is_floating_point()) for x in inputs]
    for arguments, function in ((theirs, model), (own, mine)):
        results = torch.utils._pytree.tree_leaves(function(*arguments))
        sum((each**2).sum() for each in results if "float32" in str(each.dtype)).backward()
    for have, want in zip(own, theirs, strict=True):
        if want.grad is not None:
            np.testing.assert_allclose(have.grad.numpy(), want.grad.numpy(), 1e-4, 1e-4)


SLOW = pytest.mark.slow
COMPILED = [
    *(pytest.param(name, "fused", marks=() if name == "taken" else SLOW) for name in TABLE),
    *(pytest.param(name, "noopt", marks=SLOW) for name in ("views", "parts", "replaced")),
    *(pytest.param(name, "tuned", marks=SLOW) for name in ("views", "taken", "reduced")),
]


@pytest.mark.parametrize(("name", "stage"), COMPILED)
def test_compiled_results_are_pytorchs(name, stage):
    model, inputs, mine = loaded(name)
    arrays = [*map(array_of, inputs)]
    agree(needle_tvm.compile(mine, *arrays, stage=stage)(*arrays), model(*inputs))


def open_parts(x):
    n = x.shape[0]
    return (
        *(x[1:], x[:-1], x[:: 2 - 1, 1], x[n - 1], x[-2:], x.view(-1), x.flatten(0, 1)[: 2 * n]),
        *(x[:, :1].expand(-1, 5), torch.cat([x, x[:1]]), torch.stack([x, x], 1), x.unsqueeze(0)),
        *(torch.arange(n), torch.arange(n, dtype=torch.int8), torch.arange(1, 2 * n, 2) * 2.0),
        *(torch.zeros(n, 2), x.new_full((n,), 3), torch.ones_like(x), x.t(), x.roll(1, 0)),
        *(torch.ones(n, n).tril() * x[:, 0], x.split([1, n - 1])[1], F.pad(x, (1, 2, 0, 1))),
        *(x.repeat(2, 1), x.repeat_interleave(2, 0), x.flip(0), x.unfold(0, 2, 1), x.sort(0)[0]),
        x.slice_scatter(x[1:] * 2, 0, 1),
    )


def open_index(x, i):
    return (
        *(F.embedding(i, x[:3]), x[i], x.index_select(0, i), x.gather(0, i[:, None].expand(-1, 3))),
        *(x.index_add(0, i, x), x.index_put((i,), x), x.scatter(0, i[:, None], 1.0)),
        x.scatter_reduce(0, i[:, None].expand_as(x), x, "prod"),
    )


@pytest.mark.parametrize("stage", [None, pytest.param("fused", marks=SLOW)])
@pytest.mark.parametrize(("function", "count"), [(open_parts, 1), (open_index, 2)])
def test_open_sizes(function, count, stage):
    n = ndl.Dim("n", min=4, max=40)
    inputs = [(normal(size, 3), torch.arange(size) % 3)[:count] for size in (6, 17)]
    dims = {f"args_{i}": {0: n} for i in range(count)}
    model = Applied(function).eval()
    mine = needle.torch.load(model, *inputs[0], dims=dims)
    if stage is not None:
        mine = needle_tvm.compile(mine, *map(array_of, inputs[0]), dims=dims, stage=stage)
    for given in inputs:
        agree(mine(*map(array_of, given)), model(*given))


@pytest.mark.parametrize(
    ("function", "inputs", "why"),
    [
        (lambda x: x[x > 0], (X,), "depends on values"),
        (torch.nonzero, (X,), "depends on values"),
        (torch.unique, (X,), "depends on values"),
        (lambda x: (x * 2)[:, 1:].as_strided((2, 2), (4, 1), 0), (X,), "as_strided"),
        (lambda w, i: F.embedding(i, w, max_norm=1.0), (X[0], AT), "embedding_renorm"),
        (lambda x, m, i: x.index_put((m, i[0, 0]), x[0, 0, 0]), (X, X[:, 0, 0] > 9, AT), "mask"),
    ],
)
def test_refusals_name_the_operator(function, inputs, why):
    with pytest.raises(UnsupportedError, match=why):
        needle.torch.load(Applied(function).eval(), *inputs)


def test_indices_out_of_range_raise():
    mine = needle.torch.load(Applied(lambda x, i: x[i]).eval(), X, AT)
    with pytest.raises(IndexError):
        mine(X.numpy(), np.array([[2, 0], [0, 1]]))
