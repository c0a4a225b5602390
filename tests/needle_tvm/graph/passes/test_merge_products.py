"""Products of one tensor with several weights as one product."""

import numpy as np
import pytest

from needle import nn
from needle.trace import trace
from needle_tvm._tvm.names import check_well_formed, relax, tirx
from needle_tvm.frontend.lowering import translated
from needle_tvm.graph.passes.merge_products import merge_products
from needle_tvm.lower.variant import Variant
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.modules import (
    SM_90,
    Spec,
    check_becomes,
    check_stays,
    emit,
    relax_module,
)

X, W, OTHER, ROW = Spec(3, 8), Spec(8, 6), Spec(8, 4), Spec(6)
matmul, add, multiply = relax.op.matmul, relax.op.add, relax.op.multiply


def heads(y, *shape):
    return relax.op.reshape(emit(y), shape)


def merged(x, *weights, bias=None):
    y = matmul(x, relax.op.concat(list(weights), axis=1))
    return emit(y if bias is None else add(y, bias))


def part(y, begin, end):
    axis = len(y.ty.shape.values) - 1
    return relax.op.strided_slice(y, [axis], [begin], [end])


@pytest.mark.parametrize("rows", [3, tirx.Var("n", "int64")], ids=["static", "symbolic"])
def test_two_products(rows):
    def after(x, v, w):
        y = merged(x, v, w)
        return heads(part(y, 0, 6), rows, 2, 3), heads(part(y, 6, 10), rows, 2, 2)

    x = Spec(rows, 8)

    check_becomes(
        merge_products,
        relax_module(
            lambda x, v, w: (heads(matmul(x, v), rows, 2, 3), heads(matmul(x, w), rows, 2, 2)),
            *(x, W, OTHER),
            params=2,
        ),
        relax_module(after, x, W, OTHER, params=2),
    )


def test_biases_on_either_side_of_images_of_rows():
    specs = Spec(2, 3, 8), W, W, ROW, Spec(1, 1, 6)

    def before(x, v, w, a, b):
        return heads(add(matmul(x, v), a), 6, 6), heads(add(b, matmul(x, w)), 6, 6)

    def after(x, v, w, a, b):
        rows = [relax.op.reshape(each, (6,)) for each in (a, b)]
        y = merged(x, v, w, bias=relax.op.concat(rows, axis=0))
        return heads(part(y, 0, 6), 6, 6), heads(part(y, 6, 12), 6, 6)

    check_becomes(
        merge_products,
        relax_module(before, *specs, params=4),
        relax_module(after, *specs, params=4),
    )


def test_weights_that_are_made_behind_the_first_product():
    def before(x, v, w):
        first = emit(heads(matmul(x, v), 3, 2, 3))
        return first, heads(matmul(x, multiply(w, w)), 3, 2, 3)

    def after(x, v, w):
        y = merged(x, v, multiply(w, w))
        return heads(part(y, 0, 6), 3, 2, 3), heads(part(y, 6, 12), 3, 2, 3)

    check_becomes(
        merge_products,
        relax_module(before, X, W, W, params=2),
        relax_module(after, X, W, W, params=2),
    )


def test_groups_are_of_one_tensor_each_and_have_a_bias_or_none():
    def before(x, y, v, w, b):
        return (
            *(heads(matmul(each, v), 6, 3) for each in (x, y)),
            *(heads(add(matmul(each, w), b), 6, 3) for each in (x, y)),
            *(heads(matmul(each, w), 6, 3) for each in (x, y)),
        )

    def after(x, y, v, w, b):
        first, second = merged(x, v, w), merged(y, v, w)
        return (
            *(heads(part(each, 0, 6), 6, 3) for each in (first, second)),
            *(heads(add(matmul(each, w), b), 6, 3) for each in (x, y)),
            *(heads(part(each, 6, 12), 6, 3) for each in (first, second)),
        )

    check_becomes(
        merge_products,
        relax_module(before, X, X, W, W, ROW, params=3),
        relax_module(after, X, X, W, W, ROW, params=3),
    )


def pair(x, v, w):
    return heads(matmul(x, v), 6, 3), heads(matmul(x, w), 6, 3)


def biased(x, v, w, a, b):
    return heads(add(matmul(x, v), a), 6, 3), heads(add(matmul(x, w), b), 6, 3)


CONSTANT = relax.const(np.ones((8, 6), "float32"))
STAYS = {
    "one product": (lambda x, w: heads(matmul(x, w), 6, 3), (X, W), 1),
    "products of two tensors": (
        lambda x, y, w: (heads(matmul(x, w), 6, 3), heads(matmul(y, w), 6, 3)),
        (X, X, W),
        1,
    ),
    "products of parameters": (lambda y, x, v, w: (*pair(x, v, w), y), (ROW, X, W, W), 3),
    "weights that are inputs": (lambda v, w, x: pair(x, v, w), (W, W, X), 0),
    "one weight that is an input": (lambda x, v, w: pair(x, v, w), (X, W, W), 1),
    "weights that are constants": (lambda x, w: pair(x, CONSTANT, w), (X, W), 1),
    "weights of three axes": (
        lambda x, v, w: (heads(matmul(x, v), 18, 2), heads(matmul(x, w), 18, 2)),
        (Spec(2, 3, 8), Spec(2, 8, 6), Spec(2, 8, 6)),
        2,
    ),
    "a vector": (
        lambda x, v, w: (heads(matmul(x, v), 2, 3), heads(matmul(x, w), 2, 3)),
        (Spec(8), W, W),
        2,
    ),
    "no rows": (
        lambda x, v, w: (heads(matmul(x, v), 0, 2, 3), heads(matmul(x, w), 0, 2, 3)),
        (Spec(0, 8), W, W),
        2,
    ),
    "no columns": (
        lambda x, v, w: (heads(matmul(x, v), 3, 0), heads(matmul(x, w), 3, 0)),
        (X, Spec(8, 0), Spec(8, 0)),
        2,
    ),
    "results that are read whole": (
        lambda x, v, w: (relax.op.negative(matmul(x, v)), relax.op.negative(matmul(x, w))),
        (X, W, W),
        2,
    ),
    "results that are results": (lambda x, v, w: (matmul(x, v), matmul(x, w)), (X, W, W), 2),
    "one with a bias": (
        lambda x, v, w, a: (heads(add(matmul(x, v), a), 6, 3), heads(matmul(x, w), 6, 3)),
        (X, W, W, ROW),
        3,
    ),
    "biases that are inputs": (
        lambda a, b, x, v, w: biased(x, v, w, a, b),
        (ROW, ROW, X, W, W),
        2,
    ),
    "biases along another axis": (biased, (X, W, W, Spec(3, 1), Spec(3, 1)), 4),
    "biases for as many rows as columns": (
        lambda x, v, w, a, b: (
            heads(add(matmul(x, v), a), 12, 3),
            heads(add(matmul(x, w), b), 12, 3),
        ),
        (Spec(6, 8), W, W, Spec(6, 1), Spec(6, 1)),
        4,
    ),
    "biases of all rows": (biased, (X, W, W, Spec(3, 6), Spec(3, 6)), 4),
    "biases that are one number": (biased, (X, W, W, Spec(1), Spec(1)), 4),
    "biases that are scalars": (
        lambda x, v, w: biased(x, v, w, relax.const(1.0), relax.const(2.0)),
        (X, W, W),
        2,
    ),
    "biases of more axes": (biased, (X, W, W, Spec(1, 1, 6), Spec(1, 1, 6)), 4),
    "another operator than a sum": (
        lambda x, v, w, a, b: (
            heads(multiply(matmul(x, v), a), 6, 3),
            heads(multiply(matmul(x, w), b), 6, 3),
        ),
        (X, W, W, ROW, ROW),
        4,
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    before, specs, params = STAYS[name]
    check_stays(merge_products, relax_module(before, *specs, params=params))


def test_results_that_are_read_twice_stay():
    def product(x, v, w):
        y = emit(matmul(x, v))
        return heads(y, 6, 3), relax.op.negative(y), heads(matmul(x, w), 6, 3)

    def product_and_sum(x, v, w, a, b):
        y = emit(matmul(x, v))
        first = heads(add(y, a), 6, 3)
        return first, heads(y, 6, 3), heads(add(matmul(x, w), b), 6, 3)

    def sum_(x, v, w, a, b):
        y = emit(add(matmul(x, v), a))
        return heads(y, 6, 3), heads(y, 9, 2), heads(add(matmul(x, w), b), 6, 3)

    def twice(x, v, w):
        y, z = emit(matmul(x, v)), emit(matmul(x, w))
        return heads(add(y, y), 6, 3), heads(add(z, z), 6, 3)

    check_stays(merge_products, relax_module(product, X, W, W, params=2))
    for function in (product_and_sum, sum_):
        check_stays(merge_products, relax_module(function, X, W, W, ROW, ROW, params=4))
    check_stays(merge_products, relax_module(twice, X, W, W, params=2))


def test_weights_of_two_dtypes_are_two_groups():
    def before(x, v, w):
        one, other = (matmul(x, each, out_dtype="float32") for each in (v, w))
        return heads(one, 6, 3), heads(other, 6, 3)

    narrow = Spec(8, 6, dtype="float16")
    check_stays(merge_products, relax_module(before, X, W, narrow, params=2))


def test_weights_that_are_not_static_stay():
    n = tirx.Var("n", "int64")
    columns = Spec(8, n)
    check_stays(
        merge_products,
        relax_module(
            lambda x, v, w: (heads(matmul(x, v), 3, 1, n), heads(matmul(x, w), 3, 1, n)),
            *(X, columns, columns),
            params=2,
        ),
    )


def test_a_function_that_does_not_name_its_parameters_stays():
    check_stays(merge_products, relax_module(pair, X, W, W, params=None))


def test_a_part_of_a_tuple_is_no_parameter_work():
    """The steps' results are parts of a tuple: what is made of them stays behind them."""
    model = nn.LSTM(4, 6, 2).eval()
    graph = trace(model, tensor(np.ones((5, 3, 4), "float32")))
    module = translated(graph, SM_90, Variant("tuned"))
    check_well_formed(merge_products(module, SM_90))
