"""Gradients at corners (0, ties, equal numbers, infinities, ends of domains) are PyTorch's."""

import itertools
import operator

import numpy as np
import pytest

import needle as ndl
import needle.nn.functional as F
from needle import ops
from needle.op import REGISTRY, Elementwise

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer
TF = torch.nn.functional

INF = np.inf
POINTS = np.array(
    [0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, 6, -6, 20, 25, -25, 1.5, 2.5, 800, -800, INF, -INF]
)
PAIRS = np.array(
    list(itertools.product([0, -0.0, 1, -1, 0.5, 2, 3, -2, -1.5, INF, -INF], repeat=2))
)
ROWS = {
    "equal": [3, 3, 3],
    "zeros": [0, 0, 0],
    "one zero": [2, 0, 3],
    "two zeros": [2, 0, 0],
    "minus zero": [-0.0, 1, 2],
    "ties": [1, 2, 2],
    "inf": [1, INF, 2],
    "-inf": [1, -INF, 2],
    "all -inf": [-INF] * 3,
    "underflow": [1e-200, 1e-200, 0],
}  # fmt: skip


def compare(ours, theirs, *arrays, finite_too=False):
    """Results and gradients in float64, weighted so that no gradients cancel. With `finite_too`
    needle may have a number where PyTorch has NaN."""
    arrays = [np.array(x, "float64") for x in arrays]
    mine, twins = [ndl.Tensor(x) for x in arrays], [torch.tensor(x) for x in arrays]
    for twin in twins:
        twin.requires_grad_()
    y, z = ours(*mine), theirs(*twins)
    weights = np.arange(1.0, y.size + 1).reshape(y.shape)
    (y * ndl.Tensor(weights)).sum().backward()
    (z * torch.tensor(weights)).sum().backward()
    pairs = [(y.numpy(), z.detach().numpy())]
    pairs += [
        (x.grad.numpy(), np.zeros(x.shape) if t.grad is None else t.grad.numpy())
        for x, t in zip(mine, twins, strict=True)
    ]
    for found, expected in pairs:
        expected = np.where(np.isnan(expected), found, expected) if finite_too else expected
        # Some constants of PyTorch's (1 / 6, 1e-12) are float32, with 6e-8 of their size as error.
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-12)


UNARY = """abs acos acosh asin asinh atan atanh ceil celu cos cosh elu erf erfinv exp exp2 expm1
floor frac gelu hardsigmoid hardtanh leaky_relu log log10 log1p log2 logsigmoid mish nan_to_num
reciprocal relu relu6 round rsqrt selu sigmoid sign silu sin sinh softplus softsign sqrt square
tan tanh tanhshrink trunc""".split()
BINARY = "add atan2 clip divide fmod maximum minimum multiply power remainder subtract".split()
BY_SCALAR = {"add_scalar", "mul_scalar", "divide_scalar", "power_scalar"}  # tested by operators
NO_GRADIENT = {"cast", "detach", "condition", "bitwise_not", "bitcast", "negate"}


def test_the_tables_hold_the_ops():
    elementwise = {n for n, op in REGISTRY.items() if issubclass(op, Elementwise)}
    assert elementwise - BY_SCALAR - NO_GRADIENT <= {*UNARY, *BINARY}


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name):
    compare(getattr(ops, name), getattr(torch, name, None) or getattr(TF, name), POINTS)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_numbers(name):
    twin = torch.pow if name == "power" else getattr(torch, name)
    compare(getattr(ops, name), twin, *PAIRS.T)


@pytest.mark.parametrize("number", [0.0, 0.5, 1, 2, 3, -1, -2, 1.5, INF])
@pytest.mark.parametrize("symbol", ["pow", "truediv", "mul", "add", "sub", "mod"])
def test_a_number_and_a_tensor(symbol, number):
    function = getattr(operator, symbol)
    points = POINTS[np.isfinite(POINTS)] + 0.0  # PyTorch's root of -0 and -inf is no power's
    compare(lambda x: function(x, number), lambda x: function(x, number), points)
    if symbol != "mod":  # PyTorch has no gradient of it
        compare(lambda x: function(number, x), lambda x: function(number, x), points)


REDUCTIONS = {
    "sum": (lambda x: x.sum(-1),) * 2,
    "mean": (lambda x: x.mean(-1),) * 2,
    "std": (lambda x: ops.std(x, -1), lambda x: x.std(-1, correction=0)),
    "unbiased std": (lambda x: ops.std(x, -1, correction=1), lambda x: x.std(-1)),
    "var": (lambda x: ops.var(x, -1), lambda x: x.var(-1, correction=0)),
    "prod": (lambda x: ops.prod(x, -1), lambda x: x.prod(-1)),
    "cumprod": (lambda x: ops.cumprod(x, -1), lambda x: x.cumprod(-1)),
    "cumsum": (lambda x: ops.cumsum(x, -1), lambda x: x.cumsum(-1)),
    "logcumsumexp": (lambda x: ops.logcumsumexp(x, -1), lambda x: x.logcumsumexp(-1)),
    "logsumexp": (lambda x: ops.logsumexp(x, -1), lambda x: x.logsumexp(-1)),
    "softmax": (lambda x: ops.softmax(x, -1), lambda x: x.softmax(-1)),
    "log_softmax": (lambda x: ops.logsoftmax(x, -1), lambda x: x.log_softmax(-1)),
    "max": (lambda x: x.max(-1), lambda x: x.amax(-1)),
    "min": (lambda x: x.min(-1), lambda x: x.amin(-1)),
    "cummax": (lambda x: ops.cummax(x, -1)[0], lambda x: x.cummax(-1)[0]),
    "cummin": (lambda x: ops.cummin(x, -1)[0], lambda x: x.cummin(-1)[0]),
    "median": (lambda x: ops.median(x, -1), lambda x: x.median(-1)[0]),
    "sort": (lambda x: ops.sort(x, -1)[0], lambda x: x.sort(-1)[0]),
    "rms_norm": (lambda x: F.rms_norm(x, (3,)), lambda x: TF.rms_norm(x, (3,))),
    "layer_norm": (lambda x: F.layer_norm(x, (3,)), lambda x: TF.layer_norm(x, (3,))),
    **{
        f"norm {p}": (lambda x, p=p: ops.norm(x, p, -1), lambda x, p=p: x.norm(p, -1))
        for p in (0, 0.5, 1, 1.5, 2, 3, INF, -INF, -1)
    },
    **{
        f"normalize {p}": tuple(lambda x, p=p, m=m: m.normalize(x, p, -1) for m in (F, TF))
        for p in (0.5, 1.0, 2.0, 3.0, INF)
    },
}  # fmt: skip
# Products of the others where PyTorch divides by an element; 0 where only exp(-inf) is added.
FINITE = ("prod", "cumprod", "logcumsumexp", "norm 0.5", "normalize 0.5")


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, row):
    compare(*REDUCTIONS[name], ROWS[row], finite_too=name in FINITE)


ZEROS, ONES, MIXED = np.zeros((2, 3)), np.ones((2, 3)), [[0, 1, 2], [0, 0, 0]]
SIGNS = np.array([1, -1])
LOSSES = {
    **{
        name: (getattr(F, name), getattr(TF, name))
        for name in (
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "huber_loss",
            "cosine_similarity",
            "binary_cross_entropy_with_logits",
            "triplet_margin_loss",
        )
    },
    "kl_div": (
        lambda x, y: F.kl_div(x, y.detach(), "sum") + 0 * y.sum(),
        lambda x, y: TF.kl_div(x, y.detach(), reduction="sum") + 0 * y.sum(),
    ),
    "cosine_embedding_loss": (
        lambda x, y: F.cosine_embedding_loss(x, y, ndl.Tensor(SIGNS)),
        lambda x, y: TF.cosine_embedding_loss(x, y, torch.tensor(SIGNS)),
    ),
    "triplet p=1": (
        lambda x, y, z: F.triplet_margin_loss(x, y, z, p=1, swap=True),
        lambda x, y, z: TF.triplet_margin_loss(x, y, z, p=1, swap=True),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("x", [ZEROS, ONES, MIXED, np.array(MIXED) * 1e3])
@pytest.mark.parametrize("y", [ZEROS, ONES, MIXED])
def test_losses(name, x, y):
    more = [ZEROS] if name.startswith("triplet") else []
    compare(*LOSSES[name], x, y, *more)
    if name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
        compare(*LOSSES[name], np.where(np.array(x) > 0, INF, x), y)


@pytest.mark.parametrize("label", [0.0, 0.3, 1.0])
def test_binary_cross_entropy_at_its_ends(label):
    x = np.array([0, 1, 1e-13, 1 - 1e-13, 1e-5, 0.5])
    y = np.full(x.shape, label)
    compare(
        lambda a: F.binary_cross_entropy(a, ndl.Tensor(y)),
        lambda a: TF.binary_cross_entropy(a, torch.tensor(y)),
        x,
    )


@pytest.mark.parametrize("label", [0, 1, 2])
@pytest.mark.parametrize("row", [[0, -INF, 1], [-INF, -INF, 0], [800, -800, 0], [-INF] * 3])
def test_class_scores(row, label):
    for name in ("cross_entropy", "nll_loss"):
        compare(
            lambda x, name=name: getattr(F, name)(x, ndl.Tensor([label])),
            lambda x, name=name: getattr(TF, name)(x, torch.tensor([label])),
            [row],
        )


def test_equal_numbers_of_pools_and_norms():
    x = np.ones((1, 4, 4, 4))
    for name, arguments in (
        ("max_pool2d", (3, 2)),
        ("adaptive_max_pool2d", (3,)),
        ("group_norm", (2,)),
        ("instance_norm", ()),
    ):
        compare(
            lambda a, n=name, k=arguments: getattr(F, n)(a, *k),
            lambda a, n=name, k=arguments: getattr(TF, n)(a, *k),
            x,
        )


@pytest.mark.parametrize("kind", [None, "fro", "nuc", 1, -1, INF, -INF])
def test_norms_of_matrices(kind):
    for x in (np.zeros((2, 2)), [[1, 2], [2, 4]]):
        compare(lambda a: ndl.linalg.norm(a, kind), lambda a: torch.linalg.norm(a, kind), x)
