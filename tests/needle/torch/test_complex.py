"""Complex numbers and Fourier transforms inside PyTorch models, compared with PyTorch."""

import numpy as np
import pytest

import needle as ndl
import needle.torch
import needle_tvm
from needle.errors import UnsupportedError

torch = pytest.importorskip("torch")
fft = torch.fft
pytestmark = pytest.mark.peer
WINDOW = torch.hann_window(16)


class Applied(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def normal(*shape, seed=3):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


def paired(x):
    """Complex numbers of the halves of x."""
    a, b = x.chunk(2)
    return torch.complex(a, b)


def spectrogram(x):
    found = torch.stft(x, 16, 4, window=WINDOW, return_complex=True)
    back = torch.istft(found, 16, 4, window=WINDOW)
    return found.abs(), torch.view_as_real(found), back


def narrow_window(x):
    found = torch.stft(x, 16, 4, 12, WINDOW[:12], normalized=True, return_complex=True)
    back = torch.istft(found, 16, 4, 12, WINDOW[:12], normalized=True, length=60)
    return found.real, back


def transforms(x):
    one, two = fft.rfft(x), fft.rfft(x, norm="ortho")
    return (
        fft.fft2(x).real,
        fft.irfft2(fft.rfft2(x), s=x.shape[-2:]),
        fft.ifft(fft.fft(x) * 2 + x).imag,
        (one * two.conj()).abs(),
        fft.irfft(one, n=9),
        (two / (one + 3)).real,
        fft.hfft(one, norm="forward"),
        fft.fftshift(fft.fftn(x, norm="ortho")).imag,
    )


def long_transform(x):
    return torch.view_as_real(fft.rfft(x)), fft.irfft(fft.rfft(x), n=1024)


def rotated(x):
    angles = torch.arange(10.0)[:, None] * torch.tensor([1.0, 0.1, 0.01])
    turns = torch.polar(torch.ones(10, 3), angles)
    return torch.view_as_real(torch.view_as_complex(x.reshape(2, 10, 3, 2)) * turns).flatten(-2)


def arithmetic(x):
    z = paired(x)
    return (
        z.abs(),
        z.angle(),
        (1 / z + z / 2 - z * 1j + (3 - z)).real,
        (z.exp() + z.sqrt() + z.log() + z**2 + z.pow(1.5) + z.reciprocal()).imag,
        (z.sgn() + z.tanh() + z.sin() + z.sigmoid()).real,
        (z @ z.mH).real,
        torch.einsum("ij,kj->ik", z, z.conj()).imag,
        z.sum(0).real + z.mean(0).imag + z.prod(0).real,
        z.conj().imag,
    )


def moved(x):
    z = paired(x)
    chosen = torch.where(z.real > 0, z, z.imag + 0j)
    joined = torch.cat([z.flip(1), chosen.roll(1, 0), z[:, [2, 0, 1]]])
    filled = joined.masked_fill(joined.real < 0, 1 + 2j).unsqueeze(1).expand(-1, 2, -1)
    first, second = filled.split([2, 4])
    return torch.view_as_real(first), second.permute(2, 0, 1).reshape(3, -1).imag


def complex_returned(x):
    z = paired(x)
    return z, z * 2, z == z.conj()


CASES = [
    (spectrogram, (2, 64)),
    (narrow_window, (2, 64)),
    (transforms, (3, 9)),
    (long_transform, (2, 1024)),
    (rotated, (2, 10, 6)),
    (arithmetic, (4, 3)),
    (moved, (4, 3)),
    (complex_returned, (4, 3)),
]
NAMES = [function.__name__ for function, _ in CASES]


def compared(found, wanted, atol=2e-5):
    for have, want in zip(found, torch.utils._pytree.tree_leaves(wanted), strict=True):
        want = want.detach().resolve_conj().resolve_neg()
        want = torch.view_as_real(want) if want.is_complex() else want
        scale = max(1.0, float(want.abs().max())) if want.is_floating_point() else 1
        np.testing.assert_allclose(have.numpy(), want.numpy(), atol=atol * scale)


@pytest.mark.parametrize(("function", "shape"), CASES, ids=NAMES)
def test_results_and_gradients_are_pytorchs(function, shape):
    x = normal(*shape)
    loaded = needle.torch.load(Applied(function).eval(), x)
    theirs, mine = x.clone().requires_grad_(), ndl.Tensor(x.numpy(), requires_grad=True)
    wanted, found = function(theirs), loaded(mine)
    leaves = [*found] if isinstance(found, (tuple, list)) else [found]
    compared(leaves, wanted)
    wanted = [
        torch.view_as_real(each.resolve_conj()) if each.is_complex() else each
        for each in torch.utils._pytree.tree_leaves(wanted)
    ]
    sum((each**2).sum() for each in wanted if each.is_floating_point()).backward()
    sum((each**2).sum() for each in leaves if each.dtype == "float32").backward()
    compared([mine.grad], theirs.grad, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "shape"), CASES, ids=NAMES)
def test_compiled_results_are_pytorchs(function, shape):
    x = normal(*shape)
    loaded = needle.torch.load(Applied(function).eval(), x)
    found = needle_tvm.compile(loaded, x.numpy(), stage="fused")(x.numpy())
    compared([*found] if isinstance(found, (tuple, list)) else [found], function(x))


@pytest.mark.parametrize(
    ("function", "values"),
    [
        (lambda z: torch.view_as_real(1 / z), [3e38 + 3e38j, 1e-30 + 1e-30j, 2j]),
        (torch.abs, [0, 3e38 + 1e38j, complex("inf"), complex("nan"), 1e-30j]),
        (torch.angle, [0, -1, -1 - 0.0j, 1j]),
        (lambda z: torch.view_as_real(z.sgn()), [0, 3 + 4j]),
        (lambda z: torch.view_as_real(z.sqrt()), [0, -4, complex(-4, -0.0), 3 - 4j]),
        (lambda z: torch.view_as_real(z**0), [0, 2j]),
        (lambda z: z == 2j, [2j, 2, complex("nan")]),
        (lambda z: torch.view_as_real(z.cumsum(0)), [1j, 2, 3]),
    ],
)
def test_limits(function, values):
    z = torch.tensor(values, dtype=torch.complex64)
    loaded = needle.torch.load(Applied(function).eval(), z)
    found = loaded(torch.view_as_real(z).numpy()).numpy()
    np.testing.assert_allclose(found, function(z).numpy(), rtol=1e-5)


class Rotary(torch.nn.Module):
    """Rotary embeddings as Llama's first code has them, and a complex parameter."""

    def __init__(self):
        super().__init__()
        angles = torch.arange(16.0)[:, None] * torch.tensor([1.0, 0.1, 0.01])
        self.register_buffer("turns", torch.polar(torch.ones(16, 3), angles), persistent=False)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.complex64))
        self.scale = torch.nn.Parameter(torch.tensor([1 + 1j, 2, 3j]))

    def forward(self, x):
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        z = z * self.turns[: x.shape[1]] * self.scale
        self.seen.add_(z[0, 0])
        return torch.view_as_real(z).flatten(-2).type_as(x)


def test_complex_weights_are_pairs_and_are_written_and_trained():
    model, x = Rotary().eval(), normal(2, 10, 6)
    loaded = needle.torch.load(model, x)
    assert {name: value.shape for name, value in loaded.state_dict().items()} == {
        "scale": (3, 2),
        "seen": (3, 2),
    }
    wanted = model(x)
    found = loaded(x.numpy())
    compared([found, loaded.state_dict()["seen"]], [wanted, model.seen])
    (found**2).sum().backward()
    (wanted**2).sum().backward()
    compared([dict(loaded.named_parameters())["scale"].grad], model.scale.grad, atol=1e-4)


def test_rotary_embeddings_take_open_lengths():
    model, dim = Rotary().eval(), ndl.Dim("n", max=16)
    loaded = needle.torch.load(model, normal(2, 10, 6), dims={"x": {1: dim}})
    for n in (1, 7, 16):
        x = normal(2, n, 6)
        compared([loaded(x.numpy())], model(x))


def test_lengths_that_have_no_transform_are_refused():
    with pytest.raises(UnsupportedError, match=r"a transform of 4099, which has the prime factor"):
        needle.torch.load(Applied(lambda x: fft.rfft(x).abs()).eval(), torch.ones(4099))
