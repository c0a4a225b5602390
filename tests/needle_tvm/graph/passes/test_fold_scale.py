"""A scale per output channel, folded into the weights that make the channels."""

import numpy as np
import pytest

from needle_tvm._tvm.names import relax, tirx
from needle_tvm.graph.passes.fold_scale import fold_scale
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, emit, relax_module

X, W, ROW = Spec(3, 8), Spec(8, 6), Spec(6)
matmul, multiply, add, reshape = (
    getattr(relax.op, name) for name in ("matmul", "multiply", "add", "reshape")
)


def conv(x, w, **layouts):
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO", **layouts}
    return relax.op.nn.conv2d(x, w, padding=1, **layouts)


def with_bias(x, w, s, b, channels=6, product=matmul):
    s = emit(reshape(s, (channels,)))
    return add(product(x, multiply(w, s)), multiply(b, s))


@pytest.mark.parametrize(
    "scale", [ROW, Spec(1, 6), Spec(1), Spec(1, 1)], ids=lambda s: str(s.shape)
)
def test_a_scale_is_multiplied_into_the_weights(scale):
    extents = (scale.shape[-1],)
    after = relax_module(
        lambda x, w, s: matmul(x, multiply(w, reshape(s, extents))), X, W, scale, params=2
    )
    for before in (
        lambda x, w, s: multiply(matmul(x, w), s),
        lambda x, w, s: multiply(s, matmul(x, w)),
    ):
        check_becomes(fold_scale, relax_module(before, X, W, scale, params=2), after)


@pytest.mark.parametrize(
    "before",
    [
        lambda x, w, s, b: multiply(add(matmul(x, w), b), s),
        lambda x, w, s, b: multiply(s, add(b, matmul(x, w))),
    ],
)
def test_a_bias_is_scaled_too(before):
    specs = X, W, ROW, Spec(1, 6)
    after = relax_module(with_bias, *specs, params=3)
    check_becomes(fold_scale, relax_module(before, *specs, params=3), after)


def test_the_channels_of_a_convolution():
    specs = Spec(2, 5, 5, 4), Spec(3, 3, 4, 6), Spec(1, 1, 1, 6), Spec(6)
    check_becomes(
        fold_scale,
        relax_module(lambda x, w, s, b: multiply(add(conv(x, w), b), s), *specs, params=3),
        relax_module(lambda *v: with_bias(*v, product=conv), *specs, params=3),
    )


def test_several_matrices_of_weights():
    specs = Spec(2, 3, 8), Spec(2, 8, 6), ROW
    check_becomes(
        fold_scale,
        relax_module(lambda x, w, s: multiply(matmul(x, w), s), *specs, params=2),
        relax_module(lambda x, w, s: matmul(x, multiply(w, reshape(s, (6,)))), *specs, params=2),
    )


def constant(*values):
    return relax.const(np.array(values, "float32"))


@pytest.mark.parametrize("size", [1e-6, -1e6])
def test_constants_of_a_moderate_size(size):
    row = constant(*[np.float32(size)] * 6)
    if abs(size) < 1:
        row = constant(*[1.01e-6] * 6)
    check_becomes(
        fold_scale,
        relax_module(lambda x, w: multiply(matmul(x, w), row), X, W, params=1),
        relax_module(lambda x, w: matmul(x, multiply(w, reshape(row, (6,)))), X, W, params=1),
    )


@pytest.mark.parametrize("size", [0, 0.99e-6, 1.01e6, -1.01e6, np.nan])
def test_constants_by_which_weights_may_overflow_or_vanish_stay(size):
    row = constant(1, 1, 1, 1, 1, size)
    check_stays(fold_scale, relax_module(lambda x, w: multiply(matmul(x, w), row), X, W, params=1))


STAYS = {
    "a scale that is an input": (lambda s, x, w: multiply(matmul(x, w), s), (ROW, X, W), 1),
    "weights that are an input": (lambda x, w, s: multiply(matmul(x, w), s), (X, W, ROW), 1),
    "weights that are a constant": (
        lambda x, s: multiply(matmul(x, relax.const(np.ones((8, 6), "float32"))), s),
        (X, ROW),
        1,
    ),
    "a bias that is an input": (
        lambda b, x, w, s: multiply(add(matmul(x, w), b), s),
        (ROW, X, W, ROW),
        2,
    ),
    "a scale along another axis": (
        lambda x, w, s: multiply(matmul(x, w), s),
        (X, W, Spec(3, 1)),
        2,
    ),
    "a bias along another axis": (
        lambda x, w, s, b: multiply(add(matmul(x, w), b), s),
        (X, W, ROW, Spec(3, 1)),
        3,
    ),
    "a scale of more axes": (
        lambda x, w, s: multiply(matmul(x, w), s),
        (X, W, Spec(1, 1, 6)),
        2,
    ),
    "a bias of more axes": (
        lambda x, w, s, b: multiply(add(matmul(x, w), b), s),
        (X, W, ROW, Spec(1, 1, 6)),
        3,
    ),
    "a scale that makes columns": (
        lambda x, w, s: multiply(matmul(x, w), s),
        (X, Spec(8, 1), ROW),
        2,
    ),
    "a vector of weights": (
        lambda x, w, s: multiply(matmul(x, w), s),
        (Spec(8, 8), Spec(8), Spec(8)),
        2,
    ),
    "no product": (lambda x, s: multiply(x, s), (X, Spec(8)), 1),
    "an addition of no product": (lambda x, s, b: multiply(add(x, b), s), (X, Spec(8), Spec(8)), 2),
    "another operator": (lambda x, w, s: add(matmul(x, w), s), (X, W, ROW), 2),
    "other layouts": (
        lambda x, w, s: multiply(conv(x, w, data_layout="NCHW", kernel_layout="OIHW"), s),
        (Spec(1, 4, 6, 6), Spec(5, 4, 3, 3), Spec(6)),
        2,
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    before, specs, params = STAYS[name]
    check_stays(fold_scale, relax_module(before, *specs, params=params))


def test_what_others_read_stays():
    def product(x, w, s, b):
        y = emit(matmul(x, w))
        return multiply(add(y, b), s), y

    def sum_(x, w, s, b):
        y = emit(add(matmul(x, w), b))
        return multiply(y, s), y

    def twice(x, w, s, b):
        y = emit(matmul(x, w))
        return multiply(add(y, y), s), b

    for before in (product, sum_, twice):
        check_stays(fold_scale, relax_module(before, X, W, ROW, ROW, params=3))


def test_a_function_that_does_not_name_its_parameters_stays():
    before = relax_module(lambda x, w, s: multiply(matmul(x, w), s), X, W, ROW, params=None)
    check_stays(fold_scale, before)


def test_shapes_that_are_not_static_stay():
    n = tirx.Var("n", "int64")
    for specs in ((X, Spec(8, n), Spec(n)), (X, Spec(8, n), Spec(1)), (X, W, Spec(n))):
        before = relax_module(lambda x, w, s: multiply(matmul(x, w), s), *specs, params=2)
        check_stays(fold_scale, before)
