"""The schedules that the course's GPU pages teach are the registry's."""

import contextlib
import io
import re

import numpy as np
import pytest

pytest.importorskip("tvm", reason="the course needs the [tvm] extra")

from docs.course import notebooks
from kernel_lab import registry
from kernel_lab.trace import trace
from kernel_lab.workload import Case
from needle_tvm._tvm.names import Schedule, structural_equal, te
from tests import ROOT

COURSE = ROOT / "docs" / "course"
TAUGHT = {
    "07-gpu-memory": ["threads_1d", "threads_2d", "shared_memory"],
    "08-gpu-tiles": ["shared_memory", "register_tile", "local_copies"],
}


def namespace(page):
    """The names that a page's Python blocks define, if no block has to be compiled or timed."""
    found = {"__name__": "__main__"}
    for cell in notebooks.cells(COURSE / f"{page}.md"):
        if cell.kind == "python" and "nvcc" not in cell.needs:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(cell.text, found)
    return found


def of_search():
    """The names of the blocks of the page on search that make spaces; the others compile or run."""
    found = {"__name__": "__main__"}
    for cell in notebooks.cells(COURSE / "search.md"):
        if re.search(r"^(CHOICES =|def ye\(|def fetched\()", cell.text, re.M):
            text = re.split(r"^(?:counted|for edge) ", cell.text, flags=re.M)[0]
            exec(text, found)
    return found


def scheduled(workload, schedule, case):
    sch = Schedule(te.create_prim_func(workload.define(case)))
    schedule(sch, case)
    return sch.mod


@pytest.mark.slow
@pytest.mark.parametrize("page", TAUGHT)
def test_a_taught_schedule_is_the_rung_of_its_name(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ladder, found = registry.ladder("gemm", "cuda"), namespace(page)
    case = Case(ladder.workload.size("cuda"))
    modules = {name: scheduled(ladder.workload, found[name], case) for name in TAUGHT[page]}
    for name, module in modules.items():
        for rung in ladder.rungs:
            if rung.name == name or rung.name in TAUGHT[page]:
                same = structural_equal(module, rung.module(case))
                assert same == (rung.name == name), (name, rung.name)


@pytest.mark.slow
def test_the_answers_of_lesson_8_are_rungs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ladder, found = registry.ladder("gemm", "cuda"), namespace("08-gpu-tiles")
    case = Case(ladder.workload.size("cuda"))
    for name in ("vector_loads", "double_buffer"):
        mine = scheduled(ladder.workload, found[name], case)
        assert structural_equal(mine, ladder[name].module(case)), name


@pytest.mark.slow
@pytest.mark.parametrize("rows", [8, 16, 32])
@pytest.mark.parametrize("columns", [8, 16, 32])
def test_choices_of_the_search_on_a_gpu_are_right_and_load_what_the_page_derives(rows, columns):
    found = of_search()
    size, step = found["small"].size, 16
    inputs = found["gemm"].inputs(size)
    exact = found["gemm"].reference(size, inputs)
    for name, loads in (("template", rows + columns), ("shared", 1 / rows + 1 / columns)):
        knobs = {"rows": rows, "columns": columns, "step": step, "vectors": rows == columns}
        module = found[name].module(found["small"], knobs)
        run = trace(module, inputs, limit=5_000_000, ignore=("local",))
        np.testing.assert_allclose(run.arrays["C"].reshape(exact.shape), exact, atol=1e-4)
        assert found["loads"](found[name], knobs) == loads, name
