"""The schedules that the course's GPU pages teach are the registry's."""

import contextlib
import io

import pytest

pytest.importorskip("tvm", reason="the course needs the [tvm] extra")

from docs.guide import notebooks
from kernel_lab import registry
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
