"""Reductions, norms, products, attention and linear algebra of PyTorch programs."""

import warnings

import numpy as np
import pytest

import needle as ndl
import needle.torch
import needle_tvm
from needle.errors import UnsupportedError

torch = pytest.importorskip("torch")
F, A = torch.nn.functional, torch.ops.aten
NAN, INF = float("nan"), float("inf")


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, INTEGERS = drawn(3, 4), torch.tensor([[3, 1, 3], [-2, 0, 7]], dtype=torch.int8)
HOLES = torch.tensor([[1.0, NAN, 3.0, -INF], [2.0, 2.0, 2.0, 0.0]])
MATRIX = drawn(4, 4, seed=1)
SQUARE = MATRIX @ MATRIX.T + torch.eye(4)
HEADS = drawn(2, 3, 5, 8), drawn(2, 3, 6, 8, seed=1), drawn(2, 3, 6, 4, seed=2)
SEEN = torch.rand(5, 6, generator=torch.Generator().manual_seed(3)) > 0.5
SEEN[0] = False  # a query that sees no key
attend = F.scaled_dot_product_attention

ROWS = {
    "sum of int8 is int64": (lambda x: (x.sum(), x.sum(0, keepdim=True)), INTEGERS),
    "product of int8 is int64": (lambda x: (x.prod(), x.prod(1)), INTEGERS),
    "sums in another dtype": (lambda x: x.sum(dtype=torch.int32), INTEGERS),
    "mean and product": (lambda x: (x.mean(), x.mean((0, 1)), x.prod(0), x[0, 0].mean(0)), X),
    "extremes with NaN": (lambda x: (x.max(), x.max(1), x.min(0), x.amax(1), x.aminmax()), HOLES),
    "ties": (lambda x: (x.max(1), x.min(0), x.argmax(1), x.argmin()), INTEGERS),
    "truth": (lambda x: (x.any(), x.all(1), x.any(0, keepdim=True), x.count_nonzero(1)), INTEGERS),
    "without NaN": (lambda x: (x.nansum(1), x.nanmean(1), x.nanmedian(), x.nanmedian(1)), HOLES),
    "medians and modes": (lambda x: (x.median(), x.median(1), x.mode(1)), HOLES),
    "variance": (lambda x: (x.var(), x.std(1), *torch.var_mean(x, 0, correction=0.5)), X),
    "variance of too few": (
        lambda x: (x.var(0, correction=3), x[:1].std(0), x.var(1, correction=9)),
        X,
    ),
    "norms of vectors": (
        lambda x: tuple(torch.linalg.vector_norm(x, p, 1) for p in (0, 0.5, 1, 2, 3, INF, -INF)),
        X,
    ),
    "logsumexp": (lambda x: (x.logsumexp(1), x.logsumexp((0, 1), keepdim=True)), X),
    "scans": (lambda x: (x.cumsum(1), x.cumprod(0), x.logcumsumexp(1), *x.cummax(1)), X),
    "scans of int8": (lambda x: (x.cumsum(1), *x.cummin(1)), INTEGERS),
    "softmax": (lambda x: (x.softmax(1), x.log_softmax(0), F.softmin(x, 1), x[0, 0].softmax(0)), X),
    "softmax in another dtype": (lambda x: x.softmax(1, dtype=torch.float64), X),
    "softmax of nothing": (lambda x: A._safe_softmax(x, 1), torch.full((2, 3), -INF)),
    "layer norm": (lambda x, w: (F.layer_norm(x, (4,), w), F.layer_norm(x, (3, 4))), X, X[0]),
    "group norm": (lambda x: (F.group_norm(x, 2), F.instance_norm(x)), drawn(2, 4, 5)),
    "rms norm": (lambda x, w: (F.rms_norm(x, (4,), w), F.rms_norm(x, (4,), eps=0.1)), X, X[0]),
    "local response norm": (lambda x: F.local_response_norm(x, 3), drawn(2, 5, 4)),
    "batch norm of a batch": (
        lambda x: F.batch_norm(x, None, None, training=True),
        drawn(4, 3, 5),
    ),
    "beta 0 leaves NaN out": (
        lambda x, a, b: (x.addmm(a, b, beta=0), x.addmv(a, b[:, 0], beta=0) if x.ndim < 2 else x),
        torch.full((3, 5), NAN),
        drawn(3, 4),
        drawn(4, 5),
    ),
    "beta 0 of batches": (
        lambda x, a, b: (torch.baddbmm(x, a, b, beta=0), torch.addbmm(x[0], a, b, beta=0, alpha=2)),
        torch.full((2, 3, 5), INF),
        drawn(2, 3, 4),
        drawn(2, 4, 5),
    ),
    "sums of products": (
        lambda x, a, b: (torch.addmm(x, a, b, beta=0.5, alpha=2), torch.addr(x, a[:, 0], b[0])),
        drawn(3, 5),
        drawn(3, 4),
        drawn(4, 5),
    ),
    "products of any ranks": (
        lambda a, b: (a @ b, a @ b[0], a[0] @ b, a[0, 0] @ b, a @ b[0, :, 0], a[0, 0] @ b[0, :, 0]),
        drawn(2, 3, 4),
        drawn(2, 4, 5),
    ),
    "products of integers": (lambda a: (a.long() @ a.long().T, a.int() @ a.int().T), INTEGERS),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->ikb", a, b), drawn(2, 3, 4), drawn(2, 4, 5)),
    "other products": (
        lambda a, b: (
            *(torch.outer(a, b), torch.kron(a, b), torch.inner(a, a), torch.vdot(a, a)),
            torch.tensordot(a[:, None], b[None], 1),
        ),
        drawn(3),
        drawn(4),
    ),
    "bilinear": (
        lambda a, b, w: F.bilinear(a, b, w),
        drawn(3, 4),
        drawn(3, 5),
        drawn(2, 4, 5),
    ),
    "distances": (
        lambda a, b: (torch.cdist(a, b, 1.0), F.pdist(a), torch.dist(a, a + 1)),
        drawn(3, 4),
        drawn(5, 4),
    ),
    "losses": (
        lambda x, y: (
            *(F.cross_entropy(x, y), F.nll_loss(x, y, reduction="none"), F.mse_loss(x, x + 1)),
            F.cross_entropy(x, y, ignore_index=1, label_smoothing=0.1),
            *(
                F.binary_cross_entropy(x.sigmoid(), x.sigmoid()),
                F.kl_div(x, x.exp(), reduction="batchmean"),
            ),
            *(
                F.huber_loss(x, x * 2),
                F.smooth_l1_loss(x, x * 2),
                F.soft_margin_loss(x, x.sign().detach()),
            ),
        ),
        X,
        torch.tensor([1, 0, 3]),
    ),
    "attention": (lambda q, k, v: (attend(q, k, v), attend(q, k, v, is_causal=True)), *HEADS),
    "attention of other ranks": (
        lambda q, k, v: (attend(q[0], k[0], v[0], scale=2.0), attend(q[0, 0], k[0, 0], v[0, 0])),
        *HEADS,
    ),
    "attention with a known mask": (lambda q, k, v: attend(q, k, v, SEEN), *HEADS),
    "attention with masks": (
        lambda q, k, v, m: (attend(q, k, v, m), attend(q, k, v, torch.where(m, 0.5, -INF))),
        *HEADS,
        SEEN,
    ),
    "attention of grouped heads": (
        lambda q, k, v: attend(q, k, v, enable_gqa=True),
        drawn(2, 6, 5, 8),
        *HEADS[1:],
    ),
    "attention for a CPU": (
        lambda q, k: A._scaled_dot_product_flash_attention_for_cpu(q, k, k, scale=0.3)[0],
        *HEADS[:2],
    ),
    "systems": (lambda a, b: (torch.linalg.solve(a, b), torch.linalg.inv(a)), SQUARE, MATRIX),
    "determinants": (lambda a: (torch.linalg.det(a), *torch.linalg.slogdet(a)), SQUARE),
    "factors": (lambda a: (torch.linalg.cholesky(a), torch.linalg.eigvalsh(a)), SQUARE),
    "singular values": (lambda a: torch.linalg.svdvals(a), MATRIX),
    "powers of matrices": (
        lambda a: (torch.linalg.matrix_power(a, 3), torch.linalg.matrix_exp(a)),
        MATRIX,
    ),
    "triangles": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True, unitriangular=True),
        SQUARE,
        MATRIX,
    ),
}
WITHOUT_GRADIENTS = (
    *("extremes with NaN", "variance of too few", "without NaN", "medians and modes"),
    *("softmax of nothing", "attention for a CPU", "beta 0 leaves NaN out", "norms of vectors"),
)


def flat(made):
    return (
        [made]
        if isinstance(made, (torch.Tensor, ndl.Tensor))
        else [y for z in made for y in flat(z)]
    )


def close(found, wanted):
    # At most some dozen float32 terms a sum.
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def beside(names):
    """The rows of these names as one function, and its inputs: `load` exports but once."""
    inputs = [each for name in names for each in ROWS[name][1:]]

    def every(*given):
        rest = list(given)
        return tuple(ROWS[name][0](*(rest.pop(0) for _ in ROWS[name][1:])) for name in names)

    return every, inputs


def weighed(names, made):
    """The sum of squares of all floating results of the rows that have gradients."""
    kept = [
        y for name, row in zip(names, made, strict=True) if has_gradient(name) for y in flat(row)
    ]
    return sum((y * y).sum() for y in kept if "float" in str(y.dtype))


def has_gradient(name):
    floating = all(each.is_floating_point() for each in ROWS[name][1:])
    return floating and name not in WITHOUT_GRADIENTS


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("part", range(4))
def test_values_and_gradients_are_pytorchs(part):
    """`load` compares the values, and names the node that differs."""
    names = list(ROWS)[part::4]
    function, inputs = beside(names)
    loaded = needle.torch.load(Function(function), *inputs)
    theirs = [each.clone().requires_grad_(each.is_floating_point()) for each in inputs]
    learnt = [each for each in theirs if each.requires_grad]
    loss = weighed(names, function(*theirs))
    wanted = torch.autograd.grad(loss, learnt, allow_unused=True)
    mine = [ndl.Tensor(x.numpy(), requires_grad=x.is_floating_point()) for x in inputs]
    weighed(names, loaded(*mine)).backward()
    for found, want in zip([x for x in mine if x.requires_grad], wanted, strict=True):
        if want is not None:
            largest = max(1.0, want.abs().max().item())
            grad = np.zeros(want.shape) if found.grad is None else found.grad.numpy()
            close(grad / largest, want.numpy() / largest)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_halves_are_rounded_once(dtype):
    """300 ones and a small number: a sum in the half dtype would end at 256."""
    x = torch.ones(2, 300, dtype=dtype)
    weight = torch.ones(300, 3, dtype=dtype)
    loaded = needle.torch.load(Function(lambda x, w: (x.sum(1), x @ w, x.mean(1))), x, weight)
    total, product, mean = (y.astype("float32").numpy() for y in loaded(x, weight))
    assert (total == 300).all() and (product == 300).all() and (mean == 1).all()


def test_running_statistics_are_written():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3, affine=False))
    loaded = needle.torch.load(model.train(), x := drawn(6, 3, 4))
    for _ in range(2):
        model(x), loaded(x.numpy())
    for name, value in model.state_dict().items():
        close(loaded.state_dict()[name].numpy(), value.numpy())


@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder_layers(norm_first):
    """As modules, and as the one operator that PyTorch has for inference."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, norm_first=norm_first)
    weights, attention = layer.eval(), layer.self_attn
    x, padding = drawn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    needle.torch.load(layer, x)

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x, mask=None, kind=None):
            kept = (attention.in_proj_weight, attention.in_proj_bias)
            kept += (attention.out_proj.weight, attention.out_proj.bias)
            rest = [
                part
                for each in ("norm1", "norm2", "linear1", "linear2")
                for part in getattr(weights, each).parameters()
            ]
            return A._transformer_encoder_layer_fwd(
                *(x, 16, 2, *kept, False, norm_first, 1e-5, *rest, mask, kind)
            )

    needle.torch.load(Whole(), x)
    needle.torch.load(Whole(), x, padding, 1)


def test_dropped_weights_of_attention_are_refused():
    with pytest.raises(UnsupportedError, match=r"dropout_p=0\.5"):
        needle.torch.load(Function(lambda q, k, v: attend(q, k, v, dropout_p=0.5)), *HEADS)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_any_of_several_equal_elements_may_be_chosen(k):
    x = torch.tensor([2, 1, 1, 1, 3]).repeat(3, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that results may differ from PyTorch's for it
        loaded = needle.torch.load(Function(lambda x: x.kthvalue(k)), x)
    values, places = (each.numpy() for each in loaded(x.numpy()))
    np.testing.assert_array_equal(values, x.kthvalue(k).values.numpy())
    np.testing.assert_array_equal(np.take_along_axis(x.numpy(), places[:, None], 1)[:, 0], values)


COMPILED = Function(
    lambda x, w, b, m: (
        *(F.linear(x, w, b), F.layer_norm(x, (8,)), x.softmax(-1), x.mean(1), x.amax(2)),
        *(attend(x, x, x, is_causal=True), attend(x, x, x, m), x.var(1), x.cumsum(1), x.max(1)[1]),
    )
)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["noopt", "fused", "tuned"])
def test_compiled(stage):
    inputs = drawn(2, 5, 8), drawn(3, 8), drawn(3), SEEN[:, :5]
    loaded = needle.torch.load(COMPILED, *inputs)
    found = needle_tvm.compile(loaded, *inputs, stage=stage)(*inputs)
    for y, want in zip(found, COMPILED(*inputs), strict=True):
        close(y.numpy(), want.numpy())


@pytest.mark.slow
def test_open_sizes():
    n, t = ndl.Dim("n", min=1, max=6), ndl.Dim("t", min=2, max=40)
    inputs = drawn(2, 5, 8), drawn(3, 8), drawn(3)
    function = Function(lambda x, w, b: COMPILED.function(x, w, b, None))
    dims = {0: {0: n, 1: t}}
    loaded = needle.torch.load(function, *inputs, dims=dims)
    compiled = needle_tvm.compile(loaded, *inputs, dims=dims)
    for sizes in ((1, 2), (3, 17), (6, 40)):
        x = drawn(*sizes, 8)
        for y, want in zip(compiled(x, *inputs[1:]), function(x, *inputs[1:]), strict=True):
            close(y.numpy(), want.numpy())
