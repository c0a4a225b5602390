"""Two shifts in a row, as one."""

import itertools

import numpy as np
import pytest

from needle_tvm._tvm.names import relax, tirx
from needle_tvm.graph.passes.fold_shift import fold_shift
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, emit, relax_module

X, W, ROW = Spec(3, 8), Spec(8, 6), Spec(6)
matmul, add = relax.op.matmul, relax.op.add


def conv(x, w, **layouts):
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO", **layouts}
    return relax.op.nn.conv2d(x, w, **layouts)


def test_the_second_shift_is_added_to_the_first():
    after = relax_module(lambda x, w, a, b: add(matmul(x, w), add(a, b)), X, W, ROW, ROW, params=3)
    for inner, outer in itertools.product((1, -1), repeat=2):

        def before(x, w, a, b, inner=inner, outer=outer):
            return add(*(add(*(matmul(x, w), a)[::inner]), b)[::outer])

        check_becomes(fold_shift, relax_module(before, X, W, ROW, ROW, params=3), after)


def test_a_row_and_a_number():
    five = relax.const(5.0)
    check_becomes(
        fold_shift,
        relax_module(lambda x, w, a: add(add(matmul(x, w), a), five), X, W, ROW, params=2),
        relax_module(lambda x, w, a: add(matmul(x, w), add(a, five)), X, W, ROW, params=2),
    )


def test_a_convolution_that_others_read():
    specs = Spec(2, 5, 5, 4), Spec(3, 3, 4, 6), ROW, ROW

    def before(x, w, a, b):
        y = emit(conv(x, w))
        return add(add(y, a), b), y

    def after(x, w, a, b):
        y = emit(conv(x, w))
        return add(y, add(a, b)), y

    check_becomes(
        fold_shift, relax_module(before, *specs, params=3), relax_module(after, *specs, params=3)
    )


def shifted(x, w, a, b):
    return add(add(matmul(x, w), a), b)


STAYS = {
    "no product": (lambda x, a, b: add(add(x, a), b), (X, Spec(8), Spec(8)), 2),
    "a product of parameters": (
        lambda x, v, w, a: add(add(matmul(v, w), a), x),
        (ROW, X, W, ROW),
        3,
    ),
    "a product of parameters alone": (
        lambda x, v, w, a: (add(add(matmul(v, w), a), a), x),
        (ROW, X, W, ROW),
        3,
    ),
    "a first shift that is an input": (lambda a, x, w, b: shifted(x, w, a, b), (ROW, X, W, ROW), 2),
    "a second shift that is an input": (
        lambda b, x, w, a: shifted(x, w, a, b),
        (ROW, X, W, ROW),
        2,
    ),
    "a row and a column": (shifted, (X, W, ROW, Spec(3, 1)), 3),
    "shifts that make rows": (shifted, (Spec(1, 8), W, Spec(3, 6), Spec(3, 6)), 3),
    "one shift": (lambda x, w, a: add(matmul(x, w), a), (X, W, ROW), 2),
    "another operator before": (
        lambda x, w, a, b: add(relax.op.multiply(matmul(x, w), a), b),
        (X, W, ROW, ROW),
        3,
    ),
    "another operator behind": (
        lambda x, w, a, b: relax.op.subtract(add(matmul(x, w), a), b),
        (X, W, ROW, ROW),
        3,
    ),
    "other layouts": (
        lambda x, w, a, b: add(add(conv(x, w, data_layout="NCHW", kernel_layout="OIHW"), a), b),
        (Spec(1, 4, 6, 6), Spec(5, 4, 3, 3), Spec(4), Spec(4)),
        3,
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    before, specs, params = STAYS[name]
    check_stays(fold_shift, relax_module(before, *specs, params=params))


def test_a_sum_that_others_read_stays():
    def before(x, w, a, b):
        y = emit(add(matmul(x, w), a))
        return add(y, b), y

    check_stays(fold_shift, relax_module(before, X, W, ROW, ROW, params=3))


def test_shapes_that_are_not_static_stay():
    n = tirx.Var("n", "int64")
    wide = Spec(8, n), Spec(n), Spec(n)
    check_stays(fold_shift, relax_module(shifted, X, *wide, params=3))


def test_constants_are_known():
    numbers = relax.const(np.arange(6, dtype="float32"))
    check_becomes(
        fold_shift,
        relax_module(lambda x, w, b: add(add(matmul(x, w), numbers), b), X, W, ROW, params=2),
        relax_module(lambda x, w, b: add(matmul(x, w), add(numbers, b)), X, W, ROW, params=2),
    )
