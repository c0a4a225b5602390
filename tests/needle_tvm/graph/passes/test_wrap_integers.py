"""Integers that are data, which wrap around."""

import pytest

from needle_tvm._tvm.names import tirx
from needle_tvm.graph.passes.wrap_integers import wrap_integers
from tests.needle_tvm.graph.passes.expressions import storing
from tests.needle_tvm.modules import SM_90, check_becomes, check_stays

KINDS = {
    "add": tirx.Add,
    "sub": tirx.Sub,
    "mul": tirx.Mul,
    "floordiv": tirx.FloorDiv,
    "floormod": tirx.FloorMod,
    "truncdiv": tirx.Div,
    "truncmod": tirx.Mod,
}


def call(name, a, b):
    return tirx.call_intrin(str(a.ty), f"tirx.needle_{name}", a, b)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("name", KINDS)
def test_arithmetic_of_data_is_a_call(name, dtype):
    kind, two = KINDS[name], tirx.const(2, dtype)
    check_becomes(
        wrap_integers,
        storing(lambda x, y, i: kind(kind(x(i), y(i)), x(i)), dtype),
        storing(lambda x, y, i: call(name, call(name, x(i), y(i)), x(i)), dtype),
    )
    check_becomes(
        wrap_integers,
        storing(lambda x, y, i: kind(two, x(i)), dtype),
        storing(lambda x, y, i: call(name, two, x(i)), dtype),
    )


def test_what_floats_become_is_data():
    def whole(x):
        return tirx.Cast("int32", x)

    one = tirx.const(1, "int32")
    check_becomes(
        wrap_integers,
        storing(lambda x, y, i: tirx.Add(whole(x(i)), one), result="int32"),
        storing(lambda x, y, i: call("add", whole(x(i)), one), result="int32"),
    )


@pytest.mark.parametrize("name", ["floordiv", "floormod", "truncdiv", "truncmod"])
@pytest.mark.parametrize("divisor", [1, 2, 0, -1])
def test_a_division_by_a_positive_number_is_no_danger(name, divisor):
    kind, number = KINDS[name], tirx.const(divisor, "int32")
    before = storing(lambda x, y, i: kind(x(i), number), "int32")
    if divisor > 0:
        check_stays(wrap_integers, before)
    else:
        check_becomes(
            wrap_integers, before, storing(lambda x, y, i: call(name, x(i), number), "int32")
        )


def test_indices_and_floats_stay():
    check_stays(wrap_integers, storing(lambda x, y, i: x(i * 2 + 1) + y(i)))
    check_stays(wrap_integers, storing(lambda x, y, i: x(i * 2 + 1), "int32"))
    check_stays(
        wrap_integers,
        storing(lambda x, y, i: tirx.Cast("float32", i + 1) * x(i)),
    )


def test_code_for_gpus_stays():
    check_stays(wrap_integers, storing(lambda x, y, i: x(i) + y(i), "int32"), SM_90)
