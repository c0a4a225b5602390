"""Fourier transforms and complex numbers inside PyTorch models, compared with PyTorch."""

import numpy as np
import pytest

import needle_tvm
from needle_tvm.errors import TranslationError
from tests.needle_tvm.frontend.torch.torch_checks import Applied

torch = pytest.importorskip("torch")
fft = torch.fft
pytestmark = pytest.mark.peer
WINDOW = torch.hann_window(16)


def spectrogram(x):
    found = torch.stft(x, 16, 4, window=WINDOW, return_complex=True)
    back = torch.istft(found, 16, 4, window=WINDOW)
    return found.abs(), torch.view_as_real(found), back


def mixed(x):
    one, two = fft.rfft(x), fft.rfft(x, norm="ortho")
    return (
        fft.fft2(x).real,
        fft.irfft2(fft.rfft2(x), s=x.shape[-2:]),
        fft.ifft(fft.fft(x) * 2 + x).imag,
        (one * two.conj()).abs(),
        fft.irfft(one, n=9),
        (two / (one + 3)).real,
    )


def rotated(x):
    angles = torch.arange(10.0)[:, None] * torch.tensor([1.0, 0.1, 0.01])
    turns = torch.polar(torch.ones(10, 3), angles).to(x.device)  # asserts what it is
    return torch.view_as_real(torch.view_as_complex(x.reshape(2, 10, 3, 2)) * turns).flatten(-2)


@pytest.mark.slow
@pytest.mark.parametrize("function", [spectrogram, mixed, rotated], ids=lambda f: f.__name__)
def test_complex_numbers_inside(function):
    shape = {"spectrogram": (2, 64), "mixed": (3, 9), "rotated": (2, 10, 6)}[function.__name__]
    x = torch.from_numpy(np.random.default_rng(3).normal(size=shape)).float()
    compiled = needle_tvm.compile_torch(Applied(function).eval(), x, stage="fused")
    wanted = torch.utils._pytree.tree_leaves(function(x))
    for have, want in zip(torch.utils._pytree.tree_leaves(compiled(x)), wanted, strict=True):
        scale = max(1.0, float(want.abs().max()))
        np.testing.assert_allclose(have.numpy(), want.numpy(), atol=2e-5 * scale)


def test_complex_results_are_refused():
    with pytest.raises(TranslationError, match=r"returns complex numbers.*view_as_real"):
        needle_tvm.compile_torch(Applied(fft.fft).eval(), torch.ones(4))
