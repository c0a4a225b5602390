"""Attention as one kernel: what the pass takes, what it makes of it, and what it leaves alone."""

import numpy as np
import pytest

from needle_tvm._tvm.names import OP_PATTERN, Schedule, relax, te, tirx
from needle_tvm.kernels.attention import gpu
from needle_tvm.kernels.attention.cpu import AttentionShape, attention, attention_tile
from needle_tvm.kernels.attention.fuse_attention import fuse_attention
from needle_tvm.tir.functions import module_of
from tests.needle_tvm.modules import (
    AVX512,
    SM_90,
    Spec,
    check_becomes,
    check_stays,
    emit,
    relax_module,
)

op = relax.op
SHAPE = AttentionShape(2, 3, 9, 12, 8, 5)  # batch, heads, queries, keys, features, values
Q, KT, V = Spec(2, 3, 9, 8), Spec(2, 3, 8, 12), Spec(2, 3, 12, 5)


def number(value, dtype="float32"):
    return relax.const(np.array(value, dtype))


def softmax(scores, axis=-1):
    return op.nn.softmax(scores, axis)


def attend(q, kt, v):
    return op.matmul(softmax(op.matmul(q, kt)), v)


def as_kernel(*sources, scale=None, q, k, v, mask=None, shape=SHAPE, dtype="float32"):
    """A call of the CPU's kernel. `q` to `mask` give elements: of (b, h, t, d), (b, h, j, d),
    (b, h, j, c) and (b, h, t, j), from the tensors of `sources`."""
    inputs = [
        te.placeholder([int(n) for n in s.ty.shape.values], dtype, f"x{i}")
        for i, s in enumerate(sources)
    ]
    elements = [None if e is None else lambda *at, e=e: e(inputs, *at) for e in (q, k, v, mask)]
    result = attention(shape, attention_tile(shape, dtype, AVX512), dtype, scale, *elements)
    sch = Schedule(module_of(te.create_prim_func([*inputs, result])))
    sch.transform_layout(
        sch.get_sblock("attention"),
        ("write", 0),
        lambda b, t, h, c: (b * shape.queries + t, h * shape.values + c),
    )
    return _called(sch.mod["main"].without_attr("global_symbol"), sources, shape, dtype)


def _called(function, sources, shape, dtype):
    builder = relax.BlockBuilder.current()
    function = function.with_attrs({"op_pattern": OP_PATTERN.opaque})
    variable = builder.add_func(function, "attention")
    rows = shape.batch * shape.queries, shape.heads * shape.values
    out = relax.call_tir(variable, list(sources), out_ty=relax.TensorType(rows, dtype))
    apart = op.reshape(builder.emit(out), (shape.batch, shape.queries, shape.heads, shape.values))
    return op.permute_dims(apart, [0, 2, 1, 3])


DIRECT = {
    "q": lambda s, b, h, t, d: s[0][b, h, t, d],
    "k": lambda s, b, h, j, d: s[1][b, h, d, j],
    "v": lambda s, b, h, j, c: s[2][b, h, j, c],
}


def becomes(before, after, *specs, target=AVX512):
    check_becomes(fuse_attention, relax_module(before, *specs), relax_module(after, *specs), target)


@pytest.mark.parametrize("axis", [-1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_queries_keys_and_values(dtype, axis):
    becomes(
        lambda q, kt, v: op.matmul(softmax(op.matmul(q, kt), axis), v),
        lambda *s: as_kernel(*s, **DIRECT, dtype=dtype),
        *(Spec(*each.shape, dtype=dtype) for each in (Q, KT, V)),
    )


TWO, FOUR, THIRD = number(2.0), number(4.0), number(0.3)
SCALED = {
    "multiplied": (lambda s: op.multiply(s, THIRD), float(np.float32(0.3))),
    "multiplied from the left": (lambda s: op.multiply(THIRD, s), float(np.float32(0.3))),
    "divided": (lambda s: op.divide(s, FOUR), 0.25),
    "by 0": (lambda s: op.multiply(s, number(0.0)), 0.0),
    "by 1": (lambda s: op.multiply(s, number(1.0)), None),
}


@pytest.mark.parametrize("name", SCALED)
def test_scores_that_are_scaled(name):
    scaled, scale = SCALED[name]
    becomes(
        lambda q, kt, v: op.matmul(softmax(scaled(op.matmul(q, kt))), v),
        lambda *s: as_kernel(*s, scale=scale, **DIRECT),
        *(Q, KT, V),
    )


def test_queries_and_keys_that_are_scaled():
    def before(q, k, v):
        kt = op.permute_dims(op.multiply(k, FOUR), [0, 1, 3, 2])
        scores = op.multiply(op.matmul(op.divide(q, TWO), kt), FOUR)
        return op.matmul(softmax(scores), v)

    def after(*s):
        k = lambda s, b, h, j, d: s[1][b, h, j, d]  # noqa: E731
        return as_kernel(*s, scale=8.0, **{**DIRECT, "k": k})

    becomes(before, after, Q, Spec(2, 3, 12, 8), V)


def test_queries_that_are_multiplied_by_a_tensor():
    becomes(
        lambda q, kt, v, s: attend(op.multiply(q, s), kt, v),
        lambda q, kt, v, s: as_kernel(emit(op.multiply(q, s)), kt, v, **DIRECT),
        *(Q, KT, V, Spec(8)),
    )


MASKS = {
    "of all": ((2, 3, 9, 12), lambda m, b, h, t, j: m[b, h, j, t]),
    "of rows": ((9, 12), lambda m, b, h, t, j: m[j, t]),
    "of one row": ((1, 12), lambda m, b, h, t, j: m[j, 0]),
    "of batches": ((2, 1, 9, 12), lambda m, b, h, t, j: m[b, 0, j, t]),
    "of a column": ((3, 9, 1), lambda m, b, h, t, j: m[h, 0, t]),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_turned(name):
    shape, element = MASKS[name]
    axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]

    def after(q, kt, v, mask):
        turned = emit(op.permute_dims(mask, axes))
        return as_kernel(
            *(q, kt, v, turned), scale=4.0, **DIRECT, mask=lambda s, *at: element(s[3], *at)
        )

    def scaled(q, kt):
        return op.multiply(op.matmul(q, kt), FOUR)

    for before in (
        lambda q, kt, v, mask: op.matmul(softmax(op.add(scaled(q, kt), mask)), v),
        lambda q, kt, v, mask: op.matmul(softmax(op.add(mask, scaled(q, kt))), v),
    ):
        becomes(before, after, Q, KT, V, Spec(*shape))


@pytest.mark.parametrize("shape", [(12,), ()])
def test_masks_of_fewer_axes(shape):
    extents = (1, 12) if shape else (1, 1)

    def after(q, kt, v, mask):
        turned = emit(op.permute_dims(op.reshape(mask, extents), [1, 0]))
        return as_kernel(
            *(q, kt, v, turned), **DIRECT, mask=lambda s, b, h, t, j: s[3][j if shape else 0, 0]
        )

    becomes(
        lambda q, kt, v, mask: op.matmul(softmax(op.add(op.matmul(q, kt), mask)), v),
        after,
        *(Q, KT, V, Spec(*shape)),
    )


def test_heads_are_read_where_a_projection_wrote_them():
    """(2 * 9, 3 * 3 * 8): queries, keys and values of three heads side by side."""
    shape = AttentionShape(2, 3, 9, 9, 8, 8)

    def before(x):
        def part(n, axes):
            y = op.strided_slice(x, [1], [24 * n], [24 * n + 24])
            return op.permute_dims(op.reshape(y, (2, 9, 3, 8)), axes)

        q, v = (part(n, [0, 2, 1, 3]) for n in (0, 2))
        return attend(q, part(1, [0, 2, 3, 1]), v)

    def element(n):
        return lambda s, b, h, t, d: s[0][b * 9 + t, h * 8 + d + 24 * n]

    becomes(
        before,
        lambda x: as_kernel(x, q=element(0), k=element(1), v=element(2), shape=shape),
        Spec(18, 72),
    )


def on_gpu(*sources, mask=None, shape=SHAPE):
    inputs = [
        te.placeholder([int(n) for n in s.ty.shape.values], "float32", f"x{i}")
        for i, s in enumerate(sources)
    ]

    def elements(tensors):
        q, k, v = (lambda *at, e=DIRECT[name]: e(tensors, *at) for name in "qkv")
        return q, k, v, mask and (lambda b, h, t, j: tensors[3][t, j])

    return _called(gpu.attention(shape, None, inputs, elements), sources, shape, "float32")


def test_on_a_gpu_a_mask_is_read_as_it_is():
    becomes(attend, lambda *s: on_gpu(*s), Q, KT, V, target=SM_90)
    becomes(
        lambda q, kt, v, mask: op.matmul(softmax(op.add(op.matmul(q, kt), mask)), v),
        lambda *s: on_gpu(*s, mask=True),
        *(Q, KT, V, Spec(9, 12)),
        target=SM_90,
    )


def test_one_query_is_enough_on_a_gpu_and_four_on_a_cpu():
    def of(queries):
        return Spec(2, 3, queries, 8), KT, V

    check_stays(fuse_attention, relax_module(attend, *of(3)))
    for queries, after, target in ((4, as_kernel, AVX512), (1, on_gpu, SM_90)):
        shape = AttentionShape(2, 3, queries, 12, 8, 5)
        given = DIRECT if target is AVX512 else {}
        becomes(
            attend,
            lambda *s, f=after, g=given, shape=shape: f(*s, **g, shape=shape),
            *of(queries),
            target=target,
        )


def test_on_a_gpu_float64_and_heads_that_fit_into_no_tile_stay():
    wide = [Spec(*each.shape, dtype="float64") for each in (Q, KT, V)]
    check_stays(fuse_attention, relax_module(attend, *wide), SM_90)
    large = Spec(1, 1, 9, 4096), Spec(1, 1, 4096, 12), Spec(1, 1, 12, 4096)
    check_stays(fuse_attention, relax_module(attend, *large), SM_90)


def of_other_dtype(*specs, dtype="float16"):
    return tuple(Spec(*each.shape, dtype=dtype) for each in specs)


n = tirx.Var("n", "int64")
STAYS = {
    "no softmax": (lambda q, kt, v: op.matmul(op.matmul(q, kt), v), (Q, KT, V)),
    "softmax over another axis": (
        lambda q, kt, v: op.matmul(softmax(op.matmul(q, kt), 2), v),
        (Q, KT, V),
    ),
    "no product of queries and keys": (
        lambda s, v: op.matmul(softmax(s), v),
        (Spec(2, 3, 9, 12), V),
    ),
    "a mask of no product": (
        lambda s, m, v: op.matmul(softmax(op.add(s, m)), v),
        (Spec(2, 3, 9, 12), Spec(9, 12), V),
    ),
    "a scale that is a tensor": (
        lambda q, kt, v, s: op.matmul(softmax(op.multiply(op.matmul(q, kt), s)), v),
        (Q, KT, V, Spec()),
    ),
    "a scale of one element and axis": (
        lambda q, kt, v: op.matmul(softmax(op.multiply(op.matmul(q, kt), number([2.0]))), v),
        (Q, KT, V),
    ),
    "a number divided by scores": (
        lambda q, kt, v: op.matmul(softmax(op.divide(TWO, op.matmul(q, kt))), v),
        (Q, KT, V),
    ),
    "a division by 0": (
        lambda q, kt, v: op.matmul(softmax(op.divide(op.matmul(q, kt), number(0.0))), v),
        (Q, KT, V),
    ),
    "halves": (attend, of_other_dtype(Q, KT, V)),
    "values of another dtype": (
        lambda q, kt, v: op.matmul(softmax(op.matmul(q, kt)), v, out_dtype="float32"),
        (Q, KT, *of_other_dtype(V)),
    ),
    "values in float64": (
        lambda q, kt, v: op.matmul(softmax(op.matmul(q, kt)), v, out_dtype="float64"),
        (Q, KT, *of_other_dtype(V, dtype="float64")),
    ),
    "three axes": (attend, (Spec(3, 9, 8), Spec(3, 8, 12), Spec(3, 12, 5))),
    "no batch": (attend, (Spec(0, 3, 9, 8), Spec(0, 3, 8, 12), Spec(0, 3, 12, 5))),
    "no keys": (attend, (Q, Spec(2, 3, 8, 0), Spec(2, 3, 0, 5))),
    "heads that are not static": (
        attend,
        (Spec(2, n, 9, 8), Spec(2, n, 8, 12), Spec(2, n, 12, 5)),
    ),
    "features that are not static": (
        attend,
        (Spec(2, 3, 9, n), Spec(2, 3, n, 12), V),
    ),
    "keys that heads share": (attend, (Q, Spec(2, 1, 8, 12), V)),
    "values that heads share": (attend, (Q, KT, Spec(2, 1, 12, 5))),
    "a mask of more axes": (
        lambda q, kt, v, m: op.matmul(softmax(op.add(op.matmul(q, kt), m)), v),
        (Q, KT, V, Spec(1, 2, 3, 9, 12)),
    ),
    "a mask that makes rows": (
        lambda q, kt, v, m: op.matmul(softmax(op.add(op.matmul(q, kt), m)), v),
        (Spec(1, 3, 9, 8), Spec(1, 3, 8, 12), Spec(1, 3, 12, 5), Spec(2, 1, 9, 12)),
    ),
    "a mask that is not static": (
        lambda q, kt, v, m: op.matmul(softmax(op.add(op.matmul(q, kt), m)), v),
        (Q, KT, V, Spec(n, 12)),
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    before, specs = STAYS[name]
    check_stays(fuse_attention, relax_module(before, *specs))


def test_what_others_read_stays():
    def scores(q, kt, v):
        read = emit(op.matmul(q, kt))
        return op.matmul(softmax(read), v), read

    def scaled(q, kt, v):
        read = emit(op.multiply(op.matmul(q, kt), TWO))
        return op.matmul(softmax(read), v), read

    def product_of_scaled(q, kt, v):
        read = emit(op.matmul(q, kt))
        return op.matmul(softmax(op.multiply(read, TWO)), v), read

    def masked(q, kt, v, m):
        read = emit(op.add(op.matmul(q, kt), m))
        return op.matmul(softmax(read), v), read

    def weights(q, kt, v):
        read = emit(softmax(op.matmul(q, kt)))
        return op.matmul(read, v), read

    for before in (scores, scaled, product_of_scaled, weights):
        check_stays(fuse_attention, relax_module(before, Q, KT, V))
    check_stays(fuse_attention, relax_module(masked, Q, KT, V, Spec(9, 12)))
