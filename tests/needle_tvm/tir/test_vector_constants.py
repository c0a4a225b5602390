"""Compiled code reads every row of the table that needle's own kernels include."""

import math

import pytest

from needle_tvm.tir import vector_constants
from tests import ROOT

HEADER = ROOT / "needle_tvm" / "tir" / "vector_constants.h"


def test_every_row_is_read():
    rows = [line.split() for line in HEADER.read_text().splitlines() if "constexpr" in line]
    names = [row[row.index("=") - 1].removeprefix("k").removesuffix("[]") for row in rows]
    assert names == list(vector_constants._TABLE) and len(names) > 30
    assert all(map(math.isfinite, sum(vector_constants._TABLE.values(), ())))


def test_a_row_has_the_values_that_a_compiler_gives_it():
    assert vector_constants.table("MinusLn2") == (-0.693145752, -1.42860677e-6)
    assert vector_constants.table("Log2")[:2] == (2 / 13, 2 / 11)
    assert vector_constants.constant("SqrtHalfBits") == 0x3FE6A09E667F3BCD
    with pytest.raises(ValueError, match="too many values"):
        vector_constants.constant("Exp")
