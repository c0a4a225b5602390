"""The formulas that replace the C library's functions in compiled code."""

import math
from contextlib import nullcontext

import numpy as np
import pytest

from needle.backend_ndarray.accuracy import ulps
from needle_tvm._tvm.names import Schedule, te, tirx, tvm
from needle_tvm.lower.libraries import generated_source
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import module_of

REFERENCES = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": lambda x: np.exp(-np.logaddexp(0, -x)),
    "erf": np.vectorize(math.erf),
}
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, -1e-42, 88.7, 89.0, -87.4, -103.9, -104.5]


def build(name, count, lanes, dtype="float32", target="cpu", current=True):
    """A function of (x, y) of `count` elements, `lanes` of them in a vector.

    The target is the current one, as in a real build, if `current`. The formulas ask it for
    instructions, and without one take a general path.
    """
    x = te.placeholder((count,), dtype, name="x")
    y = te.compute((count,), lambda i: getattr(tirx, name)(x[i]), name="y")
    sch = Schedule(module_of(te.create_prim_func([x, y])))
    if lanes > 1:
        (loop,) = sch.get_loops(sch.get_sblock("y"))
        sch.vectorize(sch.split(loop, [None, lanes])[1])
    target = resolve(target, 1).to_tvm()
    with target if current else nullcontext():
        return tvm.compile(sch.mod, target=target)


@pytest.mark.parametrize("current", [True, False], ids=["target", "no target"])
@pytest.mark.parametrize("lanes", [1, 4, 16, 32])
@pytest.mark.parametrize("name", REFERENCES)
def test_results_are_as_near_as_the_eager_kernels(name, lanes, current, rng):
    x = np.concatenate(
        [SPECIAL, [0.0] * 4, rng.uniform(-105, 90, 4096), rng.standard_normal(4096) * 2]
    ).astype(np.float32)
    given, found = tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros_like(x))
    build(name, x.size, lanes, current=current)["main"](given, found)
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](x.astype(np.float64))
        rounded = exact.astype(np.float32)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(found.numpy()[~finite], rounded[~finite])
    unit = np.spacing(np.abs(rounded[finite])).astype(np.float64)
    error = np.abs(found.numpy()[finite] - exact[finite]) / unit
    assert error.max() <= ulps(name, "float32")


@pytest.mark.parametrize("name", REFERENCES)
def test_float64_stays_exact(name, rng):
    x = rng.uniform(0.1, 3, 64)
    given, found = tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros_like(x))
    build(name, x.size, 8, "float64")["main"](given, found)
    np.testing.assert_allclose(found.numpy(), REFERENCES[name](x), rtol=1e-14)


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize(
    "target",
    [
        {"kind": "llvm", "mcpu": "x86-64-v2"},
        {"kind": "llvm", "mcpu": "haswell"},
        {"kind": "llvm", "mcpu": "skylake-avx512"},
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"},
    ],
    ids=lambda target: target["mcpu"],
)
def test_no_element_is_left_to_the_c_library(name, target):
    source = generated_source(build(name, 64, 16, target=target), "ll")
    calls = [line for line in source.splitlines() if " call " in line and "llvm." not in line]
    assert not any(f"{name}f" in line or f"@{name}" in line for line in calls)
    assert f"llvm.{name}" not in source
