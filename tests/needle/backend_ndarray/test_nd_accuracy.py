"""The bounds of accuracy.py hold on every CPU device and instruction set and are in the docs."""

import re

import numpy as np
import pytest

from needle import backend_ndarray as nd
from needle.backend_ndarray.accuracy import ULPS
from needle.backend_ndarray.accuracy import ulps as stated
from tests import ROOT
from tests.needle.backend_ndarray.drawing import OF_INTEGERS
from tests.needle.backend_ndarray.test_nd_math import run_isa
from tests.needle.backend_ndarray.truth import TRUTH, pairs, sweep, truth, ulps

DOCS = ROOT / "docs" / "dtypes.md"


def worst(name, device, operands):
    """The largest distance from the exact value, and the operands that give it."""
    with np.errstate(all="ignore"):
        views = [nd.array(x, device=device).view for x in operands]
        got = device.kernels.to_numpy(getattr(device.kernels, name)(*views))
    off = ulps(got, truth(name, *operands))
    at = int(np.argmax(off))
    return float(off[at]), [float(x[at]) for x in operands]


def check(device, dtype, count):
    for name in ULPS:
        make = pairs if name in ("power", "atan2") else lambda dtype, count: (sweep(dtype, count),)
        off, where = worst(name, device, make(np.dtype(dtype), count))
        assert off <= stated(name, dtype, device.name), (name, dtype, device, off, where)


@pytest.mark.parametrize(
    ("dtype", "count"),
    [
        ("float32", 300_000),
        ("float64", 30_000),  # the exact values of float64 cost
        pytest.param("float64", 300_000, marks=pytest.mark.slow),
    ],
)
def test_stated_ulps(device, dtype, count):
    check(device, dtype, count)


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
def test_stated_ulps_of_each_instruction_set(isa):
    code = """
from tests import ROOT
import tests.needle.backend_ndarray.test_nd_accuracy as t
for dtype in ("float32", "float64"):
    t.check(t.nd.cpu(), dtype, 20_000)
"""
    done = run_isa(isa, code=code)
    if "does not support" in done.stderr or "this build has" in done.stderr:
        pytest.skip(f"{isa} cannot run here")
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in ULPS if name not in ("power", "atan2")])
def test_seventeen_million_float32(name):
    """Every 251st bit pattern: all exponents, both signs, evenly spread mantissas."""
    step = 251 * 2**22
    for start in range(0, 2**32, step):
        bits = np.arange(start, min(start + step, 2**32), 251, dtype=np.uint64)
        x = bits.astype(np.uint32).view(np.float32)
        off, where = worst(name, nd.cpu(), [x])
        assert off <= stated(name, "float32"), (off, where)


def test_the_table_is_whole():
    """Every function of the kernel table is in it or in the list of exact functions here."""
    exact = {"negative", "abs", "sign", "relu", "square", "floor", "ceil", "sqrt", "reciprocal",
             "add", "subtract", "multiply", "divide", "maximum", "minimum",
             "relu_grad", "round", "trunc", "fmod", "remainder", "floor_divide"}  # fmt: skip
    kernels = nd.cpu().kernels
    x = nd.full((1,), 0.5, device=nd.cpu()).view
    unary, binary = ({*names} - {*OF_INTEGERS} for names in (kernels.UNARY, kernels.BINARY))
    floating = {n for n in unary if getattr(kernels, n)(x).dtype == "float32"}
    floating |= {n for n in binary if getattr(kernels, n)(x, x).dtype == "float32"}
    assert floating == set(ULPS) | exact
    assert set(TRUTH) == set(ULPS)


def test_the_docs_quote_the_table():
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (`.*`) \|$", DOCS.read_text(), re.MULTILINE)
    found = [(name, (int(a), int(b))) for a, b, text in rows for name in re.findall(r"\w+", text)]
    assert dict(found) == ULPS and len(found) == len(ULPS)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["sqrt", "reciprocal", "square", "floor", "ceil"])
def test_exact_ones_are_correctly_rounded(name, dtype):
    x = sweep(np.dtype(dtype), 200_000)
    exact = {"sqrt": np.sqrt, "reciprocal": np.reciprocal, "square": np.square,
             "floor": np.floor, "ceil": np.ceil}[name]  # fmt: skip
    got = getattr(nd.array(x, device=nd.cpu()), name)().numpy()
    with np.errstate(all="ignore"):
        # Double rounding is harmless for float32 (Figueroa, 1995); float64 is IEEE arithmetic.
        np.testing.assert_array_equal(got, exact(x.astype(np.float64)).astype(dtype))
