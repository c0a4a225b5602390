"""The atlas has a page for each ladder, with the figures of the sources and of docs/results."""

import importlib.util
import re

import pytest

pytest.importorskip("tvm", reason="the atlas needs the [tvm] extra")

from docs.course import notebooks
from docs.website import atlas, home, measured
from kernel_lab import registry
from tests import ROOT
from tests.docs.blocks import run_python

PAGES = {ROOT / atlas.page_of(ladder): ladder for ladder in registry.LADDERS.values()}
MEASURED = measured.tables()
needs_pictures = pytest.mark.skipif(
    not importlib.util.find_spec("matplotlib"), reason="pictures need the [apps] extra"
)


def test_every_ladder_has_a_page_that_the_index_lists():
    files = {path for path in (ROOT / atlas.ATLAS).glob("*.md") if path.name != "README.md"}
    assert files == set(PAGES)
    linked = re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / atlas.ATLAS / "README.md").read_text())
    assert sorted(linked) == sorted(path.name for path in files)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_asks_a_question_and_has_one_exercise_with_a_folded_answer(path):
    text = path.read_text()
    assert re.match(r"# \w+ on a [CG]PU: [^\n]+\?\n\n\S", text)
    assert text.count(atlas.FIGURES) == text.count(atlas.RUNGS) == 1
    assert text.count("\n## Exercise\n") == 1
    question, _, answer = text.partition("\n## Exercise\n")[2].partition("<details>")
    assert len(question.split()) > 10 and answer.rstrip().endswith("</details>")
    assert "```python" in answer and "<details>" not in text.partition("\n## Exercise\n")[0]


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_blocks_of_a_page_print_what_it_says(path):
    namespace, missing = {"__name__": "__main__"}, set()
    for cell in notebooks.cells(path):
        lacking = notebooks.lacking(cell.needs)
        missing |= set(lacking)
        if cell.kind == "python" and not lacking:
            run_python(cell, path, namespace)
    if missing:
        pytest.skip(f"blocks left out: no {', '.join(sorted(missing))}")


# Figures


def test_measured_figures_are_those_of_the_page():
    found = MEASURED["conv1d", "cpu"]
    pad = found.row("pad")
    assert (pad.time, pad.milliseconds, pad.factor) == ("416 µs", "0.416", 35.3)
    assert found.row("NumPy").milliseconds == "0.0716"  # not the one of the searched run
    assert found.row("meta_schedule").milliseconds == "0.0114"
    assert found.row("naive").factor is None and found.row("none") is None
    assert MEASURED["softmax", "cpu"].page == "docs/results/2026-11-27-rows-cpu.md"


def test_the_first_page_and_the_atlas_read_the_same_figures():
    bars = re.findall(r"<code>(\w+)</code>.*</i> ([\d.]+)<", home.text())
    assert len(bars) > 4
    for name, speed in bars:
        time = float(MEASURED["gemm", "cpu"].row(name).milliseconds)
        assert 2 * 512**3 / time / 1e6 == pytest.approx(float(speed), rel=0.01), name


def test_every_cpu_ladder_is_measured_with_all_of_its_rungs():
    for key, ladder in registry.LADDERS.items():
        if ladder.device == "cpu":
            assert {rung.name for rung in ladder.rungs} <= set(MEASURED[key].rows), key


def test_a_measured_factor_outside_of_the_predicted_range_is_explained():
    outside = 0
    for key, found in MEASURED.items():
        for rung in registry.LADDERS[key].rungs[1:]:
            low, high = rung.expected
            if not low <= found.rows[rung.name].factor <= high:
                outside += 1
                assert rung.explained, f"{key} {rung.name}"
    assert outside  # or this test compares nothing


def test_every_published_figure_has_a_row_beside_ours():
    for path, ladder in PAGES.items():
        table = atlas.figures(ladder)
        assert len({line.count("|") for line in table.splitlines()}) == 1, path.name
        for each in ladder.workload.published.get(ladder.device, ()):
            (row,) = [
                line
                for line in table.splitlines()
                if line.startswith(f"| {each.step} |") and atlas.SOURCES[each.document] in line
            ]
            assert f"| {each.milliseconds:g} |" in row
            if each.rung and ladder.device == "cuda":
                assert f"| not measured | {atlas.SOURCES[each.document]}" in row
            elif each.rung:
                found = MEASURED[ladder.workload.name, ladder.device]
                ours = found.row(each.rung).milliseconds
                assert f"| {ours} | {atlas.SOURCES[each.document]}" in row


def test_published_rungs_exist():
    for ladder in PAGES.values():
        for each in ladder.workload.published.get(ladder.device, ()):
            if each.rung.islower() and each.rung != "meta_schedule":
                assert ladder[each.rung]


def test_a_published_factor_compares_two_steps_of_one_source():
    ladder = registry.ladder("conv1d", "cuda")
    said = atlas._published(ladder, ladder["pad"])
    assert said == ("Ye's TVM_tutorial has 0.107 ms, 171 times as fast as the 18.286 ms before.")
    assert atlas._published(ladder, ladder["whole_tiles"]) == ""


# Sections


@needs_pictures
@pytest.mark.parametrize(("name", "device"), [("vector_add", "cpu"), ("vector_add", "cuda")])
def test_a_section_has_what_its_rung_changes_predicts_and_measured(name, device):
    ladder = registry.ladder(name, device)
    text = atlas.text(name, device)
    assert atlas.RUNGS not in text and atlas.FIGURES not in text
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    assert len(sections) == len(ladder.rungs)
    for section, rung in zip(sections, ladder.rungs, strict=True):
        assert section.startswith(rung.name + (", which fails" if rung.kind == "failed" else "\n"))
        assert ("<svg" in section) == ("the picture is the same" not in section), rung.name
        assert section.count('<details markdown="1" class="ir">') in (1, 2)
        if rung.after is None:
            assert "Predicted" not in section and "Its IR" in section
            continue
        low, high = rung.expected
        assert f"Predicted: {low:g} to {high:g} times the speed of `{rung.after}`" in section
        assert rung.prediction[1:] in section and f"in the IR of {rung.after}" in section
        assert f"+def {rung.schedule.__name__}(" in section
        row = MEASURED[name, device].rows[rung.name] if device == "cpu" else None
        assert (f"Measured: {row.spread} times**, {row.time}" if row else "Not measured") in section
    assert (device == "cpu") == any("Why they differ." in section for section in sections)


@needs_pictures
def test_a_rung_with_the_accesses_of_the_one_before_has_no_picture_of_its_own():
    ladder = registry.ladder("conv1d", "cuda")
    drawn = atlas._drawn(ladder, ladder["unroll"])
    assert drawn == [
        "It makes `shared_memory`'s accesses in the same order, so the picture is the same."
    ]
    assert "<svg" in atlas._drawn(ladder, ladder["shared_memory"])[0]


def test_a_ladder_without_figures_of_either_kind_has_rows_that_say_so():
    ladder = registry.ladder("gelu_matmul", "cuda")
    assert atlas.figures(ladder).splitlines()[2:] == [
        f"| {name} | not measured |"
        for name in ("`naive`", "`fuse_into_tile`", "NumPy, CPU", "PyTorch, CPU", "PyTorch")
    ]
