"""An op of several results after a matmul, whose rules schedule functions of one result."""

import numpy as np
import pytest

import needle_tvm
from needle import nn, ops
from tests.needle_tvm.conftest import tensor

# Shapes of input and weight, and the matmul or convolution.
PRODUCTS = {
    "dense": ((5, 6), (6, 17), lambda x, w: x @ w),
    "batched": ((3, 9, 6), (3, 6, 17), lambda x, w: x @ w),
    "conv": ((2, 8, 8, 6), (3, 3, 6, 16), ops.Conv(padding=(1, 1))),
    "strided": ((2, 8, 8, 6), (5, 5, 6, 16), ops.Conv(stride=(2, 2))),
    "depthwise": ((1, 4, 4, 3), (2, 2, 1, 3), ops.Conv(groups=3, stride=(2, 2))),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_two_results_behind_a_product(rng, name, dtype):
    shape, weight, product = PRODUCTS[name]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(tensor(rng.uniform(-1, 1, weight)).astype(dtype))

        def forward(self, x):
            return ops.FusedAddScalars(c0=0.5, c1=-2)(product(x, self.w))

    x = tensor(rng.uniform(-1, 1, shape)).astype(dtype)
    model = Model().eval()
    for found, expected in zip(needle_tvm.compile(model, x)(x), model(x), strict=True):
        found, expected = (each.numpy().astype("float64") for each in (found, expected))
        np.testing.assert_allclose(found, expected, 0.02, 0.02)
