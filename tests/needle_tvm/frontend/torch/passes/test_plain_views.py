"""Views under as few names as there are kinds."""

import numpy as np
import pytest

from needle_tvm._tvm.names import relax, tirx
from needle_tvm.frontend.torch.passes.plain_views import plain_views
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, emit, relax_module

op = relax.op
X = Spec(3, 1, 5, 4)


def index(*values):
    return relax.const(np.array(values if len(values) > 1 else values[0], "int64"), "int64")


def cut(x, axis, begin, end):
    return op.strided_slice(x, [axis], [begin], [end], assume_inbound=True)


BECOME = {
    "squeeze": (lambda x: op.squeeze(x, [1]), lambda x: op.reshape(x, (3, 5, 4))),
    "squeeze of all": (lambda x: op.squeeze(x), lambda x: op.reshape(x, (3, 5, 4))),
    "expand_dims": (
        lambda x: op.expand_dims(x, [-1]),
        lambda x: op.reshape(x, (3, 1, 5, 4, 1)),
    ),
    "flatten": (lambda x: op.flatten(x), lambda x: op.reshape(x, (60,))),
    "units that are moved": (
        lambda x: op.permute_dims(x, [0, 2, 1, 3]),
        lambda x: op.reshape(x, (3, 5, 1, 4)),
    ),
    "a permutation by negative axes": (  # on which ConvertLayout crashes
        lambda x: op.permute_dims(x, [0, -1, 1, -2]),
        lambda x: op.permute_dims(x, [0, 3, 1, 2]),
    ),
    "a broadcast to its own shape": (
        lambda x: op.negative(op.broadcast_to(x, (3, 1, 5, 4))),
        lambda x: op.negative(x),
    ),
    "one position": (
        lambda x: op.take(x, index(1), axis=0),
        lambda x: op.reshape(cut(x, 0, 1, 2), (1, 5, 4)),
    ),
    "the first": (
        lambda x: op.take(x, index(0), axis=2),
        lambda x: op.reshape(cut(x, 2, 0, 1), (3, 1, 4)),
    ),
    "the last": (
        lambda x: op.take(x, index(-1), axis=-2),
        lambda x: op.reshape(cut(x, 2, 4, 5), (3, 1, 4)),
    ),
    "the last but three": (
        lambda x: op.take(x, index(-3), axis=0),
        lambda x: op.reshape(cut(x, 0, 0, 1), (1, 5, 4)),
    ),
}


@pytest.mark.parametrize("name", BECOME)
def test_views(name):
    before, after = BECOME[name]
    check_becomes(plain_views, relax_module(before, X), relax_module(after, X))


n = tirx.Var("n", "int64")
OPEN = {
    "squeeze": (lambda x: op.squeeze(x, [1]), lambda x: op.reshape(x, (n, 4))),
    "flatten": (lambda x: op.flatten(x), lambda x: op.reshape(x, (n * 4,))),
    "units that are moved": (
        lambda x: op.permute_dims(x, [1, 0, 2]),
        lambda x: op.reshape(x, (1, n, 4)),
    ),
    "one position": (
        lambda x: op.take(x, index(-1), axis=2),
        lambda x: op.reshape(cut(x, 2, 3, 4), (n, 1)),
    ),
    "a part": (
        lambda x: emit(relax.TupleGetItem(emit(op.split(x, 2, 2)), 1)),
        lambda x: cut(x, 2, 2, 4),
    ),
}


@pytest.mark.parametrize("name", OPEN)
def test_views_of_open_sizes(name):
    before, after = OPEN[name]
    x = Spec(n, 1, 4)
    check_becomes(plain_views, relax_module(before, x), relax_module(after, x))


@pytest.mark.parametrize("axis", [2, -2])
def test_parts_of_a_split(axis):
    def before(x):
        parts = emit(op.split(x, [1, 3], axis))
        return tuple(emit(relax.TupleGetItem(parts, n)) for n in range(3))

    def after(x):
        return cut(x, 2, 0, 1), cut(x, 2, 1, 3), cut(x, 2, 3, 5)

    check_becomes(plain_views, relax_module(before, X), relax_module(after, X))


STAYS = {
    "a permutation that moves elements": (lambda x: op.permute_dims(x, [0, 1, 3, 2]), X),
    "a broadcast": (lambda x: op.broadcast_to(x, (3, 2, 5, 4)), X),
    "several positions": (lambda x: op.take(x, index(1, 2), axis=0), X),
    "a position that is not there": (lambda x: op.take(x, index(3), axis=0), X),
    "a position before the first": (lambda x: op.take(x, index(-4), axis=0), X),
    "a position of no axis": (lambda x: op.take(x, index(1)), Spec(5)),
    "an axis of one position": (
        lambda x: op.take(x, relax.const(np.array([1]), "int64"), axis=0),
        X,
    ),
    "a reshape": (lambda x: op.reshape(x, (15, 4)), X),
    "another operator": (lambda x: op.negative(x), X),
    "a tensor without elements": (lambda x: op.permute_dims(x, [1, 0]), Spec(1, 0)),
    "a position along an axis of open size": (lambda x: op.take(x, index(1), axis=0), Spec(n, 4)),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    before, spec = STAYS[name]
    check_stays(plain_views, relax_module(before, spec))


def test_a_position_that_is_an_input_stays():
    before = relax_module(lambda x, i: op.take(x, i, axis=0), X, Spec(dtype="int64"))
    check_stays(plain_views, before)


def test_fields_of_other_tuples_stay():
    def before(x):
        return emit(relax.TupleGetItem(emit(op.topk(x, 2)), 0))

    check_stays(plain_views, relax_module(before, X))

    def of_a_symbol(x):
        return emit(relax.TupleGetItem(emit(op.split(x, [2], 0)), 0))

    check_stays(plain_views, relax_module(of_a_symbol, Spec(n, 4)))
