"""Reductions of a permuted tensor, along the axes it is stored by."""

import pytest

from needle_tvm._tvm.names import relax, tirx
from needle_tvm.graph.passes.reduce_as_stored import reduce_as_stored
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, relax_module

op = relax.op
X = Spec(2, 5, 6, 4)
TO_PLANES = [0, 3, 1, 2]


def becomes(before, after, *specs):
    check_becomes(reduce_as_stored, relax_module(before, *specs), relax_module(after, *specs))


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
def test_the_axes_that_were_meant(name):
    reduce = getattr(op, name)
    becomes(lambda x: reduce(op.permute_dims(x, TO_PLANES), [2, 3]), lambda x: reduce(x, [1, 2]), X)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda p: op.sum(p, -3), lambda x: op.sum(x, 3)),
        (lambda p: op.sum(p), lambda x: op.sum(x, [0, 1, 2, 3])),
        (lambda p: op.sum(p, 0), lambda x: op.permute_dims(op.sum(x, 0), [2, 0, 1])),
        (
            lambda p: op.sum(p, [2], keepdims=True),
            lambda x: op.permute_dims(op.sum(x, [1], keepdims=True), TO_PLANES),
        ),
        (lambda p: op.sum(p, [2, -3]), lambda x: op.sum(x, [1, 3])),
    ],
    ids=["the last but two", "all", "what is left in another order", "kept", "two"],
)
def test_axes_of_any_kind(before, after):
    becomes(lambda x: before(op.permute_dims(x, TO_PLANES)), after, X)


def test_a_permutation_without_axes_turns_all():
    becomes(
        lambda x: op.sum(op.permute_dims(x), 0),
        lambda x: op.permute_dims(op.sum(x, 2), [1, 0]),
        Spec(2, 3, 4),
    )


@pytest.mark.parametrize(
    ("before", "spec"),
    [
        (lambda x: op.sum(x, 1), X),
        (lambda x: op.prod(op.permute_dims(x, TO_PLANES), [2, 3]), X),
        (lambda x: op.sum(op.exp(op.permute_dims(x, TO_PLANES)), 2), X),
    ],
    ids=["no permutation", "another reduction", "something between"],
)
def test_what_stays(before, spec):
    check_stays(reduce_as_stored, relax_module(before, spec))


def test_symbolic_extents():
    spec = Spec(tirx.Var("n", "int64"), 4)
    check_becomes(
        reduce_as_stored,
        relax_module(lambda x: op.sum(op.permute_dims(x, [1, 0]), 0), spec),
        relax_module(lambda x: op.sum(x, [1]), spec),
    )
