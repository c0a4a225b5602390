"""Products of operands in a narrow type: which are taken, and what they become."""

from functools import partial

import pytest

from needle_tvm._tvm.names import OP_PATTERN, relax, tirx, topi
from needle_tvm.kernels.dense import narrow_products as rules
from needle_tvm.kernels.dense.gpu.tensor_core import TF32
from needle_tvm.kernels.dense.narrow_products import narrow_products
from tests.needle_tvm.modules import (
    AVX512,
    SM_90,
    Spec,
    check_becomes,
    check_stays,
    emit,
    kernel,
    relax_module,
)

op = relax.op
X, W = Spec(5, 8), Spec(8, 6)


def conv(x, w, **options):
    options = {"data_layout": "NHWC", "kernel_layout": "HWIO", **options}
    return op.nn.conv2d(x, w, **options)


def becomes(before, after, *specs, precision, target, params=1):
    check_becomes(
        partial(narrow_products, precision=precision),
        relax_module(before, *specs, params=params),
        relax_module(after, *specs, params=params),
        target,
    )


def stays(before, *specs, precision="float16", target=AVX512, params=1):
    check_stays(
        partial(narrow_products, precision=precision),
        relax_module(before, *specs, params=params),
        target,
    )


# On a CPU


@pytest.mark.parametrize("product", [op.matmul, partial(conv, padding=1)])
def test_on_a_cpu_operands_are_rounded_and_widened(product):
    specs = (X, W) if product is op.matmul else (Spec(2, 5, 5, 4), Spec(3, 3, 4, 6))

    def narrow(x):
        return op.astype(op.astype(x, "float16"), "float32")

    becomes(
        product,
        lambda x, w: product(narrow(x), narrow(w)),
        *specs,
        precision="float16",
        target=AVX512,
    )

    def in_bfloat16(x):
        x = kernel(lambda x: rules.rounded_to(x, 8), x, name="to_bfloat16")
        return op.astype(op.astype(x, "bfloat16"), "float32")

    becomes(
        product,
        lambda x, w: product(in_bfloat16(x), in_bfloat16(w)),
        *specs,
        precision="bfloat16",
        target=AVX512,
    )


def in_float32(x, w):
    return op.matmul(x, w, out_dtype="float32")


n = tirx.Var("n", "int64")
STAYS = {
    "a vector": (op.matmul, (Spec(8), W)),
    "a vector of weights": (op.matmul, (X, Spec(8))),
    "no rows": (op.matmul, (Spec(0, 8), W)),
    "no columns": (op.matmul, (X, Spec(8, 0))),
    "shapes that are not static": (op.matmul, (Spec(n, 8), W)),
    "float64": (op.matmul, (Spec(5, 8, dtype="float64"), Spec(8, 6, dtype="float64"))),
    "one operand of float32": (in_float32, (X, Spec(8, 6, dtype="float16"))),
    "other layouts": (
        lambda x, w: conv(x, w, data_layout="NCHW", kernel_layout="OIHW"),
        (Spec(2, 4, 5, 5), Spec(6, 4, 3, 3)),
    ),
    "another operator": (op.add, (X, X)),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    before, specs = STAYS[name]
    stays(before, *specs)
    if name != "one operand of float32":
        stays(before, *specs, target=SM_90)


@pytest.mark.parametrize("target", [AVX512, SM_90], ids=["cpu", "gpu"])
def test_where_nothing_is_asked_for_float32_stays(target):
    stays(op.matmul, X, W, precision="float32", target=target)


@pytest.mark.parametrize("target", [AVX512, SM_90], ids=["cpu", "gpu"])
def test_a_function_that_does_not_name_its_parameters_stays(target):
    stays(op.matmul, X, W, params=None, target=target)


# On a GPU


def gpu_product(*operands, narrow=lambda tensor: tensor, note=None):
    """The sum over products of operands, each seen through `narrow` where it is float32."""

    def rule(x, w):
        return rules.matmul(*(narrow(each) for each in (x, w)), note or {})

    return kernel(rule, *operands, name="matmul", op_pattern=OP_PATTERN.out_fusable)


def cast(dtype):
    return lambda x: x if str(x.dtype) == dtype else topi.cast(x, dtype)


def on_gpu(before, after, *specs, precision="float16", params=1):
    becomes(before, after, *specs, precision=precision, target=SM_90, params=params)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_are_rounded_at_load_and_inputs_on_their_way(dtype):
    on_gpu(
        op.matmul,
        lambda x, w: gpu_product(x, op.astype(w, dtype), narrow=cast(dtype)),
        *(X, W),
        precision=dtype,
    )


def test_tf32_is_float32_rounded_and_noted():
    def rounded(x):
        return kernel(lambda x: rules.rounded_to(x, 11), x, name="to_tf32")

    def after(x, w):
        w = rounded(w)

        def rule(x, w):
            return rules.matmul(rules.rounded_to(x, 11), w, {TF32: 1})

        return kernel(rule, x, w, name="matmul", op_pattern=OP_PATTERN.out_fusable)

    on_gpu(op.matmul, after, X, W, precision="tf32")


def test_a_convolution():
    specs = Spec(2, 5, 5, 4), Spec(3, 3, 2, 6)
    options = {"padding": (1, 0, 2, 1), "strides": (1, 2), "dilation": (2, 1), "groups": 2}

    def after(x, w):
        call = emit(conv(x, w, **options))
        found = relax.BlockBuilder.current().lookup_binding(call)

        def rule(x, w):
            return rules.conv(topi.cast(x, "float16"), w, found, {})

        return kernel(
            rule, x, op.astype(w, "float16"), name="conv2d", op_pattern=OP_PATTERN.out_fusable
        )

    on_gpu(partial(conv, **options), after, *specs)


def test_what_products_alone_read_is_rounded_by_the_kernel_that_makes_it():
    narrow = cast("float16")

    def before(x, v, w):
        return op.matmul(op.reshape(op.exp(op.matmul(x, v)), (5, 8)), w)

    def after(x, v, w):
        hidden = gpu_product(x, op.astype(v, "float16"), narrow=narrow)
        hidden = op.astype(op.reshape(op.exp(hidden), (5, 8)), "float16")
        return gpu_product(hidden, op.astype(w, "float16"), narrow=narrow)

    on_gpu(before, after, X, Spec(8, 8), W, params=2)


def test_a_reshape_of_an_argument_is_rounded_on_its_way():
    on_gpu(
        lambda x, w: op.matmul(op.reshape(x, (5, 8)), w),
        lambda x, w: gpu_product(
            op.reshape(x, (5, 8)), op.astype(w, "float16"), narrow=cast("float16")
        ),
        *(Spec(40), W),
    )


def test_what_others_read_as_well_stays_float32():
    narrow = cast("float16")

    def before(x, w):
        y = emit(op.exp(x))
        return op.matmul(y, w), op.negative(y)

    def after(x, w):
        y = emit(op.exp(x))
        return gpu_product(y, op.astype(w, "float16"), narrow=narrow), op.negative(y)

    on_gpu(before, after, X, W)


def test_weights_that_two_products_share_are_rounded_once():
    def after(x, y, w):
        w = emit(op.astype(w, "float16"))
        return tuple(gpu_product(each, w, narrow=cast("float16")) for each in (x, y))

    on_gpu(lambda x, y, w: (op.matmul(x, w), op.matmul(y, w)), after, X, X, W)


@pytest.mark.parametrize("precision", ["float32", "float16", "tf32"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_that_were_widened_are_read_as_halves(dtype, precision):
    specs = Spec(5, 8, dtype=dtype), Spec(8, 6, dtype=dtype)
    on_gpu(
        lambda x, w: op.matmul(op.astype(x, "float32"), op.astype(w, "float32")),
        gpu_product,
        *specs,
        precision=precision,
    )
    on_gpu(
        op.matmul,
        lambda x, w: op.astype(gpu_product(x, w), dtype),
        *specs,
        precision=precision,
    )


def test_halves_of_two_kinds_are_no_halves():
    def before(x, w):
        return op.matmul(op.astype(x, "float32"), op.astype(w, "float32"))

    specs = Spec(5, 8, dtype="float16"), Spec(8, 6, dtype="bfloat16")
    stays(before, *specs, precision="float32", target=SM_90)


def test_halves_with_other_operands_stay():
    stays(
        lambda x, w: op.matmul(x, w, out_dtype="float16"),
        *(X, Spec(8, 6, dtype="float16")),
        precision="float32",
        target=SM_90,
    )
    stays(
        lambda x, w: op.matmul(op.astype(x, "float32"), w),
        *(Spec(5, 8, dtype="float16"), W),
        precision="float32",
        target=SM_90,
    )
