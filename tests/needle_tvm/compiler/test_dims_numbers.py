"""Numbers that open sizes decide, and operations over whole open axes, at several sizes."""

import numpy as np
import pytest

import needle as ndl
import needle.nn.functional as F
import needle_tvm
from needle import ops

N = ndl.Dim("n", min=2, max=24)


def heads(x):
    return ops.reshape(ops.transpose(x), (1, 1, 4, x.shape[0]))


NUMBERS = [
    lambda x: x * x.shape[0] ** -0.5,
    lambda x: x.shape[0] ** 0.5 - x,
    lambda x: x * (1 / x.shape[0]),
    lambda x: x + (2.5 - x.shape[0] / 3) * (x.shape[0] - 1) ** -1,
    lambda x: -(x.shape[0] ** -0.5) * x / x.shape[0] ** 1.5,
    lambda x: ndl.full((x.shape[0], 4), x.shape[0]) + x,
    lambda x: ndl.full((3,), x.shape[0] ** -0.5, dtype=x.dtype),
    lambda x: ndl.arange(x.shape[0], dtype=x.dtype),
    lambda x: x[x.shape[0] - 1],
    lambda x: x[x.shape[0] // 2],
]
AXES = [
    lambda x: ops.norm(x, 2, 0),
    lambda x: ops.norm(x, 1),
    lambda x: ops.var(x, 0, correction=1),
    lambda x: ops.std(x, 0),
    lambda x: F.layer_norm(ops.transpose(x), (x.shape[0],)),
    lambda x: F.rms_norm(ops.transpose(x), (x.shape[0],)),
    lambda x: F.normalize(x, axis=0),
    lambda x: F.scaled_dot_product_attention(heads(x), heads(x), heads(x)),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("functions", [NUMBERS, AXES], ids=["numbers", "axes"])
@pytest.mark.parametrize("stage", ["fused", "tuned"])
def test_sizes_of_a_call_decide(functions, dtype, stage):
    def model(x):
        return tuple(function(x) for function in functions)

    def example(size):
        values = np.random.default_rng(size).standard_normal((size, 4)).astype(dtype)
        return ndl.Tensor(values, requires_grad=False)

    compiled = needle_tvm.compile(model, example(15), dims={0: {0: N}}, stage=stage)
    tolerance = 1e-5 if dtype == "float32" else 1e-12  # sums of up to 96 terms
    for size in (2, 5, 24):
        x = example(size)
        for number, (found, wanted) in enumerate(zip(compiled(x), model(x), strict=True)):
            assert found.dtype == wanted.dtype, number
            np.testing.assert_allclose(
                found.numpy(), wanted.numpy(), tolerance, tolerance, err_msg=f"{number}"
            )
