"""bfloat16 between two operations of one kernel."""

import pytest

from needle_tvm._tvm.names import IRModule, te, tirx
from needle_tvm.graph.passes.round_bfloat16 import round_bfloat16
from needle_tvm.tir.vector_math import ROUND_TO_BFLOAT16, ROUND_TO_ODD
from tests.needle_tvm.graph.passes.expressions import storing
from tests.needle_tvm.modules import check_becomes, check_stays


def narrow(x):
    return tirx.Cast("bfloat16", x)


def wide(x, dtype="float32"):
    return tirx.Cast(dtype, x)


def rounded(x):
    return narrow(tirx.call_intrin("float32", ROUND_TO_BFLOAT16, x))


def odd(x):
    return tirx.call_intrin("float32", ROUND_TO_ODD, x)


def test_what_is_cast_on_the_way_is_rounded():
    check_becomes(
        round_bfloat16,
        storing(lambda x, y, i: wide(narrow(x(i) + y(i))) * x(i)),
        storing(lambda x, y, i: wide(rounded(x(i) + y(i))) * x(i)),
    )


def test_what_is_written_to_a_result_is_cast_as_it_is():
    check_stays(round_bfloat16, storing(lambda x, y, i: narrow(x(i)), result="bfloat16"))
    check_becomes(
        round_bfloat16,
        storing(lambda x, y, i: narrow(wide(narrow(x(i))) + y(i)), result="bfloat16"),
        storing(lambda x, y, i: narrow(wide(rounded(x(i))) + y(i)), result="bfloat16"),
    )


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64"])
def test_what_is_wider_is_rounded_to_odd_before(dtype):
    def after(x, y, i):
        return rounded(odd(x(i) if dtype == "float64" else wide(x(i), "float64")))

    check_becomes(
        round_bfloat16,
        storing(lambda x, y, i: narrow(x(i)), dtype, result="bfloat16"),
        storing(after, dtype, result="bfloat16"),
    )


def test_what_is_no_wider_stays():
    check_stays(
        round_bfloat16,
        storing(lambda x, y, i: wide(narrow(x(i))), "bool", result="float32"),
    )
    check_stays(
        round_bfloat16,
        storing(lambda x, y, i: wide(narrow(x(i))), "bfloat16", result="float32"),
    )
    check_stays(round_bfloat16, storing(lambda x, y, i: wide(tirx.Cast("float16", x(i)))))


def test_what_a_function_keeps_for_itself_is_rounded():
    def module(rounding):
        x = te.placeholder((8,), "float32", "x")
        y = te.compute((8,), lambda i: rounding(x[i]), "y")
        z = te.compute((8,), lambda i: wide(y[i]), "z")
        return IRModule({"main": te.create_prim_func([x, z]).with_attr("global_symbol", "main")})

    check_becomes(round_bfloat16, module(narrow), module(rounded))
