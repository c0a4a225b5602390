"""Products of bfloat16 weights in pairs: which are taken, and what they become."""

import pytest

from needle_tvm._tvm.names import OP_PATTERN, relax, tirx
from needle_tvm.kernels.dense.cpu import dense_tile
from needle_tvm.kernels.dense.pack_pairs import dense, pack, pack_pairs
from needle_tvm.target.spec import resolve
from tests.needle_tvm.modules import AVX512, Spec, check_becomes, check_stays, kernel, relax_module

ZEN4 = resolve({"kind": "llvm", "mcpu": "znver4"}, 2).to_tvm()
reshape, astype = relax.op.reshape, relax.op.astype


def bf16(*shape):
    return Spec(*shape, dtype="bfloat16")


X, W = bf16(5, 8), bf16(8, 6)


def matmul(x, w):
    return relax.op.matmul(astype(x, "float32"), astype(w, "float32"))


def packed(x, w, n, tile):
    panels = kernel(
        lambda w: pack(w, tile.columns), w, name="pack_weight", op_pattern=OP_PATTERN.opaque
    )
    return kernel(
        lambda a, p: dense(a, p, n, tile),
        x,
        panels,
        name="dense",
        op_pattern=OP_PATTERN.out_fusable,
    )


def test_weights_are_packed_in_pairs():
    tile = dense_tile(5, 4, 6, "float32", ZEN4)
    check_becomes(
        pack_pairs,
        relax_module(matmul, X, W, params=1),
        relax_module(lambda x, w: packed(x, w, 6, tile), X, W, params=1),
        ZEN4,
    )


def test_rows_of_several_axes():
    tile, specs = dense_tile(6, 4, 6, "float32", ZEN4), (bf16(2, 3, 8), W)

    def after(x, w):
        return reshape(packed(reshape(x, (6, 8)), w, 6, tile), (2, 3, 6))

    check_becomes(
        pack_pairs,
        relax_module(matmul, *specs, params=1),
        relax_module(after, *specs, params=1),
        ZEN4,
    )


STAYS = {
    "an odd number of terms": (matmul, (bf16(5, 7), bf16(7, 6)), 1),
    "weights that are an input": (matmul, (X, W), 0),
    "a vector": (matmul, (bf16(8), W), 1),
    "weights of three axes": (matmul, (bf16(2, 5, 8), bf16(2, 8, 6)), 1),
    "no rows": (matmul, (bf16(0, 8), W), 1),
    "no columns": (matmul, (X, bf16(8, 0)), 1),
    "rows that are not static": (matmul, (bf16(tirx.Var("n", "int64"), 8), W), 1),
    "columns that are not static": (matmul, (X, bf16(8, tirx.Var("n", "int64"))), 1),
    "float16": (matmul, (Spec(5, 8, dtype="float16"), Spec(8, 6, dtype="float16")), 1),
    "float32": (relax.op.matmul, (Spec(5, 8), Spec(8, 6)), 1),
    "one operand in float32": (
        lambda x, w: relax.op.matmul(x, astype(w, "float32")),
        (Spec(5, 8), W),
        1,
    ),
    "the other operand in float32": (
        lambda x, w: relax.op.matmul(astype(x, "float32"), w),
        (X, Spec(8, 6)),
        1,
    ),
    "a result in float64": (
        lambda x, w: relax.op.matmul(astype(x, "float64"), astype(w, "float64")),
        (X, W),
        1,
    ),
    "a function that does not name its parameters": (matmul, (X, W), None),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    before, specs, params = STAYS[name]
    check_stays(pack_pairs, relax_module(before, *specs, params=params), ZEN4)


def test_parameters_by_parameters_stay():
    before = relax_module(lambda y, x, w: (y, matmul(x, w)), Spec(1), X, W, params=2)
    check_stays(pack_pairs, before, ZEN4)


def test_processors_without_the_instruction():
    check_stays(pack_pairs, relax_module(matmul, X, W, params=1), AVX512)
