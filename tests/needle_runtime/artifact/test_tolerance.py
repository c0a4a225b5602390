"""Which results are right, and how large the differences between rounded ones may be."""

import math

import ml_dtypes
import numpy as np
import pytest

from needle_runtime.artifact.tolerance import (
    compare,
    estimated_tolerances,
    operand_tolerance,
    relative_tolerance,
    worst,
)
from needle_runtime.target.precision import FLOAT32
from tests.planted_results import RIGHT, SPECIAL, WRONG, planted

UNITS = {FLOAT32: 0.0, "tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@pytest.mark.parametrize("precision", UNITS)
def test_a_product_of_two_rounded_factors_changes_by_two_roundings(precision):
    """So do few terms, each; of many, not all change the same way."""
    unit = UNITS[precision]
    assert operand_tolerance(precision, 1, 1) == 2 * unit
    assert operand_tolerance(precision, 9, 1) == 2 * unit * 3
    assert operand_tolerance(precision, 10**6, 1) <= 2 * unit * 4


@pytest.mark.parametrize("precision", UNITS)
def test_estimates_take_the_longest_sum_for_every_layer(precision):
    params = [{"shape": shape} for shape in ((9, 4), (4,), (2, 4, 4), (0, 8))]  # two are layers
    outputs = [{"shape": (5, 4), "dtype": dtype} for dtype in ("float32", "bfloat16")]
    rounded = 2 * operand_tolerance(precision, 16, 20)
    assert estimated_tolerances(outputs, params, precision) == [
        2 * relative_tolerance(dtype, 16, 2) + rounded for dtype in ("float32", "bfloat16")
    ]
    (alone,) = estimated_tolerances(outputs[:1], [], precision)  # no weights: one product
    assert math.isclose(alone, 2 * relative_tolerance("float32", 1) + 2 * UNITS[precision])


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_is_found_and_described(name):
    expected, found = WRONG[name]
    compared = compare(expected, found, 1e-5)
    assert not compared.right and compared.relative > 1e-5 and compared.wrong.shape == found.shape
    if expected.shape == found.shape and expected.dtype == found.dtype:
        assert compared.wrong.sum() == 1
        at = np.argwhere(compared.wrong)[0].tolist()
        assert compared.what.startswith(f"1 of {found.size} elements differ; at {at} ")


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_result_is(name):
    expected, found = RIGHT[name]
    compared = compare(expected, found, 1e-6)
    assert compared.right and compared.relative <= 1e-6 and not compared.wrong.any()


def test_differences_are_relative_to_the_largest_number_or_to_the_scale():
    found = np.array([1.0, 1.5, np.nan, np.inf])
    compared = compare(SPECIAL, found, 0.2)
    assert (compared.absolute, compared.relative) == (0.5, 0.25)
    assert compared.what == "1 of 4 elements differ; at [1] 1.5, expected 2 within 0.4"
    assert compare(SPECIAL, found, 0.25).right and compare(SPECIAL, found, 0.2, scale=3.0).right
    zero = np.zeros(2), np.array([0, 0.5])
    assert compare(*zero).relative == 0.5 and compare(*zero, scale=0.0).relative == math.inf
    assert compare(zero[0], zero[0], scale=0.0).relative == 0
    bounds = np.array([0, 0.5, 0, 0])
    assert compare(SPECIAL, found, bounds, scale=1.0).right  # a bound for each element
    assert not compare(SPECIAL, found, bounds[::-1], scale=1.0).right


@pytest.mark.parametrize("narrow", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_expected_values_may_have_been_computed_in_a_wider_dtype(narrow):
    wide, wrong = planted(np.float64, 1)
    assert compare(wide, wide.astype(narrow), same_dtype=False).right
    assert not compare(wide, wrong.astype(narrow), 0.1, same_dtype=False).right
    for kind in (np.int64, np.bool_, np.complex64):
        assert not compare(wide, wide.astype(kind), same_dtype=False).right
    assert worst([wide, wide], [wide, wrong.astype(narrow)]) == 1 / 3
    assert worst([wide, wide], [wide]) == math.inf and worst([], []) == 0


def test_other_right_answers_and_elements_that_nobody_knows():
    one, other = np.array([1.0, 5.0]), np.array([1.0, 7.0])
    assert compare(one, other, others=(other,)).right
    compared = compare(one, np.array([2.0, 7.0]), others=(other,))
    assert compared.wrong.tolist() == [True, False] and compared.absolute == 1
    assert compare(one, other, known=np.array([True, False])).right
    assert not compare(one, other, known=np.array([False, True])).right


def test_a_bool_is_one_byte_of_0_or_1():
    odd = np.array([1, 255], np.uint8).view(np.bool_)
    assert compare(np.array([True, True]), odd).wrong.tolist() == [False, True]
