"""Accuracy of the native functions in units in the last place, on every instruction set."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from needle import backend_ndarray as nd

native = nd.cpu().kernels


def ulp_error(got, truth):
    """Distance in float32 units in the last place between got (float32) and truth (float64)."""
    unit = np.spacing(np.maximum(np.abs(truth), np.finfo(np.float32).tiny).astype(np.float32))
    return np.abs(got.astype(np.float64) - truth) / unit


def samples():
    """Every exponent of float32 in both signs, densely where functions bend."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 400_000, dtype=np.uint32).view(np.float32)
    near = [rng.uniform(-r, r, 100_000).astype(np.float32) for r in (1, 5, 20, 110)]
    x = np.concatenate([bits, *near, np.linspace(-0.7, 0.7, 100_000, dtype=np.float32)])
    return x[np.isfinite(x)]


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


TRUTH = {
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "tanh": np.tanh,
    "sin": np.sin, "cos": np.cos, "sqrt": np.sqrt, "sigmoid": sigmoid,
    "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x,
    "erf": lambda x: np.array([math.erf(v) for v in x]),
}  # fmt: skip


@pytest.mark.parametrize("name", TRUTH)
def test_float32_within_four_ulp(name):
    x = samples()
    if name == "erf":
        x = x[::5]
    with np.errstate(all="ignore"):
        truth = TRUTH[name](x.astype(np.float64))
        in_range = np.isfinite(truth.astype(np.float32))
    a = nd.array(x, device=nd.cpu())
    got = native.to_numpy(getattr(native, name)(a.view))
    assert ulp_error(got[in_range], truth[in_range]).max() <= 4
    with np.errstate(all="ignore"):
        expected = truth.astype(np.float32)
    np.testing.assert_array_equal(got[~in_range], expected[~in_range])
    # The strided path is another loop over the same function.
    half = native.to_numpy(getattr(native, name)(a[::2].view))
    np.testing.assert_array_equal(half, got[::2])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_values(dtype):
    inf, nan = np.inf, np.nan
    x = nd.array(np.array([nan, inf, -inf, 0.0, -0.0], dtype), device=nd.cpu())
    expected = {
        "exp": [nan, inf, 0, 1, 1],
        "log": [nan, inf, nan, -inf, -inf],
        "tanh": [nan, 1, -1, 0, -0.0],
        "sigmoid": [nan, 1, 0, 0.5, 0.5],
        "relu": [nan, inf, 0, 0, 0],
        "erf": [nan, 1, -1, 0, -0.0],
        "sqrt": [nan, inf, nan, 0, -0.0],
        "rsqrt": [nan, 0, nan, inf, -inf],
        "abs": [nan, inf, inf, 0, 0],
        "sign": [nan, 1, -1, 0, 0],
        "isnan": [True, False, False, False, False],
        "isfinite": [False, False, False, True, True],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(getattr(x, name)().numpy(), values, err_msg=name)


SCRIPT = """
import sys
import numpy as np
from needle import backend_ndarray as nd
k = nd.cpu().kernels
assert k.isa() == sys.argv[1], k.isa()
rng = np.random.default_rng(0)
out = {}
for dtype in ("float32", "float64", "int32", "int64"):
    x = nd.array((rng.standard_normal((7, 131)) * 3).astype(dtype))
    y = nd.array((rng.standard_normal((131,)) * 3).astype(dtype))
    for name in k.UNARY:
        out[f"{name}-{dtype}"] = getattr(k, name)(x.view)
    for name in k.BINARY:
        if name != "power":
            out[f"{name}-{dtype}"] = getattr(k, name)(x.view, y.view)
    for name in ("sum", "prod", "max", "min"):
        out[f"{name}-{dtype}"] = getattr(k, name)(x.view, (0,), False)
        out[f"{name}1-{dtype}"] = getattr(k, name)(x.view, (1,), False)
    out[f"matmul-{dtype}"] = k.matmul(x.view, x.permute(1, 0).view)
np.savez(sys.argv[2], **{name: k.to_numpy(v) for name, v in out.items()})
"""


def run_isa(isa, *arguments, code=SCRIPT):
    environment = {**os.environ, "NEEDLE_CPU_ISA": isa}
    return subprocess.run(
        [sys.executable, "-c", code, isa, *arguments],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip


def test_instruction_sets_agree(tmp_path):
    """The variants this processor can run give the same results, to a few ulp where some fuse."""
    results = {}
    for isa in ("generic", "avx2", "avx512"):
        done = run_isa(isa, str(tmp_path / f"{isa}.npz"))
        if "does not support" in done.stderr or "this build has" in done.stderr:
            continue
        assert done.returncode == 0, done.stderr
        results[isa] = np.load(tmp_path / f"{isa}.npz")
    base = results["generic"]
    for isa, other in results.items():
        for name in base:
            x, y = base[name], other[name]
            assert x.dtype == y.dtype
            if x.dtype.kind != "f":
                np.testing.assert_array_equal(x, y, err_msg=f"{isa} {name}")
                continue
            # matmul sums 131 products in another order; everything else differs by fused roundings.
            terms = 131 if name.startswith("matmul") else 8
            rtol = terms * np.finfo(x.dtype).eps
            np.testing.assert_allclose(y, x, rtol=rtol, atol=rtol * 9, err_msg=f"{isa} {name}")


@pytest.mark.parametrize(
    "variable, value", [("NEEDLE_CPU_ISA", "mmx"), ("NEEDLE_NUM_THREADS", "many"),
                        ("NEEDLE_NUM_THREADS", "0"), ("NEEDLE_GEMM", "magic")]
)  # fmt: skip
def test_bad_environment_is_named(variable, value):
    done = subprocess.run(
        [sys.executable, "-c", "from needle.backend_ndarray import _cpu"],
        env={**os.environ, variable: value}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and f"{variable}={value}" in done.stderr
