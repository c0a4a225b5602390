"""The course: its blocks run and print what they say, its exercises are judged, and its teaching
copies of schedules are the registry's."""

import ast
import base64
import io
import re

import numpy as np
import pytest

pytest.importorskip("tvm", reason="the course needs the [tvm] extra")

from matplotlib.image import imread

from docs.course import notebooks, pictures
from kernel_lab import exercises, own_schedule, registry
from kernel_lab.workload import Case, Processor
from needle_tvm._tvm.names import Schedule, te, tvm
from tests import ROOT
from tests.docs.blocks import check_fences, run_page

pytestmark = pytest.mark.slow

COURSE = ROOT / "docs" / "course"
PAGES = notebooks.pages()
BESIDE = [COURSE / f"{name}.md" for name in ("README", "faq", "glossary")]
LESSONS = [path for path in PAGES if path.stem[0].isdigit()]
WORDS, EXERCISES = 1500, 4
PROCESSORS = {
    "AVX2": Processor(cores=2, registers=16, lanes=8),
    "AVX-512": Processor(cores=2, registers=32, lanes=16),
}
# The rungs of the matrix product on a CPU whose schedules a lesson teaches, and the size at which
# its copies are compared. The lab's `pack` has no tests of bounds in its definition where the tile
# divides the size.
EVEN, ODD = {"M": 64, "N": 64, "K": 16}, {"M": 19, "N": 41, "K": 24}
COPIES = {
    "02-schedules": (EVEN, ("reorder",)),
    "03-cache": (EVEN, ("reorder", "tile")),
    "05-threads": (EVEN, ("parallel", "parallel_inside", "register_tile")),
    "06-your-own-rung": (ODD, ("pack",)),
}
DEFINITIONS = {"pack": "whole_tiles"}
# Words of a sentence that says what is wrong. The lab prints none of them under a right answer.
FAILURE = re.compile(
    r"\b(not(?! timed)|wrong|differs|more than|fewer than|better|as well|as many|must|to be|less)\b"
)

by_stem = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


@pytest.mark.parametrize("path", [*PAGES, COURSE / "faq.md"], ids=lambda path: path.stem)
def test_page(path, tmp_path, monkeypatch):
    names, missing = run_page(path, tmp_path, monkeypatch)
    size, rungs = COPIES.get(path.stem, (EVEN, ()))
    for rung in rungs:
        for processor in PROCESSORS.values():
            case = Case(size, processor)
            same_as_the_rung(names[rung], names.get(DEFINITIONS.get(rung)), rung, case)
    if missing:
        pytest.skip(f"blocks left out: no {', '.join(sorted(missing))}")


def same_as_the_rung(schedule, define, name, case):
    rung = registry.ladder("gemm", "cpu")[name]
    sch = Schedule(te.create_prim_func((define or rung.define)(case)))
    schedule(sch, case)
    tvm.ir.assert_structural_equal(sch.mod, rung.module(case))


def test_a_changed_copy_is_not_the_rung():
    schedule = registry.ladder("gemm", "cpu")["reorder"].schedule
    with pytest.raises(ValueError):
        same_as_the_rung(schedule, None, "tile", Case(EVEN, PROCESSORS["AVX2"]))


def answers(path):
    """The exercises of a lesson: number, file, and the code of the answer."""
    for text in re.split(r"^\*\*Exercise ", path.read_text(), flags=re.M)[1:]:
        number = re.match(r"(\d+\.\d+)\*\*", text)
        file = re.search(r"\(\[exercises/(\w+\.py)\]\(\.\./\.\./exercises/\1\)\)", text)
        folded = text.partition("<details>")[2].partition("</details>")[0]
        codes = re.findall(r"^```python\n(.*?)^```$", folded, re.M | re.S)
        yield number and number[1], file and exercises.EXERCISES / file[1], "".join(codes)


ANSWERS = [(number, file, code) for path in LESSONS for number, file, code in answers(path)]
by_exercise = pytest.mark.parametrize(
    ("number", "file", "answer"), ANSWERS, ids=[str(number) for number, *_ in ANSWERS]
)


def names_of(node):
    """The names that a statement defines."""
    if isinstance(node, ast.Assign):
        names = [name for target in node.targets for name in ast.walk(target)]
        return [name.id for name in names if isinstance(name, ast.Name)]
    return [node.name] if isinstance(node, ast.FunctionDef) else []


def filled(source, answer):
    """The file of an exercise with the answer in place of the statements that have blanks."""
    lines, blanks = source.splitlines(), exercises.blanks(source)
    kept = dict(enumerate(lines, 1))
    first, wanted = None, []
    for node in ast.parse(source).body:
        if any(node.lineno <= line <= node.end_lineno for line in blanks):
            wanted += names_of(node)
            first = first or node.lineno
            for line in range(node.lineno, node.end_lineno + 1):
                kept.pop(line)
    defined = [name for node in ast.parse(answer).body for name in names_of(node)]
    assert set(wanted) <= set(defined), f"the answer does not define {set(wanted) - set(defined)}"
    kept[first] = answer
    return "\n".join(kept[line] for line in sorted(kept)) + "\n", wanted


def spoiled(answer, wanted):
    """The answer with each wanted number one too large, and no statement in a wanted function."""
    tree = ast.parse(answer)
    for node in tree.body:
        if not set(names_of(node)) & set(wanted):
            continue
        if isinstance(node, ast.Assign):
            node.value = ast.BinOp(node.value, ast.Add(), ast.Constant(1))
        else:
            node.body = [ast.Pass()]
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


@pytest.fixture
def untimed(monkeypatch):
    """tests/kernel_lab/test_own_schedule.py tests the times."""
    monkeypatch.setattr(own_schedule.Shown, "speed", "not timed")


@by_exercise
def test_an_exercise_is_judged(number, file, answer, tmp_path, untimed):
    """Untouched, with the lesson's answer, and with a wrong one."""
    assert exercises.find(number) == [file]
    assert exercises.check(file).state == exercises.UNWRITTEN
    assert ast.get_docstring(ast.parse(file.read_text())).startswith(f"{number}: ")
    copy = tmp_path / file.name
    text, wanted = filled(file.read_text(), answer)
    copy.write_text(text)
    verdict = exercises.check(copy)
    assert verdict.state == exercises.RIGHT, verdict
    assert not FAILURE.search(verdict.text), verdict
    copy.write_text(filled(file.read_text(), spoiled(answer, wanted))[0])
    verdict = exercises.check(copy)
    assert verdict.state == exercises.WRONG and verdict.text, verdict


@pytest.mark.parametrize(
    ("step", "wrong"),
    [
        ("-(-32 * registers // 256) * 256", "32 * registers"),
        ("4 * (16_384 // of_a_warp)", "65_536 // of_a_warp"),
    ],
    ids=["rounding", "parts"],
)
def test_the_occupancy_exercise_needs_each_of_its_steps(step, wrong, tmp_path):
    ((file, answer),) = [(file, answer) for number, file, answer in ANSWERS if number == "8.2"]
    assert answer.count(step) == 1
    copy = tmp_path / file.name
    copy.write_text(filled(file.read_text(), answer.replace(step, wrong))[0])
    verdict = exercises.check(copy)
    assert verdict.state == exercises.WRONG and "your blocks for" in verdict.text


def test_every_exercise_belongs_to_a_lesson():
    files = sorted(path.name for path in exercises.EXERCISES.glob("*.py"))
    assert files == sorted(file.name for _, file, _ in ANSWERS)
    for path in LESSONS:
        numbers = [number for number, *_ in answers(path)]
        assert numbers == [f"{int(path.stem[:2])}.{n}" for n in range(1, len(numbers) + 1)]
        assert 1 <= len(numbers) <= EXERCISES


def test_an_answer_uses_only_what_the_lessons_have_shown():
    """The names in modules and of a schedule's primitives, here and in the lessons before."""
    used = re.compile(r"\b(?:sch|te|np|statistics|registry)\.\w+")
    known = set()
    for path in LESSONS:
        text = path.read_text()
        shown = re.sub(r"<details>.*?</details>", "", text, flags=re.S)
        known |= set(used.findall(shown))
        for number, file, answer in answers(path):
            given = set(used.findall(file.read_text()))
            new = set(used.findall(answer)) - known - given
            assert not new, f"{number}: {new}"


def prose(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


@by_stem
def test_a_lesson_is_short_and_has_one_picture(path):
    text = path.read_text()
    words = re.sub(r"[^\w\s.,'/-]", " ", prose(text)).split()
    assert len(words) <= WORDS, len(words)
    shown = re.findall(r"!\[[^\]]+\]\(pictures/([\w-]+)\.svg\)", text)
    assert len(shown) == 1 and shown[0] in [path.stem for path in COURSE.glob("pictures/*.svg")]


@by_stem
def test_a_lesson_begins_with_its_goal_and_ends_with_what_was_learned(path):
    heading, goal, *rest = path.read_text().strip().split("\n\n")
    assert heading.startswith(f"# {int(path.stem[:2])}. ")
    assert goal.startswith("After this lesson you can ")
    assert rest[-2].startswith("**What you learned.** ") and len(rest[-2].splitlines()) <= 3
    assert rest[-1].startswith("Next: ")
    following = PAGES[PAGES.index(path) + 1 :]
    if following:
        assert f"]({following[0].name})" in rest[-1]


@pytest.mark.parametrize("path", [*PAGES, *BESIDE], ids=lambda path: path.stem)
def test_fences_are_code_that_runs_or_say_what_they_are(path):
    check_fences(path)


def test_the_first_page_lists_every_page_in_order():
    linked = re.findall(r"^\|[^|]*\| \[[^]]+\]\(([\w-]+\.md)\)", BESIDE[0].read_text(), re.M)
    assert linked == [path.name for path in PAGES]
    assert {path for path in COURSE.glob("*.md")} == {*PAGES, *BESIDE}


def rasters(svg):
    found = re.findall(r"base64,([^\"]*)", svg)
    return [imread(io.BytesIO(base64.b64decode(each)), "png") for each in found]


def words(svg):
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def colours(svg):
    return re.findall(r'fill(?:-opacity)?(?:: |=")([^;"]+)', svg)


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_shows_the_schedule(name):
    """The file has the rasters, the words and the colours that its schedule has now. Their places
    may depend on matplotlib; a picture that is drawn without it is the same text."""
    committed = (pictures.FOLDER / f"{name}.svg").read_text()
    drawn = pictures.picture(name)
    assert "<clipPath" in drawn or committed == drawn
    assert words(committed) == words(drawn)
    assert colours(committed) == colours(drawn)
    for one, other in zip(rasters(committed), rasters(drawn), strict=True):
        assert np.array_equal(one, other)
