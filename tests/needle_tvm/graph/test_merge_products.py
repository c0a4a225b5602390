"""Norms and matmuls of one tensor are merged: before, after, and what stays."""

import numpy as np
import pytest

import needle_tvm
from needle import nn, ops
from needle.trace import trace
from needle_tvm._tvm.names import check_well_formed, relax, transform, tvm
from needle_tvm.frontend import lowering
from needle_tvm.frontend.translate import translate
from needle_tvm.graph.passes.merge_products import merge_products
from needle_tvm.graph.passes.share_norms import share_norms
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import calls_of, static_shape
from tests.needle_tvm.conftest import tensor


@pytest.fixture(scope="module")
def target():
    return resolve("cpu", 2).to_tvm()


def values(*shape, seed=3):
    return tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def norm(size, seed):
    layer = nn.LayerNorm1d(size)
    layer.weight.data, layer.bias.data = values(size, seed=seed), values(size, seed=seed + 1)
    return layer


def split(x, heads):
    return ops.reshape(x, (*x.shape[:-1], heads, x.shape[-1] // heads))


def operators(fn, *inputs, passes, target):
    """(name, shape) of every remaining operator in `main`."""
    module = translate(trace(fn, *inputs), prefer_emit=True)
    for apply in passes:
        module = transform.DeadCodeElimination()(apply(module, target))
    check_well_formed(module)
    found = []

    def visit(expr):
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            found.append((expr.op.name.removeprefix("relax."), static_shape(expr)))

    relax.analysis.post_order_visit(module["main"], visit)
    return found


def names(*args, **kwargs):
    return [name for name, _ in operators(*args, **kwargs)]


def check(fn, *inputs):
    found = needle_tvm.compile(fn, *inputs, stage="tuned")(*inputs)
    for one, other in zip(found, fn(*inputs), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-4)


def branches(count, size=12, norms=True, bias=False, columns=(6, 8, 6)):
    """`count` projections of one input, each with its own norm, split into heads."""
    layers = [nn.Linear(size, columns[i], bias=bias) for i in range(count)]
    before = [norm(size, 10 * i) if norms else nn.Identity() for i in range(count)]

    def fn(x):
        projected = [layer(b(x)) for layer, b in zip(layers, before, strict=True)]
        return tuple(split(y, 2) for y in projected)

    return fn


def test_norms_of_one_tensor_become_one(target):
    fn, x = branches(3), values(2, 5, 12)
    left = names(fn, x, passes=[share_norms], target=target)
    assert left.count("nn.layer_norm") == 1
    check(fn, x)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_norms_of_other_dtypes(dtype):
    norms, layers = ([made(12, dtype=dtype) for _ in "ab"] for made in (nn.LayerNorm1d, square))
    fn = lambda x: tuple(layer(one(x)) for layer, one in zip(layers, norms, strict=True))  # noqa: E731
    needle_tvm.compile(fn, values(2, 5, 12).astype(dtype), stage="tuned")  # compares results


def square(size, dtype):
    return nn.Linear(size, size, bias=False, dtype=dtype)


def test_a_norm_that_is_alone_keeps_its_scale(target):
    fn, x = branches(1), values(2, 5, 12)
    assert "add" not in names(fn, x, passes=[share_norms], target=target)


def test_norms_that_others_read_stay(target):
    one, two, layer = norm(12, 1), norm(12, 5), nn.Linear(12, 4, bias=False)

    def fn(x):
        read = two(x)
        return layer(one(x)), layer(read), read

    left = names(fn, values(2, 12), passes=[share_norms], target=target)
    assert left.count("nn.layer_norm") == 2 and "add" not in left
    check(fn, values(2, 12))


def test_other_epsilons_are_other_norms(target):
    one, two, layer = norm(12, 1), nn.LayerNorm1d(12, eps=0.5), nn.Linear(12, 4, bias=False)
    fn = lambda x: (layer(one(x)), layer(two(x)))  # noqa: E731
    left = names(fn, values(2, 12), passes=[share_norms], target=target)
    assert left.count("nn.layer_norm") == 2


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(3, 12), (2, 5, 12)], ids=str)
def test_products_of_one_tensor_become_one(shape, bias, target):
    fn, x = branches(3, norms=False, bias=bias), values(*shape)
    left = operators(fn, x, passes=[merge_products], target=target)
    products = [shape for name, shape in left if name == "matmul"]
    assert products == [(*shape[:-1], 20)]
    assert sum(name == "strided_slice" for name, _ in left) == 3
    check(fn, x)


def test_a_product_that_is_read_whole_stays(target):
    fn = lambda x: tuple(layer(x) + 1 for layer in layers)  # noqa: E731
    layers = [nn.Linear(12, 6, bias=False) for _ in range(2)]
    left = names(fn, values(3, 12), passes=[merge_products], target=target)
    assert left.count("matmul") == 2


def test_products_of_what_depends_on_no_input_stay():
    one, two, start = values(4, 8), values(4, 8, seed=4), tensor(np.zeros((1, 4), np.float32))

    def fn(x):
        first = ops.relu(x + split(start @ one, 2))
        return first, split(start @ ops.transpose(ops.transpose(two)), 2) + x

    check(fn, values(1, 2, 4))


def test_a_number_added_to_a_product_of_one_column_is_no_bias():
    weight = nn.Parameter(values(8, 1))
    check(lambda x: (x @ weight + 2, ops.reshape(x @ weight + 2, (3,))), values(3, 8))


def test_products_by_inputs_stay(target):
    def fn(x, a, b):
        return split(x @ a, 2), split(x @ b, 2)

    inputs = values(3, 12), values(12, 4), values(12, 4)
    assert names(fn, *inputs, passes=[merge_products], target=target).count("matmul") == 2


def test_an_attention_layer_is_four_kernels(target):
    layer = nn.AttentionLayer(24, 3, 8)
    layer.eval()
    module = lowering.lower(trace(layer, values(2, 9, 24)), target, "tuned")
    called = [name.rstrip("0123456789") for name in calls_of(module, "main")]
    assert called == ["layer_norm", "fused_dense_add", "attention", "dense"]


def test_keys_from_elsewhere_share_what_they_can(rng):
    layer = nn.AttentionLayer(12, 2, 4, k_features=8, v_features=8, causal=False)
    layer.eval()
    q, k = values(2, 6, 12), values(2, 9, 8)
    found = needle_tvm.compile(layer, q, k, k, stage="tuned")(q, k, k).numpy()
    np.testing.assert_allclose(found, layer(q, k, k).numpy(), rtol=1e-4, atol=1e-4)


def test_a_part_of_a_tuple_is_no_parameter_work(target):
    """The steps' results are parts of a tuple, and values computed from them stay after them."""
    model = nn.LSTM(4, 6, 2).eval()
    module = translate(trace(model, values(5, 3, 4)), prefer_emit=True)
    check_well_formed(merge_products(module, target))
