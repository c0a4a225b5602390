"""Interpolation beside infinities: an element of weight 0 takes no part in a result."""

import numpy as np
import pytest

import needle as ndl
import needle.nn.functional as F
from needle.backend_ndarray import cpu, cpu_numpy


@pytest.mark.parametrize("device", [cpu, cpu_numpy])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize(("mode", "axes"), [("linear", 1), ("bilinear", 2), ("bicubic", 2)])
def test_an_infinity_reaches_what_it_has_a_weight_in(device, mode, axes, align):
    """The weights are the results for ones at single places. An infinity of weight above 0 makes a
    result infinite, of weight below 0 infinite with the other sign, and of both NaN."""
    rng = np.random.default_rng(0)
    for size in (3, 4, 5, 8, 10):
        x = rng.standard_normal((1, 1) + (5,) * axes).astype("float32")
        infinite = tuple(rng.integers(1, 4, axes))  # those of the border are taken twice
        x[(0, 0, *infinite)] = np.inf

        def resized(values, size=size):
            given = ndl.Tensor(values, device=device())
            return F.interpolate(given, size=(size,) * axes, mode=mode, align_corners=align).numpy()

        one = np.zeros_like(x)
        one[(0, 0, *infinite)] = 1
        weight, rest = resized(one), resized(np.where(np.isinf(x), 0, x))
        with np.errstate(invalid="ignore"):
            expected = np.where(weight == 0, rest, np.sign(weight) * np.inf)
        np.testing.assert_allclose(resized(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.peer
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize(("mode", "axes"), [("linear", 1), ("bilinear", 2), ("bicubic", 2)])
def test_there_is_no_nan_where_pytorch_has_none(mode, axes, align):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    for size in (3, 4, 5, 6, 8, 10, 12):
        x = rng.standard_normal((1, 1) + (5,) * axes).astype("float32")
        x.reshape(-1)[rng.integers(0, x.size, 2)] = [np.inf, -np.inf]
        options = {"size": (size,) * axes, "mode": mode, "align_corners": align}
        expected = torch.nn.functional.interpolate(torch.tensor(x), **options).numpy()
        found, known = F.interpolate(ndl.Tensor(x), **options).numpy(), ~np.isnan(expected)
        np.testing.assert_allclose(found[known], expected[known], rtol=1e-4, atol=1e-5)
