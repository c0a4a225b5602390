"""Permutations and reshapes moved behind elementwise operators."""

import numpy as np
import pytest

from needle import ops
from needle_tvm._tvm.names import relax, tirx
from needle_tvm.graph.passes.sink_views import (
    reshape_permutes,
    sink_images,
    sink_permutes,
    sink_reshapes,
)
from needle_tvm.lower import pipeline
from needle_tvm.tir.functions import calls_of
from tests.needle_tvm.modules import (
    AVX512,
    SM_90,
    Spec,
    check_becomes,
    check_stays,
    emit,
    needle_module,
    relax_module,
)

op = relax.op
NHWC, NCHW = Spec(2, 5, 6, 4), Spec(2, 4, 5, 6)
TO_PLANES, FROM_PLANES = [0, 3, 1, 2], [0, 2, 3, 1]
TWO = relax.const(2.0)

UNARY = ("negative", "exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "abs", "erf")
ACTIVATIONS = ("gelu", "gelu_tanh", "silu", "relu", "leakyrelu", "softplus")
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")
COMPARISONS = ("equal", "greater", "greater_equal", "less", "less_equal")


def planes(x):
    return op.permute_dims(x, TO_PLANES)


def becomes(graph_pass, before, after, *specs, params=0):
    check_becomes(
        graph_pass,
        relax_module(before, *specs, params=params),
        relax_module(after, *specs, params=params),
    )


def stays(graph_pass, before, *specs):
    check_stays(graph_pass, relax_module(before, *specs))


@pytest.mark.parametrize(
    "function",
    [
        *(getattr(op, name) for name in UNARY),
        *(getattr(op.nn, name) for name in ACTIVATIONS),
        lambda x: op.clip(x, 0, 6),
        lambda x: op.astype(op.greater(x, TWO), "float32"),
    ],
    ids=[*UNARY, *ACTIVATIONS, "clip", "mask"],
)
def test_functions_of_one_operand(function):
    becomes(sink_permutes, lambda x: function(planes(x)), lambda x: planes(function(x)), NHWC)
    becomes(
        sink_reshapes,
        lambda x: function(op.reshape(x, (2, 3, 4))),
        lambda x: op.reshape(function(x), (2, 3, 4)),
        Spec(6, 4),
    )


@pytest.mark.parametrize("name", BINARY + COMPARISONS)
def test_functions_of_two_operands_keep_their_order(name):
    function = getattr(op, name)
    becomes(
        sink_permutes,
        lambda x, y: (function(planes(x), planes(y)), function(planes(x), TWO)),
        lambda x, y: (planes(function(x, y)), planes(function(x, TWO))),
        *(NHWC, NHWC),
    )
    becomes(
        sink_permutes,
        lambda x, y: (function(TWO, planes(x)), function(y, planes(x))),
        lambda x, y: (
            planes(function(TWO, x)),
            planes(function(op.reshape(y, (1, 1, 1, 4)), x)),
        ),
        *(NHWC, Spec(1, 4, 1, 1)),
    )


def test_casts_of_numbers_stay():
    stays(sink_permutes, lambda x: op.astype(planes(x), "float64"), NHWC)


def test_a_batch_norm_in_training_works_in_channels_last():
    """Neither the statistics, nor the result, nor the mask of a ReLU's gradient is permuted."""

    def norm(x, weight, bias, grad):
        y, mean, variance = ops.batch_norm_train(ops.permute(x, TO_PLANES), weight, bias, 1).tuple()
        masked = ops.permute(grad, TO_PLANES) * (y > 0)
        return ops.permute(y.relu(), FROM_PLANES), ops.permute(masked, FROM_PLANES), mean, variance

    module = needle_module(norm, NHWC, Spec(4), Spec(4), NHWC)
    module = pipeline.run(pipeline.of(AVX512, "tuned").graph, module, AVX512)
    names = calls_of(module, "main")
    assert names and not any("transpose" in name for name in names)


def test_a_chain_of_permutations_has_none_in_between():
    def conv(x, w):
        return op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO", padding=1)

    def layer(x, w, b):
        y = conv(op.permute_dims(x, FROM_PLANES), w)
        return op.nn.relu(op.add(planes(y), op.reshape(b, (1, 4, 1, 1))))

    def stored(x, w, b):
        b = emit(op.reshape(b, (1, 4, 1, 1)))
        return op.nn.relu(op.add(conv(x, w), op.reshape(b, (1, 1, 1, 4))))

    becomes(
        lambda module, target: sink_permutes(module, target),
        lambda x, w, b: layer(layer(x, w, b), w, b),
        lambda x, w, b: planes(
            stored(
                op.nn.relu(
                    op.add(
                        conv(op.permute_dims(x, FROM_PLANES), w),
                        op.reshape(emit(op.reshape(b, (1, 4, 1, 1))), (1, 1, 1, 4)),
                    )
                ),
                w,
                b,
            )
        ),
        *(NCHW, Spec(3, 3, 4, 4), Spec(4)),
        params=2,
    )


def test_two_permutations_are_one_or_none_or_a_reshape():
    turned = [1, 2, 0]
    becomes(
        sink_permutes,
        lambda x: op.permute_dims(op.permute_dims(x, turned), turned),
        lambda x: op.permute_dims(x, [2, 0, 1]),
        Spec(2, 3, 4),
    )
    becomes(
        sink_permutes,
        lambda x: op.negative(op.permute_dims(op.permute_dims(x))),
        op.negative,
        Spec(2, 3, 4),
    )
    becomes(
        sink_permutes,
        lambda x: op.permute_dims(op.permute_dims(x, [1, 2, 0]), [1, 0, 2]),
        lambda x: op.reshape(x, [4, 1, 1]),
        Spec(1, 1, 4),
    )
    becomes(
        sink_permutes,
        lambda x: op.negative(op.permute_dims(x, [0, -2, -1])),
        op.negative,
        Spec(2, 3, 4),
    )


def test_an_operand_whose_permutation_was_made_before():
    """As in a residual block: both readers then have it as it is stored."""

    def before(x, y):
        stored = emit(op.permute_dims(y, FROM_PLANES))
        return op.sum(stored, 3), op.add(planes(x), y)

    def after(x, y):
        stored = emit(op.permute_dims(y, FROM_PLANES))
        return op.sum(stored, 3), planes(op.add(x, stored))

    becomes(sink_permutes, before, after, NHWC, NCHW)


def test_an_operand_whose_other_permutation_was_made_before_stays():
    def before(x, y):
        stored = emit(op.permute_dims(y, [0, 3, 2, 1]))
        return op.add(stored, stored), op.add(planes(x), y)

    def after(x, y):
        stored = op.permute_dims(op.add(y, y), [0, 3, 2, 1])
        return stored, op.add(planes(x), y)

    becomes(sink_permutes, before, after, Spec(2, 5, 5, 5), Spec(2, 5, 5, 5))


@pytest.mark.parametrize(
    ("before", "specs"),
    [
        (lambda x, y: op.add(planes(x), y), (NHWC, NCHW)),
        (
            lambda x, y: op.add(planes(x), op.permute_dims(y, [0, 1, 3, 2])),
            (NHWC, Spec(2, 4, 6, 5)),
        ),
        (lambda x, y: op.add(planes(x), y), (NHWC, Spec(4, 1, 1))),
        (lambda x, y: op.add(planes(x), y), (NHWC, Spec(1, 4, 5, 1))),
        (lambda x: op.sum(planes(x), 1), (NHWC,)),
        (lambda x, y: op.add(x, y), (NHWC, NHWC)),
    ],
    ids=[
        *("in another order", "permuted otherwise", "of fewer axes", "along two axes"),
        *("no elementwise operator", "no permutation"),
    ],
)
def test_permutations_that_stay(before, specs):
    stays(sink_permutes, before, *specs)


def test_an_operand_that_varies_along_one_axis_and_is_stored_so_already():
    becomes(
        sink_permutes,
        lambda x, y: op.add(planes(x), y),
        lambda x, y: planes(op.add(x, y)),
        *(NHWC, Spec(2, 1, 1, 1)),
    )


def test_symbolic_extents():
    n = tirx.Var("n", "int64")
    for sink, view, spec in (
        (sink_permutes, planes, Spec(n, 5, 6, 4)),
        (sink_reshapes, lambda x: op.reshape(x, (n, 1, 4)), Spec(n, 4)),
        (sink_images, lambda x: op.reshape(x, (n, 6, 4)), Spec(n, 1, 6, 4)),
    ):
        becomes(
            sink,
            lambda x, view=view: op.negative(view(x)),
            lambda x, view=view: view(op.negative(x)),
            spec,
        )


ROWS = Spec(6, 4)


def split(x):
    return op.reshape(x, (2, 3, 4))


def test_operands_beside_rows():
    for spec, stored in (
        (Spec(4), lambda y: y),
        (Spec(1), lambda y: y),
        (Spec(1, 4), lambda y: y),
        (Spec(1, 1, 4), lambda y: op.reshape(y, (4,))),
        (Spec(1, 1, 1), lambda y: op.reshape(y, (1,))),
        (Spec(2, 3, 4), lambda y: op.reshape(y, (6, 4))),
    ):
        becomes(
            sink_reshapes,
            lambda x, y: op.subtract(split(x), y),
            lambda x, y, stored=stored: split(op.subtract(x, stored(y))),
            *(ROWS, spec),
        )
        becomes(
            sink_reshapes,
            lambda x, y: op.subtract(y, split(x)),
            lambda x, y, stored=stored: split(op.subtract(stored(y), x)),
            *(ROWS, spec),
        )
    becomes(
        sink_reshapes,
        lambda x, y: op.add(split(x), split(y)),
        lambda x, y: split(op.add(x, y)),
        *(ROWS, ROWS),
    )
    becomes(
        sink_reshapes,
        lambda x: op.add(split(x), TWO),
        lambda x: split(op.add(x, TWO)),
        ROWS,
    )


def test_rows_of_other_rows_are_made_of_what_is_seen():
    """(4, 6) seen as (2, 2, 6), beside (2, 2, 6) made of images."""
    becomes(
        sink_reshapes,
        lambda x, y: op.add(op.reshape(x, (2, 2, 6)), op.reshape(y, (2, 2, 6))),
        lambda x, y: op.reshape(op.add(x, op.reshape(op.reshape(y, (2, 2, 6)), (4, 6))), (2, 2, 6)),
        *(Spec(4, 6), Spec(2, 2, 2, 3)),
    )


@pytest.mark.parametrize(
    ("before", "specs"),
    [
        (lambda x, y: op.add(split(x), y), (ROWS, Spec(3, 1))),
        (lambda x, y: op.add(split(x), y), (ROWS, Spec(3, 4))),
        (lambda x, y: op.add(split(x), y), (ROWS, Spec(2, 1, 4))),
        (lambda x, y: op.add(split(x), y), (ROWS, Spec(1, 1, 1, 4))),
        (lambda x, y: op.add(op.reshape(x, (2, 3, 1)), y), (Spec(6, 1), Spec(5))),
        (lambda x: op.negative(op.reshape(x, (6, 2, 2))), (ROWS,)),
        (lambda x: op.negative(op.reshape(x, (24,))), (ROWS,)),
        (lambda x: op.negative(op.reshape(x, (2, 4, 4))), (Spec(2, 2, 2, 4),)),
        (lambda x: op.negative(op.reshape(x, (4,))), (Spec(1, 4),)),
        (lambda x: op.sum(split(x), 1), (ROWS,)),
        (lambda x: op.negative(op.broadcast_to(x, (2, 6, 4))), (ROWS,)),
    ],
    ids=[
        *("a column", "several rows", "rows apart", "more axes", "that makes columns"),
        *("columns split", "one axis", "no rows", "a row as a vector", "no elementwise operator"),
        "no reshape",
    ],
)
def test_reshapes_that_stay(before, specs):
    stays(sink_reshapes, before, *specs)


def test_two_reshapes_are_one_or_none():
    becomes(
        sink_reshapes,
        lambda x: op.reshape(op.reshape(x, (3, 8)), (4, 6)),
        lambda x: op.reshape(x, (4, 6)),
        Spec(2, 3, 4),
    )
    for graph_pass in (sink_reshapes, sink_permutes):
        becomes(
            graph_pass,
            lambda x: op.negative(op.reshape(op.reshape(x, (3, 8)), (2, 3, 4))),
            op.negative,
            Spec(2, 3, 4),
        )


@pytest.mark.parametrize("graph_pass", [sink_permutes, sink_reshapes, sink_images])
def test_a_view_of_anything_but_a_view_like_it_stays(graph_pass):
    """Of a function's result, or of the other kind of view."""
    stays(graph_pass, lambda x: op.reshape(op.exp(x), (2, 3, 4)), ROWS)
    stays(graph_pass, lambda x: op.permute_dims(op.exp(x)), ROWS)
    stays(graph_pass, lambda x: op.permute_dims(split(x)), ROWS)
    stays(graph_pass, lambda x: op.reshape(planes(x), (2, 120)), NHWC)
    stays(graph_pass, lambda x: op.permute_dims(op.reshape(x, (2, 6, 4))), Spec(2, 1, 6, 4))


def test_constants_of_several_elements_are_operands_like_others():
    def filled(*shape):
        return relax.const(np.ones(shape, np.float32))

    becomes(
        sink_permutes,
        lambda x: op.add(planes(x), filled(1, 4, 1, 1)),
        lambda x: planes(op.add(x, op.reshape(filled(1, 4, 1, 1), (1, 1, 1, 4)))),
        NHWC,
    )
    becomes(
        sink_reshapes,
        lambda x: op.subtract(filled(2, 3, 4), split(x)),
        lambda x: split(op.subtract(op.reshape(filled(2, 3, 4), (6, 4)), x)),
        ROWS,
    )
    for shape in ((2, 4, 5, 6), (5, 6), (6,)):
        stays(sink_permutes, lambda x, shape=shape: op.add(planes(x), filled(*shape)), NHWC)
    for shape in ((3, 1), (3, 4)):
        stays(sink_reshapes, lambda x, shape=shape: op.add(split(x), filled(*shape)), ROWS)


def test_rows_that_are_split_and_merged_again():
    becomes(
        sink_reshapes,
        lambda x: op.reshape(op.exp(split(x)), (6, 4)),
        lambda x: op.exp(x),
        ROWS,
    )


def test_images_one_row_high():
    becomes(
        sink_images,
        lambda x, y: op.nn.relu(op.add(op.reshape(x, (2, 6, 4)), y)),
        lambda x, y: op.reshape(op.nn.relu(op.add(x, y)), (2, 6, 4)),
        *(Spec(2, 1, 6, 4), Spec(4)),
    )


def test_pixels_in_rows_again():
    def rows(x):
        return op.reshape(x, (2, 5, 3, 4))

    becomes(
        sink_images,
        lambda x, y, z: op.multiply(op.nn.relu(op.add(rows(x), y)), z),
        lambda x, y, z: rows(
            op.multiply(
                op.nn.relu(op.add(x, op.reshape(y, (2, 15, 1, 4)))), op.reshape(z, (2, 1, 1, 4))
            )
        ),
        *(Spec(2, 15, 1, 4), Spec(2, 5, 3, 4), Spec(2, 1, 1, 4)),
    )
    for other in ((2, 1, 3, 4), (2, 5, 1, 4), (1, 5, 3, 4)):
        stays(sink_images, lambda x, y: op.add(rows(x), y), Spec(2, 15, 1, 4), Spec(*other))


def test_images_of_volumes():
    becomes(
        sink_images,
        lambda x, y, z: op.multiply(op.add(op.reshape(x, (2, 3, 5, 6, 4)), y), z),
        lambda x, y, z: op.reshape(
            op.multiply(op.add(x, y), op.reshape(z, (6, 5, 6, 4))), (2, 3, 5, 6, 4)
        ),
        *(Spec(6, 5, 6, 4), Spec(4), Spec(2, 3, 5, 6, 4)),
    )


@pytest.mark.parametrize(
    "seen",
    [(2, 3, 6, 5, 4), (6, 5, 24), (2, 3, 30, 4), (2, 3, 5, 6, 2, 2)],
    ids=["other rows", "three axes", "four axes", "six axes"],
)
def test_other_volumes_stay(seen):
    stays(sink_images, lambda x: op.negative(op.reshape(x, seen)), Spec(6, 5, 6, 4))


@pytest.mark.parametrize(
    ("shape", "seen"),
    [
        ((2, 2, 6, 4), (4, 6, 4)),
        ((2, 1, 6, 4), (2, 24)),
        ((2, 1, 6, 4), (2, 6, 4, 1)),
        ((6, 4), (1, 6, 4)),
    ],
    ids=["two rows", "one axis", "another axis", "rows"],
)
def test_other_images_stay(shape, seen):
    stays(sink_images, lambda x: op.negative(op.reshape(x, seen)), Spec(*shape))


def test_a_sum_over_one_row_is_no_view():
    stays(sink_images, lambda x: op.negative(op.sum(x, 1)), Spec(2, 1, 6, 4))


def test_permutations_that_move_units_alone_are_reshapes():
    becomes(
        reshape_permutes,
        lambda x: op.permute_dims(x, [0, 2, 1, 3]),
        lambda x: op.reshape(x, (2, 5, 1, 4)),
        Spec(2, 1, 5, 4),
    )
    n = tirx.Var("n", "int64")
    becomes(
        reshape_permutes,
        lambda x: op.permute_dims(x),
        lambda x: op.reshape(x, (1, n)),
        Spec(n, 1),
    )
    stays(reshape_permutes, lambda x: op.permute_dims(x, [0, 2, 1, 3]), Spec(2, 3, 5, 4))
    stays(reshape_permutes, lambda x: op.reshape(x, (5, 2)), Spec(2, 5))


def test_what_one_block_made_another_does_not_see():
    def module(added):
        builder = relax.BlockBuilder()
        x, y = (relax.Var("x", relax.TensorType(s.shape, s.dtype)) for s in (NHWC, NCHW))
        with builder.function("main", [x, y]):
            with builder.dataflow():
                stored = builder.emit(op.permute_dims(y, FROM_PLANES))
                first = builder.emit_output(op.sum(stored, 3))
            between = builder.emit(op.sum(op.permute_dims(y, FROM_PLANES), 2))
            with builder.dataflow():
                second = builder.emit_output(added(x, y))
            builder.emit_func_output(relax.Tuple([first, between, second]))
        return builder.get()

    check_stays(sink_permutes, module(lambda x, y: op.add(planes(x), y)))


def test_a_scalar_that_is_an_operand_by_its_own_name():
    becomes(
        sink_permutes,
        lambda x: op.multiply(planes(x), relax.const(np.float32(3))),
        lambda x: planes(op.multiply(x, relax.const(np.float32(3)))),
        NHWC,
    )


def test_a_concatenation_of_permutations():
    other = Spec(2, 5, 6, 3)
    becomes(
        sink_permutes,
        lambda x, y: op.concat([planes(x), planes(y)], 1),
        lambda x, y: planes(op.concat([x, y], 3)),
        NHWC,
        other,
    )
    stays(sink_permutes, lambda x, y: op.concat([planes(x), y], 1), NHWC, NCHW)


@pytest.mark.parametrize("strides", [None, [1, 2]])
def test_a_slice_of_a_permutation(strides):
    def cut(x, axes):
        return op.strided_slice(x, axes, [1, 0], [3, 5], strides, assume_inbound=True)

    def before(x):
        return cut(planes(x), [1, 2])

    becomes(sink_permutes, before, lambda x: planes(cut(x, [3, 1])), NHWC)
    check_stays(sink_permutes, relax_module(before, NHWC), SM_90)


@pytest.mark.parametrize(
    ("shape", "seen"),
    [((2, 1, 6, 4), (2, 6, 4)), ((2, 15, 1, 4), (2, 3, 5, 4)), ((6, 5, 2, 4), (3, 2, 5, 2, 4))],
)
def test_a_slice_of_an_images_channels(shape, seen):
    def cut(x, axis):
        return op.strided_slice(x, [axis], [1], [3], assume_inbound=True)

    last, spec = len(seen) - 1, Spec(*shape)
    becomes(
        sink_images,
        lambda x: cut(op.reshape(x, seen), last),
        lambda x: op.reshape(cut(x, 3), (*seen[:-1], 2)),
        spec,
    )
    stays(sink_images, lambda x: cut(op.reshape(x, seen), last - 1), spec)


def test_a_slice_of_rows_stays():
    def before(x):
        return op.strided_slice(op.reshape(x, (2, 3, 4)), [2], [0], [2], assume_inbound=True)

    stays(sink_reshapes, before, Spec(6, 4))
