"""How large the differences between rounded results may be."""

import math

import pytest

from needle_tvm.artifact.tolerance import (
    estimated_tolerances,
    operand_tolerance,
    relative_tolerance,
)
from needle_tvm.target.precision import FLOAT32

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
