"""Pictures of every ladder and kind show what their traces hold; the checker sees faults."""

import dataclasses
import importlib
import re
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("matplotlib")

from kernel_lab import build, diagrams, registry, report_rungs
from kernel_lab.diagrams import loops, steps, stepwise
from kernel_lab.scaled import scaled_trace
from kernel_lab.trace import statistics, trace
from kernel_lab.workload import Case, Processor
from tests.kernel_lab.picture_checker import problems, side_by_side

space_time = importlib.import_module("kernel_lab.diagrams.space_time")  # not the function


SMALL = Processor(registers=16, lanes=8)


def traced(name, device, rung):
    """The trace of a rung as a report draws it, and the note about its size."""
    ladder = registry.ladder(name, device)
    processor = Processor() if device == "cuda" else build.processor(build.make_target("cpu"))
    case = Case(ladder.workload.size(device), processor)
    scaled = scaled_trace(ladder.workload, ladder[rung], case, ignore=("local",))
    return scaled.trace, scaled.note


def drawn(trace, note, kind):
    if kind == "stepper":
        return diagrams.stepper(trace, "a rung", note)
    return report_rungs.pictures(trace, "a rung", note)[kind]


def kinds(trace, note):
    return ["stepper", *report_rungs.pictures(trace, "a rung", note)]


def sample(seed, number):
    """(ladder, rung) drawn by seed: every ladder in turn, its rungs in a random order."""
    rng = np.random.default_rng(seed)
    rungs = {
        key: list(rng.permutation([r.name for r in ladder.rungs]))
        for key, ladder in registry.LADDERS.items()
    }
    keys = [list(rungs)[place] for place in rng.permutation(len(rungs))]
    chosen = []
    while len(chosen) < number:
        for key in keys:
            if rungs[key]:
                chosen.append((*key, rungs[key].pop()))
    return chosen[:number]


def check(seed, number):
    """Check pictures, of each trace one of the kind that has been rarest; the kinds that were."""
    seen = Counter()
    for place, (name, device, rung) in enumerate(sample(seed, number)):
        trace, note = traced(name, device, rung)
        kind = min(kinds(trace, note), key=lambda one: seen[one])
        seen[kind] += 1
        wrong = problems(kind, drawn(trace, note, kind), trace, seed + place)
        assert not wrong, (name, device, rung, kind, wrong[:3])
    return seen


def test_pictures_show_their_traces():
    assert len(check(seed=7, number=4)) >= 3


@pytest.mark.parametrize(
    ("number", "of_each"),
    [
        pytest.param(20, 1, marks=pytest.mark.slow),
        pytest.param(40, 2, marks=pytest.mark.long),
    ],
)
def test_pictures_of_all_ladders_and_kinds_show_their_traces(number, of_each):
    seen = check(seed=3, number=number)
    assert sum(seen.values()) == number
    assert len(seen) == 8 and min(seen.values()) >= of_each


@pytest.fixture(scope="module")
def naive():
    return traced("gemm", "cpu", "naive")


def last_wins(panel, time, by):
    """Cells as a raster has them in which each access covers the one before it."""
    found = CELLS(panel, time, by)
    _, who = np.unique(getattr(panel, by), return_inverse=True)
    found.who[found.element.cell(panel.index), time.cell(panel.time)] = who
    return found


def without_a_tile(panel, time, by):
    """Cells without the second quarter of what is there."""
    found = CELLS(panel, time, by)
    rows, columns = found.who.shape
    tile = np.s_[rows // 2 :, : columns // 2] if rows > 1 else np.s_[:, : columns // 2]
    found.who[tile], found.count[tile] = -1, 0
    return found


def shifted(panel, time, by):
    """Cells one step late."""
    found = CELLS(panel, time, by)
    return dataclasses.replace(
        found, who=np.roll(found.who, 1, 1), count=np.roll(found.count, 1, 1)
    )


def in_swapped_colours(found, colours, several):
    return SHADES(found, colours[::-1], several)


def darker_for_fewer(found, colours, several):
    image = SHADES(found, colours, several)
    image[..., 3] = np.where(image[..., 3] > 0, 1.4 - image[..., 3], 0)
    return image


CELLS, SHADES, COLOURS = space_time.cells, space_time.shades, space_time.buffer_colours
FAULTS = {
    "last access wins": ("cells", last_wins),
    "a dropped tile": ("cells", without_a_tile),
    "one cell late": ("cells", shifted),
    "swapped colours": ("shades", in_swapped_colours),
    "darker means fewer": ("shades", darker_for_fewer),
}
# In these the fault changes a pixel: there are cells of several, of loads, of uneven counts.
SHOWN = (
    ("last access wins", "workers", "cache_write"),
    ("last access wins", "space-time", "naive"),
    ("a dropped tile", "workers", "cache_write"),
    ("a dropped tile", "space-time", "naive"),
    ("one cell late", "workers", "cache_write"),
    ("one cell late", "space-time", "naive"),
    ("swapped colours", "workers", "cache_write"),
    ("swapped colours", "detail", "naive"),
    ("darker means fewer", "workers", "parallel"),
    ("darker means fewer", "space-time", "tile"),
)


def with_turns_of(change):
    """Turns that are drawn with their names, values or times changed."""

    def broken(trace):
        return [dataclasses.replace(turns, **change(turns)) for turns in TURNS(trace)]

    return broken


TURNS, TILE_SIZE = loops.turns_of, loops.tile_size
TURN_FAULTS = {
    "values of the next turn": ("turns_of", with_turns_of(lambda t: {"values": t.values + 1})),
    "turns one step late": ("turns_of", with_turns_of(lambda t: {"starts": t.starts + 1})),
    "a turn left out": (
        "turns_of",
        with_turns_of(lambda t: {n: getattr(t, n)[:-1] for n in ("values", "starts", "stops")}),
    ),
    "another loop's name": ("turns_of", with_turns_of(lambda t: {"name": "ax0_1"})),
    "a tile of another size": ("tile_size", lambda trace: TILE_SIZE(trace)[::-1]),
    "large labels": ("SMALL", 24),
}


@pytest.fixture(scope="module")
def register_tile():
    return traced("gemm", "cpu", "register_tile")


def test_the_checker_finds_nothing_wrong_with_turns_and_tiles(register_tile):
    trace, note = register_tile
    figure = drawn(trace, note, "space-time")
    assert not problems("space-time", figure, trace, 0)
    strip, *panels = figure.axes
    assert len(strip.get_yticks()) == 3 and len(strip.texts) >= 14
    assert all(axis.texts for axis in panels)  # each says how large its tile is


@pytest.mark.parametrize("fault", TURN_FAULTS)
def test_the_checker_sees_a_fault_in_turns_and_tiles(register_tile, fault, monkeypatch):
    trace, note = register_tile
    name, broken = TURN_FAULTS[fault]
    monkeypatch.setattr(space_time if name == "turns_of" else loops, name, broken)
    figure = diagrams.space_time(trace, "a rung", note)
    words = "turns: |frame|tile|lie on each other"
    assert any(re.search(words, one) for one in problems("space-time", figure, trace, 0))


@pytest.mark.parametrize(("fault", "kind", "rung"), SHOWN)
def test_the_checker_sees_a_planted_fault(fault, kind, rung, monkeypatch):
    name, broken = FAULTS[fault]
    trace, note = traced("gemm", "cpu", rung)
    assert not problems(kind, drawn(trace, note, kind), trace, 0)
    monkeypatch.setattr(space_time, name, broken)
    assert problems(kind, drawn(trace, note, kind), trace, 0)


def test_the_checker_sees_buffers_with_each_others_colours(naive, monkeypatch):
    trace, note = naive

    def swapped(trace):
        found = COLOURS(trace)
        return {**found, "A": found["B"], "B": found["A"]}

    monkeypatch.setattr(space_time, "buffer_colours", swapped)
    assert problems("space-time", drawn(trace, note, "space-time"), trace, 0)
    monkeypatch.setattr(steps, "buffer_colours", swapped)
    assert problems("stepper", drawn(trace, note, "stepper"), trace, 0)


def test_the_checker_sees_a_stepper_without_a_tile(naive):
    trace, note = naive
    part = trace.select((trace.index < 64) | (trace.time < 4000))
    assert problems("stepper", drawn(part, note, "stepper"), trace, 0)


def test_the_checker_sees_a_wrong_size_of_a_cell(naive):
    trace, note = naive
    figure = drawn(trace, note, "space-time")
    text = figure._supxlabel.get_text()
    figure._supxlabel.set_text(re.sub(r"a cell is (\d+)", "a cell is 1\\1", text))
    assert problems("space-time", figure, trace, 0)


CACHE = 8 * 64


@pytest.fixture(scope="module")
def four():
    """Runs of four rungs at one small size."""
    ladder = registry.ladder("gemm", "cpu")
    case = Case(ladder.workload.size("cpu", {"M": 32, "N": 32, "K": 8}), SMALL)
    inputs = ladder.workload.inputs(case.size)
    return {
        name: trace(ladder[name].module(case), inputs, cores=1, ignore=("local",), follow=True)
        for name in ("naive", "reorder", "tile", "register_tile")
    }


def test_steps_side_by_side_are_those_of_the_traces(four):
    figure = diagrams.side_by_side(four, "gemm", cache=CACHE)
    assert not side_by_side(figure, four, seed=1, cache=CACHE)
    for run in stepwise.unpacked(figure):
        assert len(run["misses"]) == statistics.cache(four[run["name"]], CACHE).misses
        assert run["loops"], run["name"]


def without_a_step(run):
    """One step in the middle is left out; the misses stay where they are."""
    at = len(run["steps"]) // 2
    for column in ("steps", "values"):
        del run[column][at]


def with_a_swapped_buffer(run):
    run["sites"] = [[{0: 1, 1: 0}.get(buffer, buffer), *rest] for buffer, *rest in run["sites"]]


def with_a_cache_that_never_throws_out(run):
    seen, kept = set(), []
    for step, line, _ in run["misses"]:
        if line not in seen:
            kept.append([step, line, -1])
        seen.add(line)
    run["misses"] = kept


def with_the_oldest_thrown_out(run):
    """The cache throws out what came in first, not what was used least recently."""
    queue = []
    for miss in run["misses"]:
        miss[2] = queue.pop(0) if len(queue) == run["cache"] else -1
        queue.append(miss[1])


def with_an_uncounted_miss(run):
    del run["misses"][len(run["misses"]) // 2]


def with_loops_one_step_late(run):
    """Every step has the loops' values of the step before of its site."""
    last = {}
    for (site, *_), place in zip(run["steps"], range(len(run["steps"])), strict=True):
        now = run["values"][place]
        run["values"][place] = last.get(site, now)
        last[site] = now


def with_names_of_each_others_loops(run):
    run["loops"][0][0], run["loops"][-1][0] = run["loops"][-1][0], run["loops"][0][0]


@pytest.mark.parametrize(
    "fault",
    [
        without_a_step,
        with_a_swapped_buffer,
        with_a_cache_that_never_throws_out,
        with_the_oldest_thrown_out,
        with_an_uncounted_miss,
        with_loops_one_step_late,
        with_names_of_each_others_loops,
    ],
)
@pytest.mark.parametrize("rung", ["tile", "register_tile"])
def test_the_checker_sees_a_fault_in_steps(four, fault, rung, monkeypatch):
    made = steps.steps_of

    def broken(*arguments):
        run, left = made(*arguments)
        fault(run)
        return run, left

    chosen = {rung: four[rung]}
    assert not side_by_side(diagrams.side_by_side(chosen, "", cache=CACHE), chosen, 0, CACHE)
    monkeypatch.setattr(steps, "steps_of", broken)
    assert side_by_side(diagrams.side_by_side(chosen, "", cache=CACHE), chosen, 0, CACHE)


def test_the_checker_sees_the_fault_of_a_cache_model(four, monkeypatch):
    """A cache without the place of a line's last use: lines leave in the order they came."""

    def first_in_first_out(lines, sets, ways):
        held, places, thrown = [], [], []
        for place, line in enumerate(lines):
            if line not in held:
                places.append(place)
                thrown.append(held.pop(0) if len(held) == ways else -1)
                held.append(line)
        return places, thrown

    chosen = {"tile": four["tile"]}
    monkeypatch.setattr(statistics, "_missed", first_in_first_out)
    assert side_by_side(diagrams.side_by_side(chosen, "", cache=CACHE), chosen, 0, CACHE)


@pytest.mark.parametrize("kind", ["warp", pytest.param("banks", marks=pytest.mark.slow)])
def test_the_checker_sees_threads_in_each_others_places(kind):
    trace, note = traced("gemm", "cuda", "register_tile")
    figure = drawn(trace, note, kind)
    assert not problems(kind, figure, trace, 0)
    assert problems(kind, figure, dataclasses.replace(trace, thread=trace.thread ^ 5), 0)


def test_the_checker_sees_the_reuse_of_another_walk(naive):
    trace, note = naive
    figure = drawn(trace, note, "reuse")
    assert not problems("reuse", figure, trace, 0)
    assert problems("reuse", figure, traced("gemm", "cpu", "reorder")[0], 0)
