"""Every code block of the guide runs and prints what the guide says it prints."""

import contextlib
import importlib
import importlib.util
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tvm", reason="the guide needs the [tvm] extra")

from docs.course import notebooks
from tests import ROOT

pytestmark = pytest.mark.slow

GUIDE = ROOT / "docs" / "guide"


BESIDE = [GUIDE / f"{name}.md" for name in ("start-here", "glossary", "faq")]
needs_jupyter = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("nbformat", "nbclient", "ipykernel")),
    reason="needs the [guide] extra",
)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """The guide's kernel, installed in a folder of its own."""
    notebooks.install_kernel(tmp_path / "prefix")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "prefix/share/jupyter"))


def run_python(cell, path, namespace):
    # Leading blank lines make a traceback name the line of the chapter.
    code = compile("\n" * (cell.line - 1) + cell.text, str(path), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    assert printed.getvalue().splitlines() == cell.output, f"{path.name}, line {cell.line}"


def run_shell(cell, folder):
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", cell.text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run_page(path, folder, monkeypatch):
    """Run the blocks of a page in a folder and compare what they print; return the names that they
    defined, and what is missing here for some of them."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(folder / "cache"))
    namespace = {"__name__": "__main__"}
    missing = set()
    for cell in notebooks.cells(path):
        lacking = notebooks.lacking(cell.needs)
        missing |= set(lacking)
        if lacking or cell.kind == "markdown":
            continue
        if cell.kind == "sh":
            run_shell(cell, folder)
        else:
            run_python(cell, path, namespace)
    return namespace, missing


@pytest.mark.parametrize("path", [*notebooks.chapters(), *BESIDE], ids=lambda path: path.stem)
def test_chapter(path, tmp_path, monkeypatch):
    _, missing = run_page(path, tmp_path, monkeypatch)
    if missing:
        pytest.skip(f"blocks left out: no {', '.join(sorted(missing))}")


def test_notebooks_hold_the_same_code():
    nbformat = pytest.importorskip("nbformat", reason="needs the [guide] extra")
    for path in notebooks.chapters():
        made = notebooks.notebook(path)
        nbformat.validate(made)
        assert made.metadata.kernelspec.name == notebooks.KERNEL
        assert len({cell.id for cell in made.cells}) == len(made.cells)
        code = [
            cell.source.removeprefix("%%bash -e\n")
            for cell in made.cells
            if cell.cell_type == "code"
        ]
        fenced = re.findall(r"^```(?:python|sh)[^\n]*\n(.*?)\n```$", path.read_text(), re.M | re.S)
        assert code == fenced
        assert code, path


def test_answers_are_folded_in_notebooks(tmp_path):
    """What stands between <details> and </details>, in cells of both kinds, and nothing else."""
    pytest.importorskip("nbformat", reason="needs the [guide] extra")
    chapter = tmp_path / "99-folded.md"
    answer = "Because.\n\n```python\nprint(1)  # -> 1\n```\n\nSo it is."
    chapter.write_text(
        "# t\n\nWhy?\n\n<details>\n<summary>Answer</summary>\n\n"
        f"{answer}\n\n</details>\n\nGo on.\n\n```python\nprint(2)  # -> 2\n```\n"
    )
    made = notebooks.notebook(chapter).cells
    assert [cell.cell_type for cell in made] == ["markdown", "code", "markdown", "code"]
    folded = "<details><summary>Answer</summary>\n\n{}\n\n</details>"
    assert (
        made[0].source
        == f"# t\n\nWhy?\n\n*The answer is folded below.*\n\n{folded.format('Because.')}"
    )
    assert made[2].source == f"{folded.format('So it is.')}\n\nGo on."
    assert made[1].metadata.jupyter == {"source_hidden": True, "outputs_hidden": True}
    assert "jupyter" not in made[3].metadata


@needs_jupyter
def test_a_chapter_is_executed_with_its_pictures(kernel):
    path = next(path for path in notebooks.chapters() if path.stem == "02-schedules")
    made = notebooks.executed(path)
    importlib.import_module("nbformat").validate(made)
    codes = [cell for cell in notebooks.cells(path) if cell.kind != "markdown"]
    executed = [cell for cell in made.cells if cell.cell_type == "code"]
    drawn = []
    for code, cell in zip(codes, executed, strict=True):
        assert cell.execution_count, code.line
        printed = "".join(each.text for each in cell.outputs if each.output_type == "stream")
        if code.kind == "python":
            assert printed.splitlines() == code.output, code.line
        else:
            assert "+        for i_0 in T.parallel(" in printed
        drawn += [each.data for each in cell.outputs if "data" in each]
    assert [data["text/plain"] for data in drawn] == ["sum-parallel.svg"]
    assert "</svg>" in drawn[0]["image/svg+xml"] and drawn[0]["image/png"]


@needs_jupyter
def test_an_error_names_the_chapter_and_the_cell(kernel, tmp_path):
    chapter = tmp_path / "99-wrong.md"
    for block, said in [
        ("python\nprint(1)\n1 / 0", "line 6): ZeroDivisionError: division by zero"),
        ("sh\nfalse\ntrue", "line 6): CalledProcessError: "),
        ("python\nimport os\nos._exit(3)", "line 6): Kernel died"),
    ]:
        chapter.write_text(f"# t\n\nText.\n\n```{block}\n```\n")
        with pytest.raises(notebooks.NotExecuted) as caught:
            notebooks.executed(chapter)
        assert str(caught.value).startswith(f"99-wrong.md, cell 2 ({said}")


@needs_jupyter
def test_a_cell_that_lacks_something_says_so(kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "lacking", list)
    chapter = tmp_path / "99-lacking.md"
    chapter.write_text("# t\n\n```python nvcc torch\nprint(1)\n```\n")
    (output,) = notebooks.executed(chapter).cells[1].outputs
    assert output.text == "Not executed: there was no nvcc and no torch.\n"


def test_every_fence_is_code_that_runs_or_says_what_it_is():
    for path in [*notebooks.chapters(), *BESIDE, GUIDE / "README.md"]:
        marks = re.findall(r"^```(.*)$", path.read_text(), re.M)[::2]
        assert all(re.fullmatch(r"(python|sh)( nvcc| torch)*|text", mark) for mark in marks), path


def test_a_block_that_is_not_executed_says_why():
    for path in [*notebooks.chapters(), *BESIDE]:
        for section in re.split(r"^## ", path.read_text(), flags=re.M):
            told = re.search(r"(not|[Nn]either) [^.]*executed", section)
            assert told or "```text" not in section, f"{path.name}: {section.splitlines()[0]}"


def test_the_index_lists_every_chapter():
    linked = re.findall(r"\]\((\d\d-[\w-]+\.md)\)", (GUIDE / "README.md").read_text())
    assert linked == [path.name for path in notebooks.chapters()]


def test_exercises_have_answers_with_code():
    for path in notebooks.chapters():
        text = path.read_text()
        exercises = re.split(r"^\*\*Exercise", text, flags=re.M)[1:]
        assert text.count("<details>") == text.count("</details>") >= len(exercises), path.name
        for exercise in exercises:
            answer = exercise.partition("<details>")[2].partition("</details>")[0]
            assert "```python" in answer, f"{path.name}: {exercise[:60]}"
