"""needle.fft against NumPy's, with gradients of first and second order."""

import numpy as np
import pytest

import needle as ndl
from needle import fft
from needle.errors import ShapeError
from needle.trace import trace
from tests.needle.directional import check_gradients

NORMS = ["backward", "ortho", "forward"]
SIZES = [None, 1, 3, 4, 7, 8]


def drawn(*shape, complex=True):
    rng = np.random.default_rng(0)
    real = rng.standard_normal(shape)
    return real + 1j * rng.standard_normal(shape) if complex else real


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("axis", [-1, 0])
def test_is_numpys(axis, n, norm, device):
    z, x = drawn(4, 5), drawn(4, 5, complex=False)
    pair = fft.from_complex(z, device)
    for name in ("fft", "ifft"):
        got = getattr(fft, name)(pair, n, axis, norm)
        want = getattr(np.fft, name)(z, n, axis, norm)
        assert got.shape == (*want.shape, 2) and got.device is device
        np.testing.assert_allclose(fft.to_complex(got), want, rtol=1e-12, atol=1e-12)
    got = fft.to_complex(fft.rfft(ndl.Tensor(x, device=device), n, axis, norm))
    np.testing.assert_allclose(got, np.fft.rfft(x, n, axis, norm), rtol=1e-12, atol=1e-12)
    got = fft.irfft(pair, n, axis, norm).numpy()
    np.testing.assert_allclose(got, np.fft.irfft(z, n, axis, norm), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [None, 3, 4, 7, 8])
@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_gradients(name, axis, n):
    shape = (4, 5) if name == "rfft" else (4, 5, 2)
    x = drawn(*shape, complex=False)
    for norm in NORMS:
        check_gradients(lambda a, norm=norm: getattr(fft, name)(a, n, axis, norm) ** 2, x)


@pytest.mark.parametrize("n", [4, 5])
def test_inverses(n):
    x = drawn(3, n, complex=False)
    a = ndl.Tensor(x)
    np.testing.assert_allclose(fft.irfft(fft.rfft(a), n).numpy(), x, atol=1e-12)
    back = fft.ifft(fft.fft(fft.from_real(a)))
    np.testing.assert_allclose(fft.to_complex(back), x, atol=1e-12)


def test_conversions():
    z = drawn(2, 3)
    same = fft.from_complex(z.astype("complex64"), requires_grad=True)
    assert same.dtype == "float32" and same.requires_grad
    assert fft.to_complex(same).dtype == np.complex64
    assert fft.from_complex(z).dtype == "float64"
    x = ndl.Tensor(drawn(2, 3, complex=False))
    pair = fft.from_real(x)
    np.testing.assert_array_equal(fft.to_complex(pair), x.numpy())
    assert fft.from_real(ndl.Tensor([np.inf])).numpy().tolist() == [[np.inf, 0.0]]
    check_gradients(lambda a: fft.from_real(a) ** 2, x.numpy())


@pytest.mark.parametrize(
    ("given", "result"),
    [
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        ("float32", "float32"),
        ("int32", "float64"),
    ],
)
def test_dtypes(given, result):
    x = ndl.Tensor([[1.0, 2.0], [3.0, 4.0]]).astype(given)
    for function in (fft.fft, fft.ifft, fft.rfft, lambda a: fft.irfft(a)):
        assert function(x).dtype == result
    np.testing.assert_array_equal(fft.fft(x).numpy(), [[4.0, 6.0], [-2.0, -2.0]])


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: fft.fft(ndl.ones(4)), ShapeError, r"fft.fft: shape \(4,\) does not hold complex"),
        (lambda: fft.irfft(ndl.ones(4, 3)), ShapeError, "convert them with fft.from_real"),
        (lambda: fft.fft(ndl.ones(2)), ShapeError, "axis -1 is out of range for 0 dimensions"),
        (lambda: fft.fft(ndl.ones(4, 2), 0), ShapeError, "n is 0"),
        (lambda: fft.irfft(ndl.ones(1, 2)), ShapeError, "n is 0"),
        (lambda: fft.rfft(ndl.ones(0)), ShapeError, "n is 0"),
        (lambda: fft.rfft(ndl.ones(4), axis=1), ShapeError, "axis 1 is out of range"),
        (lambda: fft.rfft(ndl.ones(4), norm="none"), ValueError, "norm 'none' is not one of"),
        (lambda: fft.rfft(np.ones(4)), TypeError, "input 0 is a ndarray"),
    ],
)
def test_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_tracing_refuses_them_by_name(name):
    with pytest.raises(ndl.TraceError, match=rf"fft.{name}: tracing: .* only in eager code"):
        trace(getattr(fft, name), ndl.ones(4, 2))
