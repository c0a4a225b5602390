"""Native functions at special values, in every loop variant and on every instruction set."""

import os
import subprocess
import sys

import numpy as np
import pytest

from needle import backend_ndarray as nd
from needle.backend_ndarray.dtypes import FLOATING, HALVES, finfo
from tests import ROOT
from tests.needle.backend_ndarray.drawing import NATIVE, OF_INTEGERS
from tests.needle.backend_ndarray.truth import sweep

native = NATIVE.kernels


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted({*native.UNARY} - {*OF_INTEGERS}))
def test_strided_and_compact_loops_agree(name, dtype):
    a = nd.array(sweep(np.dtype(dtype), 20_000), device=NATIVE)
    every = native.to_numpy(getattr(native, name)(a.view))
    for view, expected in ((a[::2], every[::2]), (a[::-3], every[::-3]), (a[1:], every[1:])):
        got = native.to_numpy(getattr(native, name)(view.view))
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", FLOATING)
def test_special_values(dtype):
    inf, nan = np.inf, np.nan
    x = nd.array(np.array([nan, inf, -inf, 0.0, -0.0], dtype), device=NATIVE)
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
        got = getattr(x, name)()
        got = got.astype("float64") if got.dtype in HALVES else got
        np.testing.assert_array_equal(got.numpy(), values, err_msg=name)


SCRIPT = """
import sys
import numpy as np
from needle import backend_ndarray as nd
from tests.needle.backend_ndarray.drawing import OF_INTEGERS
k = nd.cpu().kernels
assert k.isa() == sys.argv[1], k.isa()
rng = np.random.default_rng(0)
out = {}
for dtype in ("float32", "float64", "int32", "int64", "float16", "bfloat16"):
    x = nd.array((rng.standard_normal((7, 131)) * 3).astype(dtype))
    y = nd.array((rng.standard_normal((131,)) * 3).astype(dtype))
    whole = dtype.startswith("int")
    for name in (name for name in k.UNARY if whole or name not in OF_INTEGERS):
        out[f"{name}-{dtype}"] = getattr(k, name)(x.view)
    for name in (name for name in k.BINARY if whole or name not in OF_INTEGERS):
        if name != "power":
            out[f"{name}-{dtype}"] = getattr(k, name)(x.view, y.view)
    for name in ("sum", "prod", "max", "min"):
        out[f"{name}-{dtype}"] = getattr(k, name)(x.view, (0,), False)
        out[f"{name}1-{dtype}"] = getattr(k, name)(x.view, (1,), False)
    out[f"matmul-{dtype}"] = k.matmul(x.view, x.permute(1, 0).view)
def plain(x):  # an archive holds no bfloat16
    return x.astype(np.float32) if x.dtype.name == "bfloat16" else x
np.savez(sys.argv[2], **{name: plain(k.to_numpy(v)) for name, v in out.items()})
"""


def run_isa(isa, *arguments, code=SCRIPT):
    return subprocess.run(
        [sys.executable, "-c", code, isa, *arguments],
        env={**os.environ, "NEEDLE_CPU_ISA": isa}, cwd=ROOT,
        capture_output=True, text=True,
    )  # fmt: skip


def test_instruction_sets_agree(tmp_path):
    """All variants this processor can run agree, to a few ulp where some fuse multiply-add."""
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
            # matmul sums 131 terms in another order; the rest differs only by fused multiply-add.
            terms = 131 if name.startswith("matmul") else 8
            half = next((dtype for dtype in HALVES if name.endswith(f"-{dtype}")), None)
            rtol = terms * np.finfo(np.float32 if half else x.dtype).eps
            if half:
                rtol += float(finfo(half).eps)
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
