"""`python -m kernel_lab check`: not written yet, right, or wrong and where."""

import pytest

pytest.importorskip("tvm", reason="the lab needs the [tvm] extra")

from kernel_lab import exercises
from kernel_lab.cli import main
from kernel_lab.errors import LabUsageError

ROWS = '''"""9.2: put k between i and j."""

from kernel_lab import show


def rows(sch, case):
    i, j, k = sch.get_loops(sch.get_sblock("C"))
    ...


misses = ...


def check():
    mine = show(rows, size={"M": 8, "N": 32, "K": 8})
    yield mine
    yield mine.misses(640) < 200, f"{mine.misses(640)} misses of 10 lines", "not fewer than 200"
    yield misses == mine.misses(640), f"misses is {misses}, which is not the count"
'''
ORDER = "sch.reorder(i, k, j)"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "9_2_rows.py").write_text(ROWS)
    (tmp_path / "9_10_last.py").write_text("def check():\n    yield True, 'nothing to do'\n")
    (tmp_path / "10_1_next.py").write_text(ROWS)
    (tmp_path / "notes.py").write_text("...")
    return tmp_path


def judged(folder, order=ORDER, misses="80"):
    path = folder / "9_2_rows.py"
    path.write_text(ROWS.replace("    ...", f"    {order}").replace("= ...", f"= {misses}"))
    return exercises.check(path)


def test_an_untouched_file_is_not_written_yet(folder):
    verdict = exercises.check(folder / "9_2_rows.py")
    assert verdict.state == exercises.UNWRITTEN and verdict.number == "9.2"
    assert "fill in lines 8, 11 of" in verdict.text


def test_a_right_answer_is_right_and_says_what_was_found(folder):
    # B has 16 lines, and is read whole for each of 8 rows; A has 4 lines, C 16.
    verdict = judged(folder, misses=8 * 16 + 4 + 16)
    assert verdict.state == exercises.RIGHT
    assert verdict.text.startswith("rows: right at M=8, N=32, K=8\n")
    assert "misses of 10 lines\n" in verdict.text and "fewer" not in verdict.text


def test_a_right_answer_is_timed_beside_a_rung(folder):
    path = folder / "9_2_rows.py"
    path.write_text(
        "from kernel_lab import show\n\n\ndef check():\n"
        "    yield show(lambda sch, case: None, size={'M': 8, 'N': 32, 'K': 8}, beside='naive')\n"
    )
    verdict = exercises.check(path)
    assert verdict.state == exercises.RIGHT and "times as fast as naive" in verdict.text


@pytest.mark.parametrize(
    ("order", "misses", "said"),
    [
        ("sch.reorder(j, k, i)", 0, "misses of 10 lines: not fewer than 200"),
        (ORDER, 7, "misses is 7, which is not the count"),
        ("sch.parallel(k)", 0, "TVM refuses line 8 (sch.parallel(k)): The"),
        ("sch.reoder(i, k, j)", 0, "line 8 (sch.reoder(i, k, j)): AttributeError: "),
        ("sch.reorder(i, k, j", 0, "SyntaxError: "),
    ],
)
def test_a_wrong_answer_is_wrong_and_says_where(folder, order, misses, said):
    verdict = judged(folder, order, misses)
    assert verdict.state == exercises.WRONG and said in verdict.text


def test_an_ellipsis_in_an_index_or_a_type_is_no_blank():
    assert exercises.blanks("x: tuple[int, ...] = y[..., 0]\nz = f(1, ...)") == [2]


def test_a_line_with_several_blanks_is_named_once():
    assert exercises.blanks("x = {8: ..., 16: ...}\ny = ...") == [1, 2]


def test_a_lesson_has_its_exercises_in_order(folder):
    names = [path.name for path in exercises.find("9", folder)]
    assert names == ["9_2_rows.py", "9_10_last.py"]
    assert [path.name for path in exercises.find("9.10", folder)] == ["9_10_last.py"]
    with pytest.raises(LabUsageError, match=r"no exercise '9\.3' .*: there are 9\.2, 9\.10, 10\.1"):
        exercises.find("9.3", folder)
    with pytest.raises(LabUsageError, match=r"no folder .*nowhere"):
        exercises.find("9.2", folder / "nowhere")


def test_the_command_line_judges_and_its_exit_code_says_whether_all_is_right(
    folder, monkeypatch, capsys
):
    monkeypatch.chdir(folder.parent)
    own = ["--folder", folder.name]
    assert main(["check", "9", *own]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("9.2 (9_2_rows.py): not written yet\n    fill in lines 8, 11 of")
    assert str(folder) in printed
    assert printed.endswith("9.10 (9_10_last.py): right\n    nothing to do\n")
    assert main(["check", "9.10", *own]) == 0
    assert main(["check", "7", *own]) == 2
    assert f"no exercise '7' in {folder}" in capsys.readouterr().err


def test_the_command_line_judges_the_exercises_of_the_clone_by_default(capsys):
    assert main(["check", "1.1"]) == 1
    assert f"of {exercises.EXERCISES / '1_1_counts.py'}" in capsys.readouterr().out
