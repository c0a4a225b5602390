"""Arithmetic of floating-point numbers, as it is written."""

import pytest

from needle_tvm._tvm.names import tirx
from needle_tvm.graph.passes.keep_arithmetic import keep_arithmetic
from needle_tvm.tir.opaque import opaque
from tests.needle_tvm.graph.passes.expressions import storing
from tests.needle_tvm.modules import check_becomes, check_stays

ONE = tirx.const(1.0, "float32")


def kept(kind, *operands):
    return kind(*(opaque(each, number) for number, each in enumerate(operands)))


def exp(x):
    return tirx.exp(x)


BECOME = {
    "a difference of equals": (
        lambda x, y, i: tirx.Sub(x(i), x(i)),
        lambda x, y, i: kept(tirx.Sub, x(i), x(i)),
    ),
    "a sum less a part": (
        lambda x, y, i: tirx.Sub(tirx.Add(x(i), y(i)), y(i)),
        lambda x, y, i: kept(tirx.Sub, tirx.Add(x(i), y(i)), y(i)),
    ),
    "the larger of equals": (
        lambda x, y, i: tirx.Max(x(i), x(i)),
        lambda x, y, i: kept(tirx.Max, x(i), x(i)),
    ),
    "a choice less a part": (
        lambda x, y, i: tirx.Sub(tirx.Select(x(i) < y(i), x(i), y(i)), x(i)),
        lambda x, y, i: kept(tirx.Sub, tirx.Select(x(i) < y(i), x(i), y(i)), x(i)),
    ),
    "a choice of equals": (
        lambda x, y, i: tirx.Select(x(i) < y(i), x(i), x(i)),
        lambda x, y, i: kept(tirx.Select, x(i) < y(i), x(i), x(i)),
    ),
    "inside of a function": (
        lambda x, y, i: exp(tirx.Sub(x(i), x(i))),
        lambda x, y, i: exp(kept(tirx.Sub, x(i), x(i))),
    ),
    "inside of a cast": (
        lambda x, y, i: tirx.Cast("float32", tirx.Cast("float64", tirx.Sub(x(i), x(i)))),
        lambda x, y, i: tirx.Cast("float32", tirx.Cast("float64", kept(tirx.Sub, x(i), x(i)))),
    ),
    "functions that look alike": (
        lambda x, y, i: tirx.Sub(exp(x(i)), exp(x(i + 1))),
        lambda x, y, i: kept(tirx.Sub, exp(x(i)), exp(x(i + 1))),
    ),
    "places that may be the same": (
        lambda x, y, i: tirx.Sub(x(i), x(0)),
        lambda x, y, i: kept(tirx.Sub, x(i), x(0)),
    ),
    "beside what stays": (
        lambda x, y, i: tirx.Mul(tirx.Sub(x(i), x(i)), y(i)),
        lambda x, y, i: tirx.Mul(kept(tirx.Sub, x(i), x(i)), y(i)),
    ),
}


@pytest.mark.parametrize("name", BECOME)
def test_what_the_simplifier_would_change_it_does_not_see(name):
    before, after = BECOME[name]
    check_becomes(keep_arithmetic, storing(before), storing(after))


@pytest.mark.parametrize("kind", [tirx.EQ, tirx.NE])
def test_comparisons(kind):
    check_becomes(
        keep_arithmetic,
        storing(lambda x, y, i: kind(x(i), x(i)), result="bool"),
        storing(lambda x, y, i: kept(kind, x(i), x(i)), result="bool"),
    )


@pytest.mark.parametrize("kind", [tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE])
def test_comparisons_of_two_that_differ_stay(kind):
    """The simplifier writes a > b as b < a, which is the same."""
    check_stays(keep_arithmetic, storing(lambda x, y, i: kind(x(i), y(i)), result="bool"))


def test_logic():
    for before, after in (
        (
            lambda x, y, i: tirx.Or(x(i) < y(i), y(i) <= x(i)),
            lambda x, y, i: kept(tirx.Or, x(i) < y(i), y(i) <= x(i)),
        ),
        (
            lambda x, y, i: tirx.And(x(i) < y(i), y(i) <= x(i)),
            lambda x, y, i: kept(tirx.And, x(i) < y(i), y(i) <= x(i)),
        ),
        (
            lambda x, y, i: tirx.Not(tirx.LT(x(i), y(i))),
            lambda x, y, i: kept(tirx.Not, tirx.LT(x(i), y(i))),
        ),
    ):
        check_becomes(
            keep_arithmetic, storing(before, result="bool"), storing(after, result="bool")
        )


STAY = {
    "sums and products": lambda x, y, i: x(i) * y(i) + x(i) * y(i) + x(i),
    "quotients": lambda x, y, i: tirx.Div(x(i), x(i)),
    "a difference": lambda x, y, i: tirx.Sub(x(i), y(i)),
    "places that differ": lambda x, y, i: tirx.Sub(x(i), x(i + 1)),
    "a choice": lambda x, y, i: tirx.Select(x(i) < y(i), x(i), y(i)),
    "by the number 0": lambda x, y, i: tirx.Mul(x(i), tirx.const(0.0, "float32")),
    "and the number 0": lambda x, y, i: tirx.Add(x(i), tirx.const(0.0, "float32")),
    "a number": lambda x, y, i: tirx.Sub(x(i), ONE),
    "other functions": lambda x, y, i: tirx.Sub(exp(x(i)), tirx.tanh(x(i))),
    "a function and what it is of": lambda x, y, i: tirx.Sub(exp(x(i)), x(i)),
}


@pytest.mark.parametrize("name", STAY)
def test_what_stays(name):
    check_stays(keep_arithmetic, storing(STAY[name]))


def test_integers_stay():
    check_stays(keep_arithmetic, storing(lambda x, y, i: tirx.Sub(x(i), x(i)), "int32"))
