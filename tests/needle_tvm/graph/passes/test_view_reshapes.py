"""Kernels that only give their operand another shape, as views of its memory."""

import math

import numpy as np
import pytest

from needle_tvm._tvm.names import relax, te, tirx
from needle_tvm.graph.passes.view_reshapes import view_reshapes
from tests.needle_tvm.modules import (
    Spec,
    check_becomes,
    check_stays,
    emit,
    kernel,
    relax_module,
)

X = Spec(2, 4)


def reshaped(x, *shape):
    """A kernel that gives x another shape."""

    def rule(x):
        given = [int(n) for n in x.shape]

        def element(*at):
            flat = 0
            for extent, i in zip(shape, at, strict=True):
                flat = flat * extent + i
            index = []
            for extent in reversed(given):
                index.append(flat % extent)
                flat = flat // extent
            return x(*reversed(index))

        return te.compute(shape, element, "reshaped")

    return kernel(rule, x, name=f"to_{len(shape)}_axes")


def view(x, *shape):
    return relax.op.reshape(x, shape)


def doubled(x):
    return kernel(
        lambda x: te.compute([int(n) for n in x.shape], lambda *i: x(*i) + x(*i), "doubled"),
        x,
        name="doubled",
    )


def becomes(before, after, *specs):
    check_becomes(view_reshapes, relax_module(before, *specs), relax_module(after, *specs))


def test_views_of_arguments_and_of_results_of_kernels():
    becomes(
        lambda x: doubled(reshaped(doubled(reshaped(x, 8)), 4, 2)),
        lambda x: doubled(view(doubled(view(x, 8)), 4, 2)),
        X,
    )


def test_a_result_is_a_view_of_what_is_no_result():
    becomes(lambda x: reshaped(doubled(x), 8), lambda x: view(doubled(x), 8), X)
    becomes(
        lambda x: reshaped(reshaped(doubled(x), 8), 4, 2),
        lambda x: view(view(doubled(x), 8), 4, 2),
        X,
    )


def test_results_share_no_memory():
    def before(make_first, make_second):
        def module(x):
            y = doubled(x)
            return make_first(y, 8), make_second(y, 4, 2)

        return module

    becomes(before(reshaped, reshaped), before(view, reshaped), X)

    def with_result(x):
        y = doubled(x)
        return reshaped(y, 8), y

    check_stays(view_reshapes, relax_module(with_result, X))

    def through_a_view(make):
        def module(x):
            y = doubled(x)
            return reshaped(make(y, 8), 4, 2), y

        return module

    becomes(through_a_view(reshaped), through_a_view(view), X)


def test_parts_of_the_results_of_a_kernel():
    """Each has memory of its own, whichever variable names it."""

    def two(x):
        def rule(x):
            shape = [int(n) for n in x.shape]
            twice = te.compute(shape, lambda *i: x(*i) * 2, "twice")
            return [twice, te.compute(shape, lambda *i: x(*i) * 3, "thrice")]

        return kernel(rule, x, name="two")

    def part(value, number):
        return emit(relax.TupleGetItem(value, number))

    def module(make_first, make_second, again):
        def body(x):
            made = two(x)
            first, second = part(made, 0), part(made, again)
            return make_first(first, 8), make_second(second, 4, 2)

        return body

    becomes(module(reshaped, reshaped, 1), module(view, view, 1), X)
    becomes(module(reshaped, reshaped, 0), module(view, reshaped, 0), X)


def test_results_in_a_tuple_leave_the_block():
    """This includes a value that is named once more."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            y = doubled(x)
            both = builder.emit_output(relax.Tuple([reshaped(y, 8), builder.emit(y)]))
        builder.emit_func_output(both)
    check_stays(view_reshapes, builder.get())


def test_a_view_of_an_argument_is_no_result():
    check_stays(view_reshapes, relax_module(lambda x: reshaped(x, 8), X))
    becomes(lambda x: reshaped(reshaped(x, 8), 4, 2), lambda x: reshaped(view(x, 8), 4, 2), X)


def test_a_view_through_a_view_that_was_there():
    becomes(
        lambda x: reshaped(emit(view(doubled(x), 8)), 4, 2),
        lambda x: view(emit(view(doubled(x), 8)), 4, 2),
        X,
    )
    check_stays(
        view_reshapes,
        relax_module(lambda x: (reshaped(emit(view(y := doubled(x), 8)), 4, 2), y), X),
    )


def transposed(x):
    return te.compute((4, 2), lambda i, j: x[j, i], "transposed")


def half(x):
    return te.compute((4,), lambda i: x[i // 4, i % 4], "half")


def whole(x):
    return te.compute((8,), lambda i: tirx.Cast("int32", x[i // 4, i % 4]), "whole")


def both(x, y):
    return te.compute((8,), lambda i: x[i // 4, i % 4], "both")


@pytest.mark.parametrize(
    "before",
    [
        lambda x: doubled(kernel(transposed, x, name="f")),
        lambda x: doubled(kernel(half, x, name="f")),
        lambda x: doubled(kernel(whole, x, name="f")),
        lambda x: doubled(kernel(both, x, x, name="f")),
        lambda x: doubled(doubled(x)),
        lambda x: relax.op.exp(x),
    ],
    ids=["another order", "a part", "another dtype", "two operands", "other values", "no kernel"],
)
def test_what_stays(before):
    check_stays(view_reshapes, relax_module(before, X))


def test_constants_stay():
    numbers = relax.const(np.arange(math.prod(X.shape), dtype="float32").reshape(X.shape))
    check_stays(view_reshapes, relax_module(lambda x: doubled(reshaped(numbers, 8)), X))
