"""The course's pages as notebooks: their code, folded answers, outputs and errors."""

import base64
import importlib
import importlib.util
import re

import pytest

pytest.importorskip("tvm", reason="the course needs the [tvm] extra")

from docs.course import notebooks

pytestmark = pytest.mark.slow

needs_jupyter = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("nbformat", "nbclient", "ipykernel")),
    reason="needs the [guide] extra",
)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """The notebooks' kernel, installed in a folder of its own."""
    notebooks.install_kernel(tmp_path / "prefix")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "prefix/share/jupyter"))


def test_notebooks_hold_the_same_code():
    nbformat = pytest.importorskip("nbformat", reason="needs the [guide] extra")
    for path in notebooks.pages():
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


def test_notebooks_need_no_files_beside_them():
    """A notebook may be downloaded alone."""
    pytest.importorskip("nbformat", reason="needs the [guide] extra")
    for path in notebooks.pages():
        texts = [cell for cell in notebooks.notebook(path).cells if cell.cell_type == "markdown"]
        for cell in texts:
            attachments = cell.get("attachments", {})
            for target in re.findall(r"\]\(([^)]+)\)", cell.source):
                name = target.removeprefix("attachment:")
                assert name in attachments or target.startswith("https://"), target
            for name, picture in attachments.items():
                found = base64.b64decode(picture["image/svg+xml"])
                assert found == (path.parent / "pictures" / name).read_bytes()
        pictures = len(re.findall(r"!\[[^]]*\]\(", path.read_text()))
        assert sum(len(cell.get("attachments", {})) for cell in texts) == pictures


def test_answers_are_folded_in_notebooks(tmp_path):
    """What stands between <details> and </details>, in cells of both kinds, and nothing else."""
    pytest.importorskip("nbformat", reason="needs the [guide] extra")
    page = tmp_path / "folded.md"
    answer = "Because.\n\n```python\nprint(1)  # -> 1\n```\n\nSo it is."
    page.write_text(
        "# t\n\nWhy?\n\n<details>\n<summary>Answer</summary>\n\n"
        f"{answer}\n\n</details>\n\nGo on.\n\n```python\nprint(2)  # -> 2\n```\n"
    )
    made = notebooks.notebook(page).cells
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
def test_a_page_is_executed_with_its_pictures(kernel):
    path = next(path for path in notebooks.pages() if path.stem == "07-gpu-memory")
    made = notebooks.executed(path)
    importlib.import_module("nbformat").validate(made)
    codes = [cell for cell in notebooks.cells(path) if cell.kind != "markdown"]
    executed = [cell for cell in made.cells if cell.cell_type == "code"]
    drawn = []
    for code, cell in zip(codes, executed, strict=True):
        assert cell.execution_count, code.line
        printed = "".join(each.text for each in cell.outputs if each.output_type == "stream")
        assert printed.splitlines() == code.output, code.line
        drawn += [each.data for each in cell.outputs if "data" in each]
    assert [data["text/plain"] for data in drawn] == ["07-sectors.svg"]
    assert "</svg>" in drawn[0]["image/svg+xml"] and drawn[0]["image/png"]


@needs_jupyter
def test_an_error_names_the_page_and_the_cell(kernel, tmp_path):
    page = tmp_path / "wrong.md"
    for block, said in [
        ("python\nprint(1)\n1 / 0", "line 6): ZeroDivisionError: division by zero"),
        ("sh\nfalse\ntrue", "line 6): CalledProcessError: "),
        ("python\nimport os\nos._exit(3)", "line 6): Kernel died"),
    ]:
        page.write_text(f"# t\n\nText.\n\n```{block}\n```\n")
        with pytest.raises(notebooks.NotExecuted) as caught:
            notebooks.executed(page)
        assert str(caught.value).startswith(f"wrong.md, cell 2 ({said}")


@needs_jupyter
def test_a_cell_that_lacks_something_says_so(kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "lacking", list)
    page = tmp_path / "lacking.md"
    page.write_text("# t\n\n```python nvcc torch\nprint(1)\n```\n")
    (output,) = notebooks.executed(page).cells[1].outputs
    assert output.text == "Not executed: there was no nvcc and no torch.\n"
