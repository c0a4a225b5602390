"""Diagrams show the trace they are made from."""

import itertools
import re
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("matplotlib")

from matplotlib.colors import to_rgb

from kernel_lab import diagrams
from kernel_lab.diagrams import steps, stepwise
from kernel_lab.diagrams.cells import Axis, element_axis, time_axis
from kernel_lab.diagrams.space_time import described
from kernel_lab.diagrams.style import PALETTE, SHARED, buffer_colours, who_colours
from kernel_lab.diagrams.warp import request, turns_of
from kernel_lab.errors import LabUsageError
from kernel_lab.trace import LoopValues, gpu, statistics, trace
from tests.kernel_lab import kernels
from tests.kernel_lab.test_trace_statistics import bound, through_shared


@pytest.fixture(scope="module")
def cpu():
    s = kernels.gemm(8, 16, 4)
    block = s.get_sblock("C")
    i, j, _ = s.get_loops(block)
    s.parallel(i)
    s.decompose_reduction(block, j)
    return trace(s.mod)


def occupied(axis):
    """The (time, element) of each cell that is drawn in a panel whose cells hold one of each."""
    (image,) = axis.images
    left, _, low, _ = image.get_extent()
    rows, columns = np.nonzero(np.asarray(image.get_array())[..., 3])
    return sorted(zip((columns + left + 0.5).tolist(), (rows + low + 0.5).tolist(), strict=True))


def test_space_time_draws_every_access_of_each_buffer():
    s = kernels.gemm(4, 8, 4)
    found = trace(s.mod)
    fig = diagrams.space_time(found, "title", "traced at 4 x 8 x 4", span=(0, 400))
    assert [axis.get_ylabel().split("\n")[0] for axis in fig.axes] == ["A", "B", "C"]
    for axis, name in zip(fig.axes, "ABC", strict=True):
        mine = found.select(found.time < 400).of_buffer(name)
        assert occupied(axis) == sorted(zip(mine.time.tolist(), mine.index.tolist(), strict=True))
    note = " ".join(fig._supxlabel.get_text().split())
    assert "traced at 4 x 8 x 4" in note and "a cell is 1 step by 1 element" in note
    assert [text.get_text() for text in fig.legends[0].get_texts()][1] == "store"


def test_the_axes_begin_and_end_with_the_accesses(cpu):
    for axis in diagrams.space_time(cpu, "title").axes:
        assert axis.get_xlim()[0] == axis.get_ylim()[0] == -0.5


def test_a_cell_holds_whole_rounds_of_the_innermost_loop():
    found = trace(kernels.gemm(16, 16, 16).mod)
    axis = time_axis(found)
    assert len(found) // 400 < axis.unit and axis.unit % 4 == 0  # load C, A, B; store C
    assert element_axis(found.of_buffer("C")) == Axis(0, 255, 4)  # four to a cell: 16 have 4 cells


def test_a_span_of_time_and_a_colour_for_each_worker(cpu):
    fig = diagrams.space_time(cpu, "title", by="worker", span=(10, 40))
    times = [time for axis in fig.axes for time, _ in occupied(axis)]
    assert min(times) >= 10 and max(times) < 40
    labels = [text.get_text() for text in fig.legends[0].get_texts()]
    assert labels == ["worker 0", "worker 1", "several in one cell"]  # both read all of B


def test_many_workers_have_the_shades_of_one_ramp():
    found = trace(bound(kernels.transpose(64), "B").mod)
    fig = diagrams.space_time(found, "title", by="worker")
    labels = [text.get_text() for text in fig.legends[0].get_texts()]
    blocks = found.regions[0].blocks
    assert labels[:3] == ["block 0", f"block {blocks // 2}", f"block {blocks - 1}"]
    assert len(set(who_colours(range(blocks)).values())) == blocks


def test_a_buffer_has_one_colour_in_all_rungs():
    colours = [buffer_colours(trace(s.mod)) for s in (kernels.gemm(4, 4, 4), shared())]
    assert [colours[0][name] for name in "ABC"] == [colours[1][name] for name in "ABC"]
    assert len(set(colours[1].values())) == 6  # A_shared, B_shared and C_local as well


def test_buffers_have_different_colours_while_there_are_any_left():
    buffers = [
        SimpleNamespace(name=name) for name in ("x", "y", "top", "e", "total", "more", "x_0")
    ]
    softmax = SimpleNamespace(arrays={"x": None, "y": None}, buffers=buffers)
    assert len(set(buffer_colours(softmax).values())) == len(buffers)


def shared():
    return kernels.shared_gemm(8, 8, 8, 4, 4)


def test_local_memory_is_left_out_beside_other_memory():
    fig = diagrams.space_time(trace(shared().mod), "title", by="warp")
    names = [axis.get_ylabel().split("\n")[0] for axis in fig.axes]
    assert names == ["A", "B", "C", "A_shared", "B_shared"]


def test_the_warp_view_draws_the_sectors_that_are_moved():
    found = trace(bound(kernels.transpose(64), "B").mod)
    fig = diagrams.warp_view(found, "title")
    load, store = fig.axes
    assert "32 sectors moved, 128 of 1024 bytes used (12%)" in load.get_title(loc="left")
    assert "4 sectors moved, 128 of 128 bytes used (100%)" in store.get_title(loc="left")
    # One rectangle for each sector and one for each thread.
    assert (len(load.patches), len(store.patches)) == (32 + 32, 4 + 32)


def test_one_is_singular():
    sch = kernels.vector_add(1)
    block, thread = sch.split(sch.get_loops(sch.get_sblock("C"))[0], [None, 1])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    found = trace(sch.mod)
    assert "; 1 block of 1 thread;" in described(found)
    title = diagrams.warp_view(found, "title").axes[0].get_title(loc="left")
    assert "\n1 sector moved, 4 of 32 bytes used (12%); over all 1 request 12%" in title


def test_the_bank_view_draws_the_turns():
    found = trace(through_shared(64, 0).mod)
    site = next(r.site for r in gpu.site_reports(found) if r.degree == 32)
    assert turns_of(request(found, site)).tolist() == list(range(1, 33))
    fig = diagrams.bank_view(found, "title", sites=[site])
    grid = fig.axes[0].images[0].get_array()
    assert np.flatnonzero(~np.isnan(np.asarray(grid.filled(np.nan))).any(axis=0)).tolist() == [0]
    assert "32-way bank conflict" in fig.axes[0].get_title(loc="left")


def test_threads_that_read_the_same_word_share_a_turn():
    found = trace(kernels.shared_gemm(16, 16, 16, 16, 16).mod)
    for report in gpu.site_reports(found):
        if report.scope == "shared":
            assert turns_of(request(found, report.site)).max() == report.degree == 1


def test_the_histogram_adds_up(cpu):
    fig = diagrams.reuse_histogram(cpu, "title", caches={"256 B": 256})
    bars = sum(bar.get_height() for bar in fig.axes[0].patches)
    assert bars == len(statistics.line_accesses(cpu).line)


def test_files_are_png_and_svg_that_name_the_scaled_down_size(cpu, tmp_path):
    fig = diagrams.space_time(cpu, "gemm, naive", "traced at M=8 (timed at M=512)")
    png, svg = diagrams.save(fig, tmp_path / "pictures" / "gemm.naive")
    assert (png.name, svg.name) == ("gemm.naive.png", "gemm.naive.svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = "".join(ElementTree.parse(svg).getroot().itertext())
    assert "traced at M=8 (timed at M=512)" in text and "2,176 accesses" in text


def test_an_inline_picture_takes_the_colour_of_the_page(cpu):
    text = diagrams.inline_svg(diagrams.space_time(cpu, "title"))
    ElementTree.fromstring(text)
    assert text.startswith("<svg") and "currentColor" in text and "<metadata" not in text
    assert not re.search(r"(href|src)=.https?:", text)


def test_what_cannot_be_drawn_is_refused(cpu):
    with pytest.raises(LabUsageError, match="by is 'colour'"):
        diagrams.space_time(cpu, "title", by="colour")
    with pytest.raises(LabUsageError, match="no accesses to show"):
        diagrams.space_time(cpu, "title", span=(0, 0))
    with pytest.raises(LabUsageError, match="not a GPU kernel"):
        diagrams.warp_view(cpu, "title")
    with pytest.raises(LabUsageError, match="no such access to shared memory"):
        diagrams.bank_view(trace(bound(kernels.transpose(64), "B").mod), "title")


def test_a_name_with_a_kind_is_one_file(cpu, tmp_path):
    fig = diagrams.space_time(cpu, "title")
    assert diagrams.save(fig, tmp_path / "one.svg") == [tmp_path / "one.svg"]
    assert [path.name for path in tmp_path.iterdir()] == ["one.svg"]


def test_the_stepper_holds_each_access_of_its_steps(cpu):
    text = diagrams.stepper(cpu, "gemm", "M=8")
    (data,) = stepwise.unpacked(text)
    assert [(grid["name"], grid["width"]) for grid in data["buffers"]] == [
        ("A", 4),
        ("B", 16),
        ("C", 16),
    ]
    assert [grid["colour"] for grid in data["buffers"]] == list(PALETTE[:3])
    assert sum(accesses for _, accesses, *_ in data["steps"]) == len(cpu)
    touched = {name: set() for name in "ABC"}
    for site, _, *runs in data["steps"]:
        for first, length in zip(runs[::2], runs[1::2], strict=True):
            touched["ABC"[data["sites"][site][0]]] |= set(range(first, first + length))
    assert {name: len(elements) for name, elements in touched.items()} == {
        "A": 32,
        "B": 64,
        "C": 128,
    }
    assert "steps" not in text.split("</figcaption>")[0]  # nothing was left out


def test_the_stepper_says_how_far_it_goes(monkeypatch):
    monkeypatch.setattr(steps, "STEPS", 3000)
    text = diagrams.stepper(trace(kernels.gemm(16, 16, 8).mod), "gemm", "M=16")
    assert "M=16; the first 3,000 of 8,448 steps" in text


def test_runs_side_by_side_need_one_worker(cpu):
    with pytest.raises(LabUsageError, match="tiled has several workers"):
        diagrams.side_by_side({"tiled": cpu}, "title", cache=256)


def test_steps_have_the_values_of_the_loops_around_them():
    s = kernels.gemm(4, 4, 2)
    s.parallel(s.get_loops(s.get_sblock("C"))[0])
    found = trace(s.mod, cores=1, follow=True)
    (data,) = stepwise.unpacked(diagrams.stepper(found, "gemm"))
    assert data["loops"] == [["i", 4], ["j", 4], ["k", 2]]
    # Each result is set to zero, inside of the loop over k, and each term is four accesses.
    expected = []
    for i, j, k in itertools.product(range(4), range(4), range(2)):
        expected += [[i, j, k]] * (5 if k == 0 else 4)
    assert data["values"] == expected
    assert trace(s.mod).loops == ()


def test_a_loop_has_no_value_outside_of_it():
    s = kernels.gemm(4, 4, 2)
    s.decompose_reduction(s.get_sblock("C"), s.get_loops(s.get_sblock("C"))[2])
    found = trace(s.mod, follow=True)
    k = next(loop for loop in found.loops if loop.name == "k")
    assert {loop.name: loop.extent for loop in found.loops} == {"i": 4, "j": 4, "k": 2}
    inside = k.value != LoopValues.OUTSIDE
    assert np.count_nonzero(~inside) == 16 and found.is_store[~inside].all()
    assert len(found.select(inside).loops[0].value) == np.count_nonzero(inside)


def test_a_steppers_text_gives_back_its_steps(cpu):
    gpu = trace(bound(kernels.transpose(64), "B").mod, follow=True)
    one_core = trace(kernels.gemm(8, 16, 4).mod, cores=1, follow=True)
    for found, cache in ((cpu, None), (gpu, None), (one_core, 256)):
        run, left = steps.steps_of(found, 400, 300, cache)
        assert steps.unpacked(steps.packed([run])) == [run] and left == 0
        assert cache is None or len(run["misses"]) == statistics.cache(found, cache).misses > 0


def test_operands_and_result_of_a_matmul_stand_as_on_paper(cpu):
    (data,) = stepwise.unpacked(diagrams.stepper(cpu, "gemm"))
    a, b, c = data["buffers"]
    assert a["y"] == c["y"] > b["y"] + b["rows"] * b["cell"] and b["x"] == c["x"]
    assert c["x"] >= a["x"] + a["width"] * a["cell"]


def test_the_still_says_and_shows_a_step():
    found = trace(kernels.gemm(8, 16, 4).mod, cores=1, follow=True)
    text = diagrams.side_by_side({"plain": found, "same": found}, "title", cache=256)
    (data, _) = stepwise.unpacked(text)
    number, total = re.search(r'class="still said">.*?step ([\d,]+) of ([\d,]+)', text).groups()
    now = int(number.replace(",", "")) - 1
    assert int(total.replace(",", "")) == len(data["steps"])
    misses = statistics.cache(found.select(found.time <= now), 256).misses
    assert f"<b>{misses} misses</b><" in text.split("<svg")[0]
    svg = ElementTree.fromstring(re.search(r"<svg.*?</svg>", text)[0])
    site, _, first, length = data["steps"][now]
    grid = data["buffers"][data["sites"][site][0]]
    (mark,) = [part for part in svg if part.get("class") == "now"]
    place = [float(mark.get(name)) for name in ("x", "y", "width", "height")]
    row, column = divmod(first, grid["width"])
    x, y = grid["x"] + column * grid["cell"], grid["y"] + row * grid["cell"]
    assert place == pytest.approx([x, y, length * grid["cell"], grid["cell"]], abs=0.02)
    assert sum(part.get("class") == "held" for part in svg) >= 3  # of four lines


def test_copies_that_workers_have_of_a_buffer_lie_apart():
    s = kernels.conv1d_padded(12, 3)
    outer, _ = s.split(s.get_loops(s.get_sblock("B"))[0], [2, None])
    s.parallel(outer)
    s.compute_at(s.get_sblock("P"), outer)
    found = trace(s.mod)
    assert {info.name for info in found.buffers if info.owned} == {"P"}
    axis = next(
        one
        for one in diagrams.space_time(found, "title", by="worker").axes
        if "P" in one.get_ylabel()
    )
    assert "a copy each" in axis.get_ylabel()
    size = next(info.size for info in found.buffers if info.name == "P")
    low = {element < size for _, element in occupied(axis)}
    assert low == {True, False} and axis.get_ylim()[1] > size
    colours = np.asarray(axis.images[0].get_array())[..., :3].reshape(-1, 3)
    assert not (np.abs(colours - to_rgb(SHARED)) < 0.01).all(axis=1).any()  # shared by nobody
