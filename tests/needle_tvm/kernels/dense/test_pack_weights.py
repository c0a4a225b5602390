"""Matrix products on packed weights."""

import pytest

from needle_tvm._tvm.names import OP_PATTERN, relax, tirx
from needle_tvm.kernels.dense.cpu import dense_tile
from needle_tvm.kernels.dense.pack_weights import dense, pack, pack_weights
from tests.needle_tvm.modules import AVX512, Spec, check_becomes, check_stays, kernel, relax_module

matmul, reshape = relax.op.matmul, relax.op.reshape
X, W = Spec(5, 8), Spec(8, 6)


def panels(w, tile, at_load=True):
    return kernel(
        lambda w: pack(w, tile.columns),
        w,
        name="pack_weight" if at_load else "pack",
        op_pattern=OP_PATTERN.opaque if at_load else OP_PATTERN.injective,
    )


def product(x, packed, n, tile):
    return kernel(
        lambda a, p: dense(a, p, n, tile),
        x,
        packed,
        name="dense",
        op_pattern=OP_PATTERN.out_fusable,
    )


def becomes(before, after, *specs, params):
    check_becomes(
        pack_weights,
        relax_module(before, *specs, params=params),
        relax_module(after, *specs, params=params),
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [1, 5])
def test_weights_are_packed_at_load(rows, dtype):
    tile = dense_tile(rows, 8, 6, dtype, AVX512)
    becomes(
        matmul,
        lambda x, w: product(x, panels(w, tile), 6, tile),
        *(Spec(rows, 8, dtype=dtype), Spec(8, 6, dtype=dtype)),
        params=1,
    )


def test_rows_of_several_axes():
    tile = dense_tile(6, 8, 6, "float32", AVX512)

    def after(x, w):
        return reshape(product(reshape(x, (6, 8)), panels(w, tile), 6, tile), (2, 3, 6))

    becomes(matmul, after, Spec(2, 3, 8), W, params=1)


@pytest.mark.parametrize("params", [0, 1])
def test_as_many_matrices_on_both_sides(params):
    tile = dense_tile(5, 8, 6, "float32", AVX512)

    def after(x, w):
        return product(x, panels(w, tile, bool(params)), 6, tile)

    becomes(matmul, after, Spec(3, 5, 8), Spec(3, 8, 6), params=params)

    def after_of_four(x, w):
        x, w = reshape(x, (6, 5, 8)), reshape(w, (6, 8, 6))
        y = product(x, panels(w, tile, bool(params)), 6, tile)
        return reshape(y, (2, 3, 5, 6))

    becomes(matmul, after_of_four, Spec(2, 3, 5, 8), Spec(2, 3, 8, 6), params=params)


def test_of_four_rows_an_input_is_packed_on_the_way():
    tile = dense_tile(4, 8, 6, "float32", AVX512)
    becomes(
        matmul,
        lambda x, w: product(x, panels(w, tile, False), 6, tile),
        *(Spec(4, 8), W),
        params=0,
    )


def test_weights_that_two_products_share_are_packed_once():
    tile = dense_tile(5, 8, 6, "float32", AVX512)

    def after(x, y, w):
        packed = panels(w, tile)
        return product(x, packed, 6, tile), product(y, packed, 6, tile)

    becomes(lambda x, y, w: (matmul(x, w), matmul(y, w)), after, X, X, W, params=1)


def test_weights_for_two_tiles_are_packed_twice():
    few, many = (dense_tile(rows, 64, 64, "float32", AVX512) for rows in (1, 64))
    assert few.columns != many.columns

    def after(x, y, w):
        return tuple(
            product(each, panels(w, tile), 64, tile) for each, tile in ((x, few), (y, many))
        )

    becomes(
        lambda x, y, w: (matmul(x, w), matmul(y, w)),
        after,
        *(Spec(1, 64), Spec(64, 64), Spec(64, 64)),
        params=1,
    )


n = tirx.Var("n", "int64")
STAYS = {
    "few rows by an input": ((Spec(3, 8), W), 0),
    "few rows of each matrix by an input": ((Spec(4, 3, 8), Spec(4, 8, 6)), 0),
    "one matrix with several": ((Spec(2, 1, 6, 8), Spec(2, 3, 8, 4)), 1),
    "a matrix that several are made of": ((Spec(5, 8), Spec(3, 8, 6)), 1),
    "fewer axes": ((Spec(2, 3, 5, 8), Spec(3, 8, 6)), 1),
    "a vector": ((Spec(8), W), 1),
    "a vector of weights": ((X, Spec(8)), 1),
    "no rows": ((Spec(0, 8), W), 1),
    "no columns": ((X, Spec(8, 0)), 1),
    "integers": ((Spec(5, 8, dtype="int32"), Spec(8, 6, dtype="int32")), 1),
    "halves": ((Spec(5, 8, dtype="float16"), Spec(8, 6, dtype="float16")), 1),
    "terms that are not static": ((Spec(5, n), Spec(n, 6)), 1),
    "columns that are not static": ((X, Spec(8, n)), 1),
    "a function that does not name its parameters": ((X, W), None),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    specs, params = STAYS[name]
    check_stays(pack_weights, relax_module(matmul, *specs, params=params))


def test_parameters_by_parameters_stay():
    before = relax_module(lambda y, x, w: (y, matmul(x, w)), Spec(1), X, W, params=2)
    check_stays(pack_weights, before)


def test_two_dtypes_stay():
    def before(x, w):
        return matmul(x, w, out_dtype="float64")

    check_stays(pack_weights, relax_module(before, X, Spec(8, 6, dtype="float64"), params=1))


def test_other_operators_stay():
    check_stays(pack_weights, relax_module(relax.op.add, X, X, params=1))
