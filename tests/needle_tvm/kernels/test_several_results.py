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


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_the_step_of_an_optimizer_behind_a_product(rng, wanted):
    """Two of its results are as large as the product, and its count has no axis."""

    def model(x, w, gradient, sums, rate, count):
        results = ops.AdagradUpdate(lr_decay=0.1, weight_decay=0.1)(
            x @ w, gradient, sums, rate, count
        )
        return results[wanted]

    shapes = (2, 4, 16), (2, 16, 16), (2, 4, 16), (2, 4, 16), ()
    given = [tensor(rng.uniform(0.5, 1, shape)).astype("float32") for shape in shapes]
    given.append(tensor(np.array(3)).astype("int64"))
    found, expected = needle_tvm.compile(model, *given)(*given), model(*given)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5)
