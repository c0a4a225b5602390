"""How convolutions are cut up: tiles that leave registers to inputs, weights fetched once."""

import itertools

import numpy as np
import pytest

from needle import Tensor, nn
from needle.trace import trace
from needle_tvm._tvm.names import tirx
from needle_tvm.frontend import lowering
from needle_tvm.kernels.blocks import has_functions
from needle_tvm.kernels.conv.cpu_tiles import (
    ConvTile,
    Copied,
    conv_tile,
    depthwise_tile,
    group_lanes,
    tasks,
)
from needle_tvm.kernels.dense.cpu import dense_tile
from needle_tvm.lower import build
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import NODES, nodes_in, prim_funcs

LANES = 16


@pytest.fixture(scope="module")
def avx512():
    return resolve({"kind": "llvm", "mcpu": "skylake-avx512"}, 2).to_tvm()


def cut(counts, work, *, weights=0, copied=None, cores=2, whole_pixels=False):
    return tasks(counts, 1, work, (weights, 4), copied, cores, whole_pixels=whole_pixels)


@pytest.mark.parametrize("output", [(1, 112, 112, 64), (1, 24, 24, 64), (8, 5, 5, 32)], ids=str)
def test_overlapping_windows_leave_half_of_the_registers(avx512, output):
    tile = conv_tile(output, 147, "float32", avx512, overlapping=True)
    assert tile.pixels * (tile.channels // LANES) <= 16
    other = conv_tile(output, 147, "float32", avx512)
    assert other.pixels * (other.channels // LANES) >= tile.pixels * (tile.channels // LANES)


@pytest.mark.parametrize("size", [14, 28, 56])
def test_of_equal_tiles_the_one_whose_pixels_lie_side_by_side(avx512, size):
    tile = conv_tile((1, size, size, 256), 2304, "float32", avx512)
    assert (tile.rows, tile.columns) == (1, 14)
    tile = depthwise_tile((1, size, size, 256), (3, 3), (1, 1), "float32", avx512)
    assert tile.columns >= tile.rows


def test_tasks_are_equal_parts():
    for panels, images, rows, cores in itertools.product((1, 3, 16), (1, 4), (1, 7, 56), (1, 2, 5)):
        for whole_pixels in (False, True):
            counts = panels, images, rows
            chunks, strips = cut(counts, 10**7, cores=cores, whole_pixels=whole_pixels)
            assert panels % chunks == 0 and rows % strips == 0


def test_weights_too_large_to_keep_are_fetched_once():
    """A 3x3 layer of 512 channels on 7x7: 9 MB of weights, whatever its input costs to copy."""
    copied = Copied(step=1, window=3, elements=9 * 512, item=4, shared=False)
    number = 9 * 512 * 512
    chunks, strips = cut((16, 1, 7), 49 * number, weights=number, copied=copied)
    assert strips == 1 and chunks % 2 == 0
    _, strips = cut((16, 1, 7), 49 * number, weights=0, copied=copied)
    assert strips > 1


def test_pixels_stay_whole_where_there_are_rows_for_all_cores():
    assert cut((8, 1, 56), 10**7, whole_pixels=True)[0] == 1
    chunks, strips = cut((8, 1, 1), 10**7, whole_pixels=True)
    assert chunks * strips >= 2


def test_a_tile_counts_what_covers_the_output():
    assert ConvTile(2, 3, 4, 16).counts(5, 7, 8) == (3, 3, 2)


def test_tiles_are_as_many_vectors_wide_as_llvm_keeps_whole(avx512):
    """Of a vector of 48 elements it makes scalars."""
    for n, size, terms in itertools.product(range(16, 208, 16), (7, 20, 56), (64, 864)):
        tile = conv_tile((1, size, size, n), terms, "float32", avx512)
        assert tile.channels // LANES in (1, 2, 4)


@pytest.mark.parametrize("mcpu", ["haswell", "skylake-avx512", "znver4"])
def test_a_tile_of_a_group_is_whole_vectors_or_part_of_one(mcpu):
    target = resolve({"kind": "llvm", "mcpu": mcpu}, 2).to_tvm()
    lanes = group_lanes("float32", target)[-1]
    for group in (1, 2, 7, 8, 10, 12, 20, 24, 40, 48):
        tile = conv_tile((1, 28, 28, 4 * group), 9 * group, "float32", target, group)
        assert group % tile.channels == 0
        assert tile.channels < lanes or tile.channels % lanes == 0


def test_half_vectors_where_long_ones_take_twice_as_long(avx512):
    """24 channels: two vectors of 12, or three of 8."""
    halved = resolve({"kind": "llvm", "mcpu": "znver4"}, 2).to_tvm()
    tiles = [conv_tile((1, 28, 28, 96), 216, "float32", each, 24) for each in (avx512, halved)]
    assert [tile.channels for tile in tiles] == [12, 8]


@pytest.mark.parametrize(("mcpu", "most"), [("x86-64-v3", 2), ("skylake-avx512", 4)])
def test_erf_takes_a_part_of_the_registers(mcpu, most):
    """The rows of a tile that is wider than erf's registers allow are cut."""
    target = resolve({"kind": "llvm", "mcpu": mcpu}, 2).to_tvm()
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU()).eval()
    graph = trace(model, Tensor(np.zeros((2, 256), "float32")))
    module = build.schedule(lowering.lower(graph, target, "tuned"), target, "tuned")
    loops = [
        loop
        for function in prim_funcs(module).values()
        for loop in nodes_in(function, NODES.loop)
        if loop.kind == tirx.ForKind.VECTORIZED and has_functions(loop.body, {"tirx.erf"})
    ]
    lanes = group_lanes("float32", target)[-1]
    assert dense_tile(2, 256, 1024, "float32", target).columns > most * lanes
    assert [int(loop.extent) for loop in loops] == [most * lanes]
