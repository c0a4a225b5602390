"""Matmuls of symbolic rows against NumPy, at the sizes of their tiles and beside them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from needle_tvm._tvm.names import relax, te, tirx
from needle_tvm.kernels.dense.cpu import DENSE, Tile
from needle_tvm.kernels.dense.cpu_rows import retiled, tile_rows
from needle_tvm.kernels.dense.pack_weights import dense
from needle_tvm.tir import nests
from needle_tvm.tir.extents import symbols_of
from needle_tvm.tir.functions import NODES, loads_in, nodes_in, prim_funcs, simplified
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


# Panels that are whole, cut short, one alone, and side by side; rows that share a set of the cache.
@pytest.mark.parametrize(
    ("terms", "columns"), [(40, 64), (13, 50), (24, 5), (1024, 33), (13, 256), (24, 120)]
)
def test_right_at_every_number_of_rows(terms, columns, tmp_path):
    shapes = (variable("n"), terms), (terms, columns), (1, columns)
    compiled = Compiled(module_of(layers, *shapes, params=2), tmp_path)
    w, bias = normal(terms, columns), normal(1, columns)
    for rows in SIZES:
        x = normal(rows, terms)
        expected = np.maximum(x.astype("float64") @ w + bias, 0)
        error = terms * np.finfo("float32").eps * np.abs(expected).max()
        np.testing.assert_allclose(compiled(x, w, bias), expected, atol=4 * error)


def test_panels_side_by_side_and_a_long_epilogue(tmp_path):
    """The operands of functions such as erf are stored for the panels of a tile together."""

    def function(emit, x, w, bias):
        y = emit(relax.op.add(emit(relax.op.matmul(x, w)), bias))
        curved = emit(relax.op.add(emit(relax.op.erf(y)), relax.const(1.0)))
        return emit(relax.op.multiply(y, curved))

    compiled = Compiled(
        module_of(function, (variable("n"), 24), (24, 128), (128,), params=2), tmp_path
    )
    w, bias = normal(24, 128), normal(128)
    erf = np.vectorize(math.erf)
    for rows in (1, 2, 3, 4, 9):
        x = normal(rows, 24)
        y = x.astype("float64") @ w + bias
        np.testing.assert_allclose(compiled(x, w, bias), y * (1 + erf(y)), rtol=1e-4, atol=1e-4)


def test_rows_of_several_symbolic_axes(tmp_path):
    n, m = variable("n"), variable("m")
    compiled = Compiled(module_of(layers, (n, m, 24), (24, 40), (40,), params=2), tmp_path)
    w, bias = normal(24, 40), normal(40)
    for extents in ((1, 1), (1, 7), (3, 5), (2, 16), (4, 33)):
        x = normal(*extents, 24)
        expected = np.maximum(x @ w + bias, 0)
        np.testing.assert_allclose(compiled(x, w, bias), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("old", [4, 8])
@pytest.mark.parametrize("rows", [1, 4, 6, 7, 8, 11])
def test_tiles_read_no_row_past_the_last(old, rows):
    """Also if the old tiles were all full, so that they had nothing to keep within the rows."""
    n = variable("n")
    x = te.placeholder((n * old, 5), "float32", "x")
    panels = te.placeholder((1, 5, 16), "float32", "panels")
    sums = dense(x, panels, 16, Tile(old, 16))
    function = te.create_prim_func([x, panels, sums], index_dtype_override="int64")
    made = retiled(function, rows)
    (tiles,) = (b for b in nodes_in(made, NODES.sblock) if DENSE in b.annotations)
    (load,) = (each for each in loads_in(tiles) if len(each.indices) == 2)
    block, _, row = [axis.var for axis in tiles.iter_vars][:3]
    (own,) = symbols_of(made)
    for size in (1, 2, 3, 5):
        read = set()
        for number in range(-(-size * old // rows)):
            for i in range(rows):
                values = {block: number, row: i, own: size}
                numbers = {var: tirx.const(each, "int64") for var, each in values.items()}
                read.add(int(simplified(nests.substitute(load.indices[0], numbers))))
        assert read == set(range(size * old))


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
