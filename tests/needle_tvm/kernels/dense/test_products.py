"""The dense rule: every variant is right for every shape, on this and on other processors."""

import itertools

import numpy as np
import pytest

from needle_runtime.memory import aligned_copy
from needle_tvm._tvm.names import Schedule, te, topi, tvm
from needle_tvm.kernels.dense import cpu as products
from needle_tvm.kernels.dense.pack_weights import dense, pack
from needle_tvm.lower.gpu_code import module_of_library
from needle_tvm.lower.linking import object_code
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import module_of

# Tails of every kind: rows, columns, the reduction, and tasks that do not divide by the cores.
SHAPES = [
    (1, 1, 1),
    (1, 4096, 10),
    (1, 25088, 10),
    (2, 25088, 10),
    (1, 16385, 10),
    (2, 3, 300),
    (7, 13, 33),
    (13, 64, 100),
    (66, 40, 129),
]


def layer(m, k, n, dtype, target, batch=()):
    """relu(x @ w + bias), or a batch of it, and a function that packs w."""
    tile = products.dense_tile(m, k, n, dtype, target)
    shapes = (*batch, m, k), (*batch, k, n), (1, n)
    x, w, bias = (te.placeholder(shape, dtype) for shape in shapes)
    panels = te.placeholder((-(-n // tile.columns), *batch, k, tile.columns), dtype)
    result = topi.maximum(topi.add(dense(x, panels, n, tile), bias), topi.full((1, 1), dtype, 0))
    function = te.create_prim_func([x, panels, bias, result])
    packing = te.create_prim_func([w, pack(w, tile.columns)])
    return (each.with_attr("global_symbol", "main") for each in (function, packing))


def scheduled(function, target, knobs):
    sch = Schedule(function)
    products.dense(sch, sch.get_sblock("tiles"), target, knobs)
    return sch.mod


def build(module, target):
    with target:
        return tvm.tirx.build(module, target=target)


# On one thread and in float64 code is made in the same way: a few shapes say so.
CASES = [
    *((shape, "float32", 2) for shape in [*SHAPES, (3, 2, 3, 300), (3, 7, 13, 33)]),
    *((shape, "float32", 1) for shape in [(1, 25088, 10), (2, 3, 300), (3, 7, 13, 33)]),
    *((shape, "float64", 2) for shape in [(1, 16385, 10), (7, 13, 33), (3, 2, 3, 300)]),
]


@pytest.mark.parametrize(("shape", "dtype", "threads"), CASES, ids=str)
def test_variants_of_odd_shapes(rng, shape, dtype, threads):
    *batch, m, k, n = shape
    target = resolve("cpu", threads).to_tvm()
    function, packing = layer(m, k, n, dtype, target, batch)
    shapes = (*batch, m, k), (*batch, k, n), (1, n)
    x, w, bias = (rng.standard_normal(s).astype(dtype) for s in shapes)
    expected = np.maximum(x.astype("float64") @ w + bias, 0)
    packed = np.zeros([int(extent) for extent in packing.params[1].shape], dtype)
    given = [tvm.runtime.tensor(aligned_copy(array)) for array in (x, packed, bias)]
    build(module_of(packing), target)["main"](tvm.runtime.tensor(aligned_copy(w)), given[1])
    tolerance = {"float32": 1e-5, "float64": 1e-13}[dtype] * np.sqrt(k)
    for knobs in products.DENSE_VARIANTS:
        run = build(scheduled(function, target, knobs), target)["main"]
        found = tvm.runtime.tensor(aligned_copy(np.full((*batch, m, n), np.nan, dtype)))
        run(*given, found)
        np.testing.assert_allclose(
            found.numpy(), expected, tolerance, tolerance, err_msg=str(knobs)
        )


@pytest.mark.parametrize("shape", [(1, 300, 10), (13, 64, 100)], ids=str)
def test_it_compiles_for_other_processors(processor, shape, tmp_path):
    function, _ = layer(*shape, "float32", processor)
    built = build(scheduled(function, processor, products.DENSE_VARIANTS[0]), processor)
    assert object_code(module_of_library(built), tmp_path / "code.o")


def test_parts_keep_the_cores_busy():
    counts = (1, 2, 3, 5, 7, 16), (1, 2, 7, 12, 50), (1, 2, 3, 8)
    for panels, blocks, cores in itertools.product(*counts):
        parts = products.row_parts(panels, blocks, cores)
        assert blocks % parts == 0
        rounds = -(-panels * parts // cores)
        least = min(-(-panels * p // cores) / p for p in range(1, blocks + 1) if blocks % p == 0)
        assert rounds / parts <= least / 0.95


def test_weights_are_read_by_one_core_where_that_costs_nothing():
    target = resolve({"kind": "llvm", "mcpu": "skylake-avx512"}, 2).to_tvm()
    for m, n in ((8, 300), (8, 512), (64, 1000), (80, 256)):
        tile = products.dense_tile(m, 100, n, "float32", target)
        panels, blocks = -(-n // tile.columns), -(-m // tile.rows)
        assert products.row_parts(panels, blocks, 2) == 1, (m, n, tile)


@pytest.mark.parametrize(
    ("m", "k", "shared"), [(1, 25088, True), (1, 4096, False), (64, 25088, False)]
)
def test_one_long_sum_is_shared_out_where_the_results_are_too_few(m, k, shared):
    target = resolve("cpu", 2).to_tvm()
    function, _ = layer(m, k, 10, "float32", target)
    sch = Schedule(function)
    products.dense(sch, sch.get_sblock("tiles"), target, products.DENSE_VARIANTS[0])
    names = {sch.get(block).name_hint for block in sch.get_child_blocks(sch.get_sblock("root"))}
    assert any("rf_local" in name for name in names) == shared, names
