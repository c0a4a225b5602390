"""User-defined ops of one nested expression, as docs/contributing/op.md has them, compile."""

import numpy as np
import pytest

import needle_tvm
from needle.op import REGISTRY, Elementwise, register
from tests.needle_tvm.conftest import tensor

STAGES = ("noopt", "fused", "tuned")


def _erf(x):
    from math import erf

    return np.vectorize(erf)(x)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _softplus(t, v):
    return t.log(1 + t.exp(v))


# Name: the TVM expression (t is `tirx`, v an element), and the NumPy one.
OPS = {
    "softplus": (_softplus, lambda v: np.log(1 + np.exp(v))),
    "mish": (lambda t, v: v * t.tanh(_softplus(t, v)), lambda v: v * np.tanh(np.log1p(np.exp(v)))),
    "logcosh": (
        lambda t, v: t.log((t.exp(v) + t.exp(-v)) / 2),
        lambda v: np.log(np.cosh(v)),
    ),
    "tanh_tanh": (lambda t, v: t.tanh(t.tanh(v)), lambda v: np.tanh(np.tanh(v))),
    "tanh_thrice": (lambda t, v: t.tanh(t.tanh(t.tanh(v))), lambda v: np.tanh(np.tanh(np.tanh(v)))),
    "swish": (lambda t, v: v * t.sigmoid(v), lambda v: v * _sigmoid(v)),
    "hard_swish": (
        lambda t, v: v * t.max(t.min(v + 3, _const(v, 6)), _const(v, 0)) / 6,
        lambda v: v * np.clip(v + 3, 0, 6) / 6,
    ),
    "hard_sigmoid": (
        lambda t, v: t.max(t.min(v / 6 + 0.5, _const(v, 1)), _const(v, 0)),
        lambda v: np.clip(v / 6 + 0.5, 0, 1),
    ),
    "hard_mish": (
        lambda t, v: v / 2 * t.max(t.min(v + 2, _const(v, 2)), _const(v, 0)),
        lambda v: v / 2 * np.clip(v + 2, 0, 2),
    ),
    "gelu": (
        lambda t, v: v / 2 * (1 + t.erf(v / np.sqrt(2).item())),
        lambda v: v / 2 * (1 + _erf(v / np.sqrt(2))),
    ),
    "gelu_tanh": (
        lambda t, v: v / 2 * (1 + t.tanh(0.7978845608 * (v + 0.044715 * v * v * v))),
        lambda v: v / 2 * (1 + np.tanh(0.7978845608 * (v + 0.044715 * v**3))),
    ),
    "elu": (
        lambda t, v: t.Select(v > 0, v, t.exp(v) - 1),
        lambda v: np.where(v > 0, v, np.exp(v) - 1),
    ),
    "softsign_of_exp": (
        lambda t, v: t.exp(v) / (1 + t.abs(t.exp(v))),
        lambda v: np.exp(v) / (1 + np.exp(v)),
    ),
    "log_log": (
        lambda t, v: t.log(1 + t.log(1 + t.exp(v))),
        lambda v: np.log(1 + np.log(1 + np.exp(v))),
    ),
    "exp_of_minus_exp": (lambda t, v: t.exp(-t.exp(-v)), lambda v: np.exp(-np.exp(-v))),
    "sigmoid_of_tanh_of_erf": (
        lambda t, v: t.sigmoid(t.tanh(t.erf(v))),
        lambda v: _sigmoid(np.tanh(_erf(v))),
    ),
    "tanh_exp": (lambda t, v: v * t.tanh(t.exp(v)), lambda v: v * np.tanh(np.exp(v))),
    "serf": (
        lambda t, v: v * t.erf(_softplus(t, v)),
        lambda v: v * _erf(np.log1p(np.exp(v))),
    ),
    "power_of_sigmoid": (
        lambda t, v: t.power(t.sigmoid(v), 1 + t.exp(-v)),
        lambda v: _sigmoid(v) ** (1 + np.exp(-v)),
    ),
    "sqrt_of_sin_of_cos": (
        lambda t, v: t.sqrt(1 + t.sin(t.cos(t.tanh(v)))),
        lambda v: np.sqrt(1 + np.sin(np.cos(np.tanh(v)))),
    ),
}


def _const(v, value):
    from tvm import tirx

    return tirx.const(value, v.ty.dtype if hasattr(v, "ty") else v.dtype)


@pytest.fixture(params=OPS)
def own(request):
    expression, function = OPS[request.param]

    @register
    class OwnNested(Elementwise):
        """y = one nested expression of x."""

        def reference(self, x):
            return function(x.astype("float64")).astype(x.dtype)

        def compute(self, x):
            from needle.backend_ndarray import NDArray

            return NDArray(self.reference(x.numpy()), device=x.device)

        def gradient(self, out_grad, node):
            raise NotImplementedError

        def emit_te(self, k, x):
            return k.te.compute(x.shape, lambda *i: expression(k.tirx, x[i]))

    yield OwnNested(), function
    del REGISTRY["own_nested"]


@pytest.mark.parametrize("stage", STAGES)
def test_it_compiles_and_agrees(own, stage):
    op, function = own
    # Whole vectors and a tail; and a length that LLVM vectorises by itself.
    arrays = [np.linspace(-4, 4, n, dtype="float32") for n in (37, 512)]
    compiled = needle_tvm.compile(
        lambda x, y: (op(x), op(op(y))), *map(tensor, arrays), stage=stage
    )
    first, second = compiled(*map(tensor, arrays))
    wide = [array.astype("float64") for array in arrays]
    # Each of up to eight functions is off by some units in the last place.
    for found, expected in ((first, function(wide[0])), (second, function(function(wide[1])))):
        np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5, atol=2e-6)
