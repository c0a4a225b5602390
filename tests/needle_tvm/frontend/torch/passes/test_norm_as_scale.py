"""Batch norm in eval mode as one scale and one shift per channel."""

import numpy as np
import pytest

from needle_tvm._tvm.names import relax, tirx
from needle_tvm.frontend.torch.passes.norm_as_scale import norm_as_scale
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, emit, relax_module

op = relax.op
n = tirx.Var("n", "int64")


def norm(*operands, axis=1, epsilon=1e-3, training=False, **options):
    options = {"axis": axis, "epsilon": epsilon, "training": training, **options}
    return emit(op.nn.batch_norm(*operands, **options))


def field(value, number=0):
    return emit(relax.TupleGetItem(value, number))


def specs(*shape, channels=6, dtype="float32"):
    return (
        Spec(*shape, dtype=dtype),
        *(Spec(channels, dtype=dtype) for _ in range(4)),
    )


def affine(along, dtype="float32", center=True, scaled=True):
    def function(x, g, b, mean, var):
        scale = op.rsqrt(op.add(var, relax.const(np.float64(1e-3), dtype)))
        scale = emit(op.multiply(g, scale) if scaled else scale)
        shift = op.negative(op.multiply(mean, scale))
        if center:
            shift = op.add(b, shift)
        return op.add(op.multiply(x, op.reshape(scale, along)), op.reshape(emit(shift), along))

    return function


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "axis", "along"),
    [
        ((2, 6, 5, 4), 1, (1, 6, 1, 1)),
        ((2, 6), 1, (1, 6)),
        ((2, 5, 4, 6), 3, (1, 1, 1, 6)),
        ((2, 5, 4, 6), -1, (1, 1, 1, 6)),
        ((n, 6, n, 4), 1, (1, 6, 1, 1)),
    ],
)
def test_one_scale_and_one_shift(shape, axis, along, dtype):
    types = specs(*shape, dtype=dtype)
    check_becomes(
        norm_as_scale,
        relax_module(lambda *v: field(norm(*v, axis=axis)), *types, params=4),
        relax_module(affine(along, dtype), *types, params=4),
    )


@pytest.mark.parametrize(("center", "scaled"), [(False, True), (True, False)])
def test_without_weights_or_biases(center, scaled):
    types = specs(2, 6, 5, 4)
    check_becomes(
        norm_as_scale,
        relax_module(lambda *v: field(norm(*v, center=center, scale=scaled)), *types, params=4),
        relax_module(affine((1, 6, 1, 1), center=center, scaled=scaled), *types, params=4),
    )


def test_statistics_that_are_read_stay():
    def before(*v):
        both = norm(*v)
        return field(both), field(both, 1)

    check_stays(norm_as_scale, relax_module(before, *specs(2, 6, 5, 4), params=4))


def test_training_stays():
    before = relax_module(lambda *v: field(norm(*v, training=True)), *specs(2, 6), params=4)
    check_stays(norm_as_scale, before)


@pytest.mark.parametrize(
    "types",
    [specs(2, 6, dtype="float16"), specs(2, n, channels=n)],
    ids=["halves", "channels that are not static"],
)
def test_other_tensors_stay(types):
    check_stays(norm_as_scale, relax_module(lambda *v: field(norm(*v)), *types, params=4))


def test_fields_of_other_tuples_stay():
    check_stays(norm_as_scale, relax_module(lambda x: field(emit(op.split(x, 2))), Spec(4)))
