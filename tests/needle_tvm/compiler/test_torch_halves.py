"""PyTorch's operators on halves, and its ordering operators on NaN and infinity."""

import numpy as np
import pytest

import needle_tvm
from tests.needle_tvm.compiler.torch_checks import Applied

torch = pytest.importorskip("torch")
F = pytest.importorskip("torch.nn.functional")
pytestmark = pytest.mark.slow

OPERATORS = {
    "maximum": lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y)),
    "limits": lambda x, y: (x.clamp(-1, 1), x.clamp(y, y + 1), F.relu(x), F.relu6(x)),
    "extremes": lambda x, y: (x.amax(1), x.amin(), *x.max(1), *x.min(0)),
    "places": lambda x, y: (x.argmax(1), x.argmin(), x.argmax()),
    "comparisons": lambda x, y: (x != y, x != 0, x == y, torch.isnan(x)),
    "functions": lambda x, y: (x.abs().log(), x.exp(), x.sigmoid(), x.abs().sqrt(), x.erf()),
    "activations": lambda x, y: (F.silu(x), x.tanh(), F.elu(x), F.leaky_relu(x), x.softmax(1)),
    "pools": lambda x, y: (F.max_pool2d(x[None, None], 2),),
    "sorted": lambda x, y: (x.sort(1).values, y.sort(0, descending=True).values),
    "ranked": lambda x, y: (x.sort(dim=1, stable=True).indices, y.argsort(1), *x.topk(3)),
    "sums": lambda x, y: (x.sum(1), x.cumsum(1), x.var(1), F.layer_norm(y, (8,))),
}

STAGES = ("noopt", "tuned")


def values(dtype):
    rng = np.random.default_rng(0)
    x, y = (torch.tensor(rng.standard_normal((4, 8)) * 2) for _ in "xy")
    x[1, 3], x[0, 0], x[3, 1], y[3, 3] = torch.nan, 0.0, torch.inf, torch.nan
    x[3, 0] = torch.nan
    return x.to(dtype), y.to(dtype)


@pytest.mark.parametrize(
    ("dtype", "stage"),
    [
        *((half, stage) for half in (torch.bfloat16, torch.float16) for stage in STAGES),
        (torch.float32, "tuned"),
        (torch.float64, "noopt"),
    ],
)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_give_what_pytorch_does(name, dtype, stage):
    model, inputs = Applied(OPERATORS[name]).eval(), values(dtype)
    compiled = needle_tvm.compile_torch(model, *inputs, stage=stage)
    # A few roundings of the dtype: PyTorch rounds between steps that are fused here.
    tolerance = 8 * torch.finfo(dtype).eps
    for found, expected in zip(compiled(*inputs), model(*inputs), strict=True):
        found = np.asarray(found.numpy()).astype(np.float64)
        np.testing.assert_allclose(
            found, expected.double().numpy(), rtol=tolerance, atol=8 * tolerance
        )


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool])
def test_integers_are_ordered(dtype):
    x = torch.tensor([[3, 1, 2, 1, 200], [0, 7, 0, 5, 6]]).to(dtype)
    model = Applied(
        lambda x, y: (*x.sort(dim=1, stable=True), x.sort(0, descending=True)[0])
    ).eval()
    compiled = needle_tvm.compile_torch(model, x, x, stage="fused")
    for found, expected in zip(compiled(x, x), model(x, x), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
