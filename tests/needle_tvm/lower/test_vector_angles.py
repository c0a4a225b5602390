"""The formulas of ordinary arguments, and the C library for the others, in compiled code."""

import numpy as np
import pytest

from needle.backend_ndarray.accuracy import ulps
from needle_tvm._tvm.names import Schedule, te, tirx, tvm
from needle_tvm.lower.libraries import generated_source
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import module_of

SPECIAL = np.array(
    [
        0,
        1,
        2,
        3,
        0.5,
        1.5,
        np.inf,
        np.nan,
        1e-45,
        1e-39,
        3e38,
        1e5,
        99999,
        123456,
        2**22,
        2**24 + 2,
    ],
    "float32",
)
SPECIAL = np.concatenate([SPECIAL, -SPECIAL])


def fmod(a, b):
    a, b = tirx.convert(a), tirx.convert(b)
    name = {"float32": "fmodf", "float64": "fmod"}[str(a.ty)]
    return tirx.call_pure_extern(str(a.ty), name, a, b)


def build(element, count, lanes, operands, dtype, target):
    """A function of `operands` arrays and the result, `lanes` elements of which are in a vector."""
    given = [te.placeholder((count,), dtype, name=f"x{i}") for i in range(operands)]
    y = te.compute((count,), lambda i: element(*(x[i] for x in given)), name="y")
    sch = Schedule(module_of(te.create_prim_func([*given, y])))
    if lanes > 1:
        (loop,) = sch.get_loops(sch.get_sblock("y"))
        sch.vectorize(sch.split(loop, [None, lanes])[1])
    target = resolve(target, 1).to_tvm()
    with target:
        return tvm.compile(sch.mod, target=target)


def result(element, lanes, *operands, target="cpu"):
    built = build(element, operands[0].size, lanes, len(operands), operands[0].dtype.name, target)
    given = [tvm.runtime.tensor(x) for x in (*operands, np.zeros_like(operands[0]))]
    built["main"](*given)
    return given[-1].numpy()


def pairs(rng, count=40_000):
    """Numbers of any size, and all pairs of special ones."""
    first, second = (part.ravel() for part in np.meshgrid(SPECIAL, SPECIAL))
    sizes = 10.0 ** rng.integers(-6, 6, (2, count))
    x, y = rng.standard_normal((2, count)) * sizes
    y[::2] = np.round(y[::2] * 10)
    return [np.concatenate(both).astype("float32") for both in ((first, x), (second, y))]


@pytest.mark.parametrize("target", ["cpu", {"kind": "llvm", "mcpu": "x86-64-v2"}], ids=str)
@pytest.mark.parametrize("lanes", [1, 4, 16, 32])
@pytest.mark.parametrize("name", ["sin", "cos", "pow"])
def test_results_are_as_near_as_the_eager_kernels(name, lanes, target, rng):
    x, y = pairs(rng)
    operands = [x, y] if name == "pow" else [x]
    found = result(getattr(tirx, name), lanes, *operands, target=target)
    with np.errstate(all="ignore"):
        wide = [each.astype("float64") for each in operands]
        exact = getattr(np, {"pow": "power"}.get(name, name))(*wide)
        rounded = exact.astype("float32")
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~finite], rounded[~finite])
    unit = np.spacing(np.maximum(np.abs(rounded[finite]), np.finfo("float32").tiny))
    bound = ulps({"pow": "power"}.get(name, name), "float32")
    assert (np.abs(found[finite] - exact[finite]) / unit).max() <= bound
    np.testing.assert_array_equal(np.signbit(found[finite]), np.signbit(rounded[finite]))


@pytest.mark.parametrize("target", ["cpu", {"kind": "llvm", "mcpu": "x86-64-v2"}], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("lanes", [1, 8, 16])
def test_rests_are_exact(lanes, dtype, target, rng):
    x, y = (each.astype(dtype) for each in pairs(rng))
    if dtype == "float64":
        x, y = x / 3, y / 7
    found = result(fmod, lanes, x, y, target=target)
    with np.errstate(all="ignore"):
        exact = np.fmod(x, y)
    np.testing.assert_array_equal(found, exact)
    number = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(exact[number]))


@pytest.mark.parametrize("element", [tirx.sin, tirx.pow, fmod])
def test_vectors_have_a_way_without_the_c_library(element):
    operands = 1 if element is tirx.sin else 2
    target = {"kind": "llvm", "mcpu": "skylake-avx512"}
    source = generated_source(build(element, 64, 16, operands, "float32", target), "ll")
    assert "<16 x float> @llvm.fma" in source or "<16 x double> @llvm.fma" in source
