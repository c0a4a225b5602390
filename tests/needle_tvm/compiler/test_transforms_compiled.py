"""Derivatives of functions, checkpoint and autocast in compiled code."""

import numpy as np

import needle as ndl
import needle_tvm
from needle import func, nn
from needle.nn import functional as F


def arrays(value):
    if isinstance(value, (list, tuple)):
        return [x for each in value for x in arrays(each)]
    return [value.numpy().astype("float64")]


def check(function, *args, tolerance=1e-5):
    """Compiled results are eager ones, in their dtypes, and require a gradient where they do."""
    found, expected = needle_tvm.jit(function)(*args), function(*args)
    for a, b in zip(arrays(found), arrays(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    if isinstance(found, ndl.Tensor):
        assert (found.dtype, found.requires_grad) == (expected.dtype, expected.requires_grad)


def test_derivatives_of_functions():
    def f(x):
        return (x.sin() * x.exp()).sum() * x[0]

    def derivatives(x):
        direction = x * 2
        return (
            func.value_and_grad(f)(x),
            func.jvp(f, (x,), (direction,)),
            func.vjp(lambda x: x * x, x)[1](direction),
            func.hessian(f)(x),
            func.jacfwd(lambda x: x * x[0])(x),
            func.grad(lambda x: (func.grad(f)(x) ** 2).sum())(x),
        )

    x = ndl.Tensor(np.arange(3, dtype="float32") / 3, requires_grad=False)
    check(derivatives, x)
    check(lambda x: func.grad(lambda x: func.grad(f)(x).sum())(x), x)


def test_autocast_and_checkpoint():
    ndl.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 5))
    x, labels = ndl.randn(4, 20), ndl.arange(4)

    def gradients(x, labels):
        with ndl.autocast("bfloat16"):
            loss = F.cross_entropy(ndl.checkpoint(model, x), labels)
        return ndl.autograd.grad(loss, model.parameters())

    check(gradients, x, labels, tolerance=0.01)

    @needle_tvm.jit
    def forward(x):
        return model(x)

    dtypes = [forward(x).dtype]
    with ndl.autocast("bfloat16"):
        dtypes.append(forward(x).dtype)
        check(lambda x: model(x), x, tolerance=0.01)
    dtypes.append(forward(x).dtype)
    assert dtypes == ["float32", "bfloat16", "float32"]
    assert forward.cache_info().compilations == 2
