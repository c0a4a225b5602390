"""Matmuls of symbolic rows against NumPy, at the sizes of their tiles and beside them."""

from __future__ import annotations

import numpy as np
import pytest

from needle_tvm.kernels.dense.cpu_rows import tile_rows
from needle_tvm.tir.functions import NODES, nodes_in, prim_funcs
from tests.needle_tvm.symbolic import (
    HOST,
    SIZES,
    Compiled,
    functions_of,
    layers,
    lowered,
    module_of,
    normal,
    variable,
)


# Panels that are whole, cut short, and one alone; rows that share a set of the cache.
@pytest.mark.parametrize(("terms", "columns"), [(40, 64), (13, 50), (24, 5), (1024, 33)])
def test_right_at_every_number_of_rows(terms, columns, tmp_path):
    shapes = (variable("n"), terms), (terms, columns), (1, columns)
    compiled = Compiled(module_of(layers, *shapes, params=2), tmp_path)
    w, bias = normal(terms, columns), normal(1, columns)
    for rows in SIZES:
        x = normal(rows, terms)
        expected = np.maximum(x.astype("float64") @ w + bias, 0)
        error = terms * np.finfo("float32").eps * np.abs(expected).max()
        np.testing.assert_allclose(compiled(x, w, bias), expected, atol=4 * error)


def test_rows_of_several_symbolic_axes(tmp_path):
    n, m = variable("n"), variable("m")
    compiled = Compiled(module_of(layers, (n, m, 24), (24, 40), (40,), params=2), tmp_path)
    w, bias = normal(24, 40), normal(40)
    for extents in ((1, 1), (1, 7), (3, 5), (2, 16), (4, 33)):
        x = normal(*extents, 24)
        expected = np.maximum(x @ w + bias, 0)
        np.testing.assert_allclose(compiled(x, w, bias), expected, rtol=1e-4, atol=1e-5)


def test_weights_are_packed_once_for_all_tiles():
    module = lowered(module_of(layers, (variable("n"), 24), (24, 64), (64,), params=2))
    names = functions_of(module)
    assert "pack_weight" in names
    assert sum(name.startswith("pack_weight") for name in names) == 1


@pytest.mark.parametrize(("least", "most", "count"), [(1, 1, 1), (1, 2, 2), (3, 4, 1)])
def test_only_tiles_within_the_bounds_are_held(least, most, count):
    shapes = (variable("n"), 24), (24, 64), (64,)
    module = module_of(layers, *shapes, params=2, least={"n": least}, most={"n": most})
    functions = prim_funcs(lowered(module, disable=("merge_kernels",)))
    (dense,) = (f for name, f in functions.items() if "dense" in name)
    roots = [block.name_hint for block in nodes_in(dense, NODES.sblock)]
    assert max(1, sum(name.startswith("variant") for name in roots)) == count


def test_tiles_fit_the_registers():
    for columns in (16, 32, 64):
        rows = tile_rows(40, columns, "float32", HOST)
        assert rows[0] == 1
        assert rows == sorted(set(rows))
