"""Matrix products by cuBLAS: which are offered to be chosen, and what they become."""

from functools import partial

import pytest

from needle_tvm._tvm.names import TensorType, relax, tirx
from needle_tvm.kernels.dense.gpu.library_products import FUNCTION, Product, library_products
from needle_tvm.target.spec import resolve
from tests.needle_tvm.modules import SM_90, Spec, check_becomes, check_stays, emit, relax_module

op = relax.op
X, W = Spec(4, 8), Spec(8, 6)


def called(x, w, result, *, turned=(0, 0), tf32=0, workspace=32 << 20):
    """The first result of cuBLAS's product, of `result` type; the second is memory to work in."""
    flags = [relax.prim_value(flag) for flag in (*turned, tf32)]
    both = relax.op.call_dps_packed(
        FUNCTION,
        relax.Tuple([emit(x), emit(w), *flags]),
        out_ty=[TensorType(result.shape, result.dtype), TensorType((workspace,), "uint8")],
    )
    return emit(relax.TupleGetItem(emit(both), 0))


def becomes(before, after, *specs, params=0, target=SM_90, precision="float32"):
    """The facts of what is offered, of which all are chosen."""
    offered = []

    def chosen(product):
        offered.append(product)
        return True

    check_becomes(
        partial(library_products, chosen=chosen, precision=precision),
        relax_module(before, *specs, params=params),
        relax_module(after, *specs, params=params),
        target,
    )
    return offered


def product(rows=4, terms=8, columns=6, dtype="float32", **facts):
    facts = {"transposed": (False, False), "stored": False, "followed": False, **facts}
    return Product(facts.pop("count", 1), rows, terms, columns, dtype, **facts)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_product_is_a_call_with_memory_to_work_in(dtype):
    specs = (Spec(*each.shape, dtype=dtype) for each in (X, W))
    offered = becomes(op.matmul, lambda x, w: called(x, w, Spec(4, 6, dtype=dtype)), *specs)
    assert offered == [product(dtype=dtype)]


def test_older_gpus_need_less_memory():
    for arch, size in (("sm_80", 4 << 20), ("sm_89", 4 << 20), ("sm_90a", 32 << 20)):
        target = resolve(f"cuda:{arch}").to_tvm()
        becomes(
            op.matmul,
            lambda x, w, size=size: called(x, w, Spec(4, 6), workspace=size),
            *(X, W),
            target=target,
        )


def test_rows_of_several_axes_and_stored_weights():
    offered = becomes(
        op.matmul,
        lambda x, w: called(x, w, Spec(2, 3, 6)),
        *(Spec(2, 3, 8), W),
        params=1,
    )
    assert offered == [product(rows=6, stored=True)]


def test_as_many_matrices_on_both_sides():
    offered = becomes(
        op.matmul,
        lambda x, w: called(x, w, Spec(2, 3, 4, 6)),
        *(Spec(2, 3, 4, 8), Spec(2, 3, 8, 6)),
    )
    assert offered == [product(count=6)]


def turned(x, *axes):
    return op.permute_dims(x, list(axes) or None)


def test_operands_are_read_as_they_lie():
    offered = becomes(
        lambda x, w: op.matmul(turned(x), turned(w, 1, 0)),
        lambda x, w: called(x, w, Spec(4, 6), turned=(1, 1)),
        *(Spec(8, 4), Spec(6, 8)),
    )
    assert offered == [product(transposed=(True, True))]
    offered = becomes(
        lambda x, w: op.matmul(turned(x, 0, 2, 1), w),
        lambda x, w: called(x, w, Spec(3, 4, 6), turned=(1, 0)),
        *(Spec(3, 8, 4), Spec(3, 8, 6)),
    )
    assert offered == [product(count=3, transposed=(True, False))]


def test_other_permutations_are_made():
    becomes(
        lambda x, w: op.matmul(turned(x, 1, 0, 2), w),
        lambda x, w: called(turned(x, 1, 0, 2), w, Spec(3, 4, 6)),
        *(Spec(4, 3, 8), Spec(3, 8, 6)),
    )


def test_what_was_a_half_is_read_as_a_half():
    def widened(x, w):
        return op.matmul(op.astype(x, "float32"), op.astype(w, "float32"))

    half = [Spec(*each.shape, dtype="float16") for each in (X, W)]
    offered = becomes(widened, lambda x, w: called(x, w, Spec(4, 6)), *half)
    assert offered == [product(dtype="float16")]
    two = [Spec(4, 8, dtype="float16"), Spec(8, 6, dtype="bfloat16")]
    offered = becomes(
        widened,
        lambda x, w: called(op.astype(x, "float32"), op.astype(w, "float32"), Spec(4, 6)),
        *two,
    )
    assert offered == [product()]


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_operands_are_rounded_to_a_narrow_precision(precision):
    offered = becomes(
        op.matmul,
        lambda x, w: called(op.astype(x, precision), op.astype(w, precision), Spec(4, 6)),
        *(X, W),
        precision=precision,
    )
    assert offered == [product(dtype=precision)]
    wide = [Spec(*each.shape, dtype="float64") for each in (X, W)]
    becomes(
        op.matmul,
        lambda x, w: called(x, w, Spec(4, 6, dtype="float64")),
        *wide,
        precision=precision,
    )


def test_tf32_is_asked_of_cublas():
    offered = becomes(
        op.matmul, lambda x, w: called(x, w, Spec(4, 6), tf32=1), X, W, precision="tf32"
    )
    assert offered == [product(dtype="tf32")]


def test_what_follows_a_product_counts_where_a_write_back_could_do_it():
    def followed(function, *specs):
        (found,) = becomes(
            lambda x, w, *v: function(emit(op.matmul(x, w)), *v),
            lambda x, w, *v: function(called(x, w, Spec(4, 6)), *v),
            *(X, W, *specs),
        )
        return found.followed

    for name in ("exp", "tanh", "sigmoid", "abs", "sqrt", "erf", "negative"):
        assert followed(getattr(op, name)), name
    for name in ("relu", "gelu", "silu"):
        assert followed(getattr(op.nn, name)), name
    for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum"):
        assert followed(getattr(op, name), Spec(6)), name
    assert followed(lambda y: op.astype(y, "float16"))
    assert not followed(lambda y: y)
    assert not followed(lambda y: op.sum(y))
    assert not followed(lambda y, b: op.add(y, b), Spec(2, 1, 6))
    assert not followed(lambda y: (op.tanh(y), y))


n = tirx.Var("n", "int64")
STAYS = {
    "matrices that are used several times": (Spec(2, 3, 4, 5), Spec(3, 5, 6)),
    "matrices of one with several": (Spec(4, 8), Spec(3, 8, 6)),
    "no rows": (Spec(0, 5), Spec(5, 6)),
    "no columns": (Spec(4, 5), Spec(5, 0)),
    "a vector": (Spec(8), W),
    "a vector of weights": (X, Spec(8)),
    "integers": (Spec(4, 8, dtype="int32"), Spec(8, 6, dtype="int32")),
    "shapes that are not static": (Spec(n, 8), W),
    "extents of 2^31": (Spec(1 << 31, 1), Spec(1, 1)),
    "rows of 2^31": (Spec(1 << 16, 1 << 15, 1), Spec(1, 1)),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_is_not_offered(name):
    def refuse(given):
        pytest.fail(f"{given} is offered")

    check_stays(
        partial(library_products, chosen=refuse), relax_module(op.matmul, *STAYS[name]), SM_90
    )


def test_2_to_the_31_less_1_is_offered():
    rows = (1 << 31) - 1
    (offered,) = becomes(
        op.matmul, lambda x, w: called(x, w, Spec(rows, 1)), Spec(rows, 1), Spec(1, 1)
    )
    assert offered.rows == rows


def test_rows_of_several_axes_that_lie_turned_are_not_offered():
    def before(x, w):
        return op.matmul(turned(x, 0, 2, 1), w)

    check_stays(
        partial(library_products, chosen=lambda product: True),
        relax_module(before, Spec(3, 8, 4), W),
        SM_90,
    )


def test_two_dtypes_are_not_offered():
    check_stays(
        partial(library_products, chosen=lambda product: True),
        relax_module(
            lambda x, w: op.matmul(x, w, out_dtype="float32"), X, Spec(8, 6, dtype="float16")
        ),
        SM_90,
    )


def test_what_is_done_once_at_load_is_not_offered():
    before = relax_module(lambda y, x, w: (y, op.matmul(x, w)), Spec(1), X, W, params=2)
    check_stays(partial(library_products, chosen=lambda product: True), before, SM_90)


def test_what_is_not_chosen_stays():
    before = relax_module(op.matmul, X, W)
    check_stays(partial(library_products, chosen=lambda product: False), before, SM_90)


def test_a_function_that_does_not_name_its_parameters_stays():
    before = relax_module(op.matmul, X, W, params=None)
    check_stays(partial(library_products, chosen=lambda product: True), before, SM_90)
