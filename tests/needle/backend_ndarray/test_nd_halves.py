"""float16 and bfloat16: exact conversions, a single rounding, and float32 inside kernels."""

import os
import subprocess
import sys
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from needle import backend_ndarray as nd
from needle.backend_ndarray.dtypes import astype, finfo
from tests import ROOT
from tests.needle.backend_ndarray.drawing import HALVES, plain, same

PATTERNS = np.arange(2**16, dtype=np.uint16)


def bits(x):
    return x.view(f"u{x.itemsize}")


def hard_floats(dtype):
    """Every half, every midpoint of two halves, their neighbours, and float32 of every exponent."""
    exact = PATTERNS.view(dtype).astype(np.float32)
    exact = exact[~np.isnan(exact)]
    step = np.int64(2 ** (23 - finfo(dtype).nmant) // 2)
    near = bits(exact).astype(np.int64)[:, None] + np.array([-1, 0, 1, step - 1, step, step + 1])
    near = (near % 2**32).astype(np.uint32).view(np.float32).reshape(-1)
    rng = np.random.default_rng(0)
    spread = rng.integers(0, 2**32, 300_000, dtype=np.uint32).view(np.float32)
    # Subnormal halves and fractions of the least one.
    least = float(finfo(dtype).smallest_subnormal)
    small = (rng.integers(-4096, 4096, 100_000) / 8 * least).astype(np.float32)
    return np.concatenate([near, spread, small])


def check_conversions():
    """Check conversions against NumPy's float16 and ml_dtypes' bfloat16."""
    for dtype in HALVES:
        halves = PATTERNS.view(dtype)
        nan = np.isnan(plain(halves))
        same(nd.array(halves).astype("float32"), halves.astype(np.float32))
        back = nd.array(halves).astype("float32").astype(dtype).numpy()
        np.testing.assert_array_equal(bits(back)[~nan], PATTERNS[~nan])
        assert np.isnan(plain(back[nan])).all()
        # Copies move bits, also those of NaN.
        moved = nd.array(halves.reshape(256, 256)).permute(1, 0).compact().numpy()
        np.testing.assert_array_equal(bits(moved), PATTERNS.reshape(256, 256).T)
        x = hard_floats(dtype)
        with np.errstate(all="ignore"):
            same(nd.array(x).astype(dtype), x.astype(dtype))
            same(nd.array(x)[::-3].astype(dtype), x[::-3].astype(dtype))


def test_conversions():
    check_conversions()


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
def test_conversions_by_each_instruction_set(isa):
    done = subprocess.run(
        [sys.executable, "-c", f"import {__name__} as t; t.check_conversions()"],
        cwd=ROOT,
        env={**os.environ, "NEEDLE_CPU_ISA": isa}, capture_output=True, text=True,
    )  # fmt: skip
    if "does not support" in done.stderr or "this build has" in done.stderr:
        pytest.skip(f"no {isa} here")
    assert done.returncode == 0, done.stderr


def hard_values(dtype):
    """float64 and int64 values that would be rounded twice by way of float32 or float64."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        halves = PATTERNS.view(dtype).astype(np.float64)
    halves = halves[np.isfinite(halves)]
    middle = (halves[:-1] + halves[1:]) / 2
    shift = np.array([0, 2.0**-30, -(2.0**-30), 2.0**-52, -(2.0**-52)])
    wide = (middle[:, None] * (1 + shift)).reshape(-1)
    rng = np.random.default_rng(0)
    powers = 2 ** rng.integers(9, 62, 4000)
    whole = powers + powers // 256 + rng.integers(-1, 2, 4000)
    return [wide, whole, -whole, np.array([2**63 - 1, -(2**63), 2**53 + 1, 65519, 65520])]


def nearest_half(value, dtype):
    """`value` rounded to the nearest half, ties to even, in exact arithmetic."""
    info = finfo(dtype)
    magnitude = abs(Fraction(value))
    digits = int(info.nmant)
    exponent = int(info.minexp)
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - digits)
    rounded = round(magnitude / unit) * unit  # Python rounds half to even
    if rounded > Fraction(float(info.max)):
        return np.copysign(np.inf, float(value))
    return float(rounded) if value >= 0 else -float(rounded)


@pytest.mark.parametrize("dtype", HALVES)
def test_casts_round_once(dtype, device):
    for x in hard_values(dtype):
        x = x[:: max(1, x.size // 1000)]
        got = nd.array(x, device=device).astype(dtype).numpy().astype(np.float64)
        expected = np.array([nearest_half(v.item(), dtype) for v in x])
        np.testing.assert_array_equal(got, expected)


def test_twice_rounded_would_differ():
    """The case that ml_dtypes gets wrong is tested above, and needle gets it right."""
    x = np.array([1 + 2.0**-8 + 2.0**-40])
    assert x.astype(ml_dtypes.bfloat16) == 1.0
    assert astype(x, "bfloat16").astype(float) == nd.array(x).astype("bfloat16").item() > 1.0


@pytest.mark.parametrize("dtype", HALVES)
def test_arithmetic_is_correctly_rounded(dtype, device):
    """float32 has more than twice a half's digits, so rounding to it in between changes nothing."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(20_000).astype(dtype) for _ in range(2))
    a, b = (nd.array(v, device=device) for v in (x, y))
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    for got, exact in [
        (a + b, wide_x + wide_y),
        (a - b, wide_x - wide_y),
        (a * b, wide_x * wide_y),
        (a / b, wide_x / wide_y),
        (a.abs().sqrt(), np.sqrt(np.abs(wide_x))),
    ]:
        same(got, astype(exact, dtype))


def test_scalars_are_weak_and_rounded_first(device):
    a = nd.array(np.array([3.0, 5.0], np.float16), device=device)
    same(a * 2.1, np.array([3.0, 5.0], np.float16) * 2.1)  # NumPy 2
    for dtype in HALVES:
        a = nd.ones((2,), dtype, device=device)
        for result in (a * 2.5, 2 - a, a + True, a**2, a.maximum(0.5)):
            assert result.dtype == dtype


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_and_products_are_accumulated_in_float32_or_more(dtype, device):
    ones = nd.ones((5000,), dtype, device=device)
    assert ones.sum().item() == astype(np.array(5000.0), dtype)
    assert (ones * 30.0).mean().item() == 30.0  # the sum is beyond float16
    assert (ones[None] @ ones[:, None]).item() == astype(np.array(5000.0), dtype)
    total = nd.zeros((2,), dtype, device=device)
    total.add_at(np.zeros(5000, np.int64), ones)
    assert total.numpy().tolist() == [astype(np.array(5000.0), dtype), 0]


@pytest.mark.parametrize("dtype", HALVES)
def test_torch_shares_memory(dtype):
    torch = pytest.importorskip("torch")
    t = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    a = nd.from_dlpack(t)
    a[1, 2] = 40.0
    assert t[1, 2] == 40
    u = torch.from_dlpack(a * 2.0)
    assert u.dtype == t.dtype and torch.equal(u, t * 2)


def test_numpy_cannot_export_bfloat16():
    with pytest.raises(BufferError):
        nd.ones((2,), "bfloat16", device=nd.cpu_numpy()).__dlpack__()


@pytest.mark.parametrize("dtype", HALVES)
def test_optimizer_steps(dtype, device):
    """Parameters are rounded once a step; the state kept between steps is float32."""
    rng = np.random.default_rng(0)
    half = lambda: nd.array(rng.standard_normal((300, 7)).astype(dtype), device=device)  # noqa: E731
    k = device.kernels
    for step in (
        lambda p, g, m, v: k.sgd_step(p, g, m, 0.1, 0.9, 0.5, 0.01),
        lambda p, g, m, v: k.adam_step(p, g, m, v, 0.1, 0.9, 0.99, 1e-8, 0.01, 0.5, 0.25, False),
    ):
        p, g = half().permute(1, 0), half().permute(1, 0)
        m, v = (nd.zeros(p.shape, device=device) for _ in range(2))
        wide = [x.astype("float32") for x in (p, g, m, v)]
        step(*(x.view for x in (p, g, m, v)))
        step(*(x.view for x in wide))
        same(m, wide[2].numpy())
        same(v, wide[3].numpy())
        same(p, wide[0].astype(dtype).numpy())
        with pytest.raises(ValueError, match="takes float32"):
            step(p.view, g.view, g.view, g.view)
