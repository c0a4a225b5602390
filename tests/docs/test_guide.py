"""Every code block of the guide runs and prints what the guide says it prints."""

import contextlib
import importlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tvm", reason="the guide needs the [tvm] extra")

from tests import ROOT

pytestmark = pytest.mark.slow

GUIDE = ROOT / "docs" / "guide"


def _notebooks():
    spec = importlib.util.spec_from_file_location("guide_notebooks", GUIDE / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


notebooks = _notebooks()
BESIDE = [GUIDE / f"{name}.md" for name in ("start-here", "glossary", "faq")]
AVAILABLE = {
    "nvcc": shutil.which("nvcc") is not None,
    "torch": importlib.util.find_spec("torch") is not None,
}


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


@pytest.mark.parametrize("path", [*notebooks.chapters(), *BESIDE], ids=lambda path: path.stem)
def test_chapter(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    namespace = {"__name__": "__main__"}
    missing = set()
    for cell in notebooks.cells(path):
        lacking = {need for need in cell.needs if not AVAILABLE[need]}
        missing |= lacking
        if lacking or cell.kind == "markdown":
            continue
        if cell.kind == "sh":
            run_shell(cell, tmp_path)
        else:
            run_python(cell, path, namespace)
    if missing:
        pytest.skip(f"blocks left out: no {', '.join(sorted(missing))}")


def test_notebooks_hold_the_same_code(tmp_path):
    files = notebooks.write(tmp_path)
    assert [file.stem for file in files] == [path.stem for path in notebooks.chapters()]
    for path, file in zip(notebooks.chapters(), files, strict=True):
        made = json.loads(file.read_text())
        if importlib.util.find_spec("nbformat"):
            importlib.import_module("nbformat").validate(made)
        assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
        assert len({cell["id"] for cell in made["cells"]}) == len(made["cells"])
        code = [
            "".join(cell["source"]).removeprefix("%%sh\n")
            for cell in made["cells"]
            if cell["cell_type"] == "code"
        ]
        fenced = re.findall(r"^```(?:python|sh)[^\n]*\n(.*?)\n```$", path.read_text(), re.M | re.S)
        assert code == fenced
        assert code, path
        printed = [
            "".join(output["text"]).splitlines()
            for cell in made["cells"]
            for output in cell.get("outputs", ())
        ]
        assert printed == [cell.output for cell in notebooks.cells(path) if cell.output]


def test_answers_are_folded_in_notebooks(tmp_path):
    """What stands between <details> and </details>, in cells of both kinds, and nothing else."""
    chapter = tmp_path / "99-folded.md"
    answer = "Because.\n\n```python\nprint(1)  # -> 1\n```\n\nSo it is."
    chapter.write_text(
        "# t\n\nWhy?\n\n<details>\n<summary>Answer</summary>\n\n"
        f"{answer}\n\n</details>\n\nGo on.\n\n```python\nprint(2)  # -> 2\n```\n"
    )
    made = notebooks.notebook(chapter)["cells"]
    texts = ["".join(cell["source"]) for cell in made]
    assert [cell["cell_type"] for cell in made] == ["markdown", "code", "markdown", "code"]
    folded = "<details><summary>Answer</summary>\n\n{}\n\n</details>"
    assert (
        texts[0] == f"# t\n\nWhy?\n\n*The answer is folded below.*\n\n{folded.format('Because.')}"
    )
    assert texts[2] == f"{folded.format('So it is.')}\n\nGo on."
    assert made[1]["metadata"]["jupyter"] == {"source_hidden": True, "outputs_hidden": True}
    assert made[3]["metadata"] == {}


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
