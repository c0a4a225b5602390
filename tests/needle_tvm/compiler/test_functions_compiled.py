"""Compiled functions keep their digits wherever they are asked: near 0, near poles, far out."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import ops
from needle.ops.elementwise import _Float

# In units of the dtype's epsilon; gelu loses digits in its tail, where it is nearly 0, as the
# difference of two numbers near 1 does.
ALLOWED = 4
FUNCTIONS = sorted(
    name
    for name, cls in ops.REGISTRY.items()
    if issubclass(cls, _Float) and cls.__module__.startswith("needle.") and name != "gelu"
)


def places(dtype):
    near = np.logspace(-12, 2, 400)
    half = near[near < 0.5]
    return np.unique(np.concatenate([-near, near, 1 - half, half - 1, 1 + near]).astype(dtype))


def wanted(name, x):
    """NumPy's function in more digits, if it has them."""
    twin = ops.REGISTRY[name].twin
    wide = "float64" if name in ("erf", "erfinv") else "longdouble"
    with np.errstate(all="ignore"):
        return np.asarray(twin(x.astype(wide)), "longdouble")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("stage", ["noopt", "tuned"])
def test_relative_errors(stage, dtype):
    x = places(dtype)
    given = [ops.REGISTRY[name]() for name in FUNCTIONS]
    example = ndl.Tensor(x, dtype=dtype, requires_grad=False)
    exe = needle_tvm.compile(lambda x: tuple(op(x) for op in given), example, stage=stage)
    for name, found in zip(FUNCTIONS, exe(x), strict=True):
        want, have = wanted(name, x), found.numpy()
        np.testing.assert_array_equal(np.isnan(have), np.isnan(want), err_msg=name)
        normal = np.isfinite(want) & (np.abs(want) > 1e-30) & (np.abs(want) < 1e30)
        error = np.abs(have[normal] - want[normal]) / np.abs(want[normal])
        assert np.max(error) <= ALLOWED * np.finfo(dtype).eps, name
