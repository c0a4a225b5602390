"""Functions that are made of ops against PyTorch's of the same name: values and gradients."""

import numpy as np
import pytest

import needle as ndl
from needle import ops

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.peer

INDEX = np.array([[2, 0, 2, 1], [0, 0, 1, 2]])

# name, a call of needle's ops or of torch, the shapes of its tensors beside the index
CASES = [
    ("gather", lambda f, x, i: f.gather(x, 0, i), (3, 4)),
    ("gather shorter", lambda f, x, i: f.gather(x, 1, i), (3, 6)),
    ("scatter_add", lambda f, x, i, s: f.scatter_add(x, 0, i, s), (3, 5), (2, 4)),
    (
        "scatter_add longer",  # PyTorch has no gradient for it
        lambda f, x, i, s: f.scatter_add(x, 1, i, s[:2, :4] if f is torch else s),
        *((3, 5), (3, 6)),
    ),
    ("pixel_shuffle", lambda f, x, i: f.pixel_shuffle(x, 2), (2, 8, 3, 2)),
    ("pixel_unshuffle", lambda f, x, i: f.pixel_unshuffle(x, 2), (2, 4, 6)),
    ("repeat", lambda f, x, i: x.repeat(2, 1, 3), (3, 2)),
    ("unfold method", lambda f, x, i: x.unfold(0, 3, 2), (8, 2)),
    ("take", lambda f, x, i: f.take(x, i), (3, 4)),
    ("masked_fill", lambda f, x, i: x.masked_fill(i > 1, -1e9), (2, 4)),
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_is_torchs(case, device):
    _, call, *shapes = case
    compare(call, shapes, device)


UNFOLD = [
    {"kernel_size": 2},
    {"kernel_size": (2, 3), "stride": (1, 2), "padding": (1, 0)},
    {"kernel_size": 2, "dilation": (2, 1), "stride": 2, "padding": 1},
]


@pytest.mark.parametrize("window", UNFOLD)
@pytest.mark.parametrize("shape", [(2, 3, 6, 5), (3, 6, 5)])
def test_unfold_and_fold_are_torchs(window, shape, device):
    def of(f):
        return F if f is torch else f

    compare(lambda f, x, i: of(f).unfold(x, **window), [shape], device)
    columns = F.unfold(torch.zeros(shape), **window).shape
    compare(lambda f, x, i: of(f).fold(x, (6, 5), **window), [columns], device)


def test_the_last_of_repeated_positions_has_the_gradient(device):
    """PyTorch's scatter gives all of them a gradient, as if each had stayed."""
    compare(
        lambda f, x, i, s: f.scatter(x, 1, i, s),
        [(2, 5), (2, 4)],
        device,
        index=np.array([[3, 0, 2, 1], [0, 4, 1, 2]]),
    )
    x, s = ndl.zeros(1, 3, device=device), ndl.Tensor([[1.0, 2.0, 3.0]], device=device)
    y = ndl.scatter(x, 1, ndl.Tensor([[2, 0, 2]], device=device), s)
    np.testing.assert_array_equal(y.numpy(), [[2, 0, 3]])
    y.sum().backward()
    np.testing.assert_array_equal(s.grad.numpy(), [[0, 1, 1]])


@pytest.mark.parametrize(
    ("name", "reduce"), [("scatter_mul", "prod"), ("scatter_max", "amax"), ("scatter_min", "amin")]
)
def test_extremes_are_torchs(name, reduce, device):
    def call(f, x, i, s):
        if f is torch:
            return x.scatter_reduce(0, i, s, reduce)
        return getattr(ops, name)(x, 0, i, s)

    compare(call, [(3, 5), (2, 4)], device)
    compare(call, [(3, 5), (2, 4)], device, draw=lambda rng, n: rng.integers(0, 2, n))


def compare(call, shapes, device, index=INDEX, draw=None):
    rng = np.random.default_rng(0)
    draw = draw or (lambda rng, shape: rng.standard_normal(shape))
    arrays = [np.asarray(draw(rng, shape)).astype(np.float64) for shape in shapes]
    mine = [ndl.Tensor(a, device=device) for a in arrays]
    others = [torch.tensor(a, requires_grad=True) for a in arrays]
    got = call(ops, mine[0], ndl.Tensor(index, device=device), *mine[1:])
    want = call(torch, others[0], torch.tensor(index), *others[1:])
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-13)
    g = rng.standard_normal(want.shape)
    got.backward(ndl.Tensor(g, device=device))
    want.backward(torch.tensor(g))
    for a, b in zip(mine, others, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-12, atol=1e-13)
