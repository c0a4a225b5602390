"""Broadcasts that the operator after them does anyway."""

import pytest

from needle import ops
from needle_tvm._tvm.names import relax, tirx
from needle_tvm.graph.passes.drop_broadcasts import drop_broadcasts
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, needle_module, relax_module

OPERATORS = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")
Y, B = Spec(3, 8), Spec(1, 8)


def broadcast(x, *shape):
    return relax.op.broadcast_to(x, shape)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_broadcast_operand_is_read_as_it_is(name):
    op = getattr(relax.op, name)
    for before, after in (
        (lambda y, b: op(y, broadcast(b, 3, 8)), lambda y, b: op(y, b)),
        (lambda y, b: op(broadcast(b, 3, 8), y), lambda y, b: op(b, y)),
    ):
        check_becomes(drop_broadcasts, relax_module(before, Y, B), relax_module(after, Y, B))


def test_a_bias_as_it_is_written_in_the_course():
    check_becomes(
        drop_broadcasts,
        needle_module(lambda y, b: ops.relu(y + ops.broadcast_to(b, y.shape)), Y, B),
        needle_module(lambda y, b: ops.relu(y + b), Y, B),
    )


def test_a_row_and_a_column_that_make_the_shape_together():
    specs = Spec(1, 8), Spec(3, 1)
    check_becomes(
        drop_broadcasts,
        relax_module(lambda a, b: broadcast(a, 3, 8) + broadcast(b, 3, 8), *specs),
        relax_module(lambda a, b: a + b, *specs),
    )


def test_of_two_broadcasts_one_makes_the_shape():
    check_becomes(
        drop_broadcasts,
        relax_module(lambda a, b: broadcast(a, 3, 8) + broadcast(b, 3, 8), B, B),
        relax_module(lambda a, b: a + broadcast(b, 3, 8), B, B),
    )


@pytest.mark.parametrize(
    ("before", "specs"),
    [
        (lambda x: relax.op.multiply(broadcast(x, 3, 8), relax.const(2.0)), (B,)),
        (lambda x, y: broadcast(x, 3, 8) + y, (B, B)),
        (lambda x, w: relax.op.matmul(broadcast(x, 3, 8), w), (B, Spec(8, 4))),
        (lambda x: relax.op.negative(broadcast(x, 3, 8)), (B,)),
        (lambda x, y: x + relax.op.tile(y, (3, 1)), (Y, B)),
    ],
    ids=["scalar", "makes the shape", "no elementwise operator", "one operand", "no broadcast"],
)
def test_what_stays(before, specs):
    check_stays(drop_broadcasts, relax_module(before, *specs))


def test_symbolic_extents_of_one_operand():
    n = tirx.Var("n", "int64")
    for specs in ((Spec(n, 8), B), (Spec(1, 8), Spec(n, 1))):
        check_becomes(
            drop_broadcasts,
            relax_module(lambda y, b: y + broadcast(b, n, 8), *specs),
            relax_module(lambda y, b: y + b, *specs),
        )


def test_extents_that_only_the_broadcast_has_stay():
    n = tirx.Var("n", "int64")
    before = relax_module(lambda y, b, x: (y + broadcast(b, n, 8), x), Spec(1, 8), B, Spec(n))
    check_stays(drop_broadcasts, before)
