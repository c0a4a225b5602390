"""Pictures of a warp's sectors, of a block's tiles, and of a search, against numbers from rules."""

import numpy as np
import pytest

pytest.importorskip("tvm", reason="the lab needs the [tvm] extra")
pytest.importorskip("matplotlib", reason="pictures need matplotlib")

from matplotlib.colors import to_rgb

from kernel_lab import registry
from kernel_lab.diagrams import block_tiles, sector_map, surface
from kernel_lab.diagrams.block_tiles import tiles_of
from kernel_lab.diagrams.style import PALETTE
from kernel_lab.errors import LabUsageError
from kernel_lab.trace import trace
from kernel_lab.workload import Case


def traced(name, workload="gemm", **size):
    rungs = registry.ladder(workload, "cuda")
    case = Case(rungs.workload.size("cuda", size))
    return trace(rungs[name].module(case), rungs.workload.inputs(case.size), ignore=("local",))


def boxes(axis, colour, width):
    """The corners of the boxes of a colour and a width."""
    return sorted(
        (int(box.get_x()), int(box.get_y()))
        for box in axis.patches
        if to_rgb(box.get_facecolor()) == to_rgb(colour) and box.get_width() == width
    )


@pytest.mark.parametrize(
    ("name", "rows", "columns"), [("threads_1d", 32, 1), ("threads_2d", 2, 16)]
)
def test_the_sector_map_has_the_elements_and_the_sectors_of_a_warp(name, rows, columns):
    fig = sector_map({name: traced(name, M=32, N=32, K=16)}, "title")
    (axis,) = fig.axes
    start = 16 + 3  # B lies to the right of A and a gap
    assert boxes(axis, PALETTE[0], 1) == [(0, row) for row in range(rows)]
    assert boxes(axis, PALETTE[0], 8) == [(0, row) for row in range(rows)]
    assert boxes(axis, PALETTE[1], 1) == [(start + column, 0) for column in range(columns)]
    assert boxes(axis, PALETTE[1], 8) == [(start + s, 0) for s in range(0, columns, 8)]


def test_the_sector_map_refuses_what_it_cannot_draw():
    found = traced("threads_2d", M=32, N=32, K=16)
    with pytest.raises(LabUsageError, match="no load of 'A_shared'"):
        sector_map({"threads_2d": found}, "title", buffers=("A_shared",))
    sums = traced("threads", "vector_add", N=1024)
    with pytest.raises(LabUsageError, match=r"a has shape \(1024,\): must be a matrix"):
        sector_map({"threads": sums}, "title", buffers=("a",))


@pytest.mark.parametrize(
    ("name", "block", "each"), [("shared_memory", 16, 1), ("register_tile", 64, 4)]
)
def test_the_tiles_are_those_of_the_block_and_the_thread(name, block, each):
    found = traced(name, M=64, N=64, K=16)
    thread = 35  # y is 2, x is 3
    tiles = tiles_of(found, thread)
    assert (tiles.rows, tiles.columns, tiles.depth) == (block, block, 8)
    rows, columns = 2 * each + np.arange(each), 3 * each + np.arange(each)
    assert tiles.a.tolist() == [[row, 0] for row in rows]
    assert tiles.b.tolist() == [[0, column] for column in columns]
    assert tiles.c.tolist() == [[row, column] for row in rows for column in columns]
    (axis,) = block_tiles({name: found}, "title", thread=thread).axes
    start = 8 + 4
    for colour, places, (x, y) in (
        (PALETTE[0], tiles.a, (0, start)),
        (PALETTE[1], tiles.b, (start, 0)),
        (PALETTE[2], tiles.c, (start, start)),
    ):
        drawn = boxes(axis, colour, 1)
        assert drawn == sorted((x + column, y + row) for row, column in places.tolist())


def test_the_tiles_need_shared_memory_and_the_thread():
    with pytest.raises(LabUsageError, match="no buffer 'A_shared'"):
        block_tiles({"threads_2d": traced("threads_2d", M=32, N=32, K=16)}, "title")
    found = traced("shared_memory", M=32, N=32, K=16)
    with pytest.raises(LabUsageError, match="has no thread 256"):
        tiles_of(found, 256)


TRIED = [
    ({"rows": rows, "columns": columns, "vectors": vectors}, value)
    for rows, columns, vectors, value in (
        (8, 8, False, 4.0),
        (8, 16, False, 2.0),
        (16, 8, False, None),
        (16, 16, False, 8.0),
        (8, 8, True, 5.0),
    )
]


def test_the_surface_has_every_choice_in_its_panel_and_marks_the_least():
    fig = surface(TRIED, ("rows", "columns"), "title")
    panels = {axis.get_title(loc="left"): axis for axis in fig.axes if axis.get_visible()}
    assert list(panels) == ["vectors no", "vectors yes"]
    said = {(text.xy[0], text.xy[1]): text.get_text() for text in panels["vectors no"].texts}
    assert said == {(0.5, 0.5): "4", (1.5, 0.5): "2", (0.5, 1.5): "x", (1.5, 1.5): "8"}
    assert [text.get_text() for text in panels["vectors yes"].texts] == ["5"]
    (framed,) = [
        round(box.get_x() - 0.03)
        for axis in panels.values()
        for box in axis.patches
        if box.get_linewidth() == 2
    ]
    assert framed == 1
    shade = {
        text.get_text(): box.get_facecolor()[3]
        for text, box in zip(panels["vectors no"].texts, panels["vectors no"].patches, strict=True)
    }
    assert shade["x"] == 0 < shade["2"] < shade["4"] < shade["8"]


def test_the_surface_refuses_no_values_and_unknown_knobs():
    with pytest.raises(LabUsageError, match="none of 1 choices has a value"):
        surface([({"rows": 8, "columns": 8}, None)], ("rows", "columns"), "title")
    with pytest.raises(LabUsageError, match="no knob 'depth': must be of rows, columns"):
        surface([({"rows": 8, "columns": 8}, 1.0)], ("rows", "depth"), "title")
