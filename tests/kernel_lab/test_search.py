"""The search rungs find right schedules, and only reject candidates that do not work."""

import numpy as np
import pytest

from kernel_lab import build, registry, run, search
from kernel_lab.errors import LabError
from kernel_lab.run import Request
from kernel_lab.workload import Case
from needle_runtime.memory import aligned_copy

pytest.importorskip("tvm", reason="the lab needs the [tvm] extra")

WITH_SPACE = [ladder for ladder in registry.LADDERS.values() if ladder.space is not None]
SMALL = {
    "gemm": {"M": 20, "N": 40, "K": 12},
    "conv1d": {"M": 100, "N": 9},
    "depthwise": {"B": 1, "C": 2, "H": 9, "W": 20, "K": 3},
}


@pytest.fixture(scope="module")
def target():
    return build.make_target("cpu")


def silent(done, total, text):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("ladder", WITH_SPACE, ids=lambda ladder: ladder.workload.name)
def test_the_own_search_finds_a_right_candidate(ladder, target):
    workload = ladder.workload
    size = workload.size("cpu", SMALL[workload.name])
    case = Case(size, build.processor(target))
    found = search.own(ladder.space, workload, case, target, 3, silent)
    assert found.notes["candidates"] == 3 and found.notes["rejected"] < 3
    assert dict(found.notes["knobs"]) in [dict(knobs) for knobs in ladder.space.knobs(case)]
    from needle_tvm._tvm.names import tvm

    inputs = [aligned_copy(array) for array in workload.inputs(size, seed=5)]
    out = aligned_copy(np.zeros(workload.shapes(size)[-1], np.float32))
    tensors = [tvm.runtime.from_dlpack(array) for array in (*inputs, out)]
    build.compile_module(found.module, target)["main"](*tensors)
    np.testing.assert_allclose(out, workload.reference(size, inputs), rtol=1e-4, atol=1e-4)


def planted(knobs):
    """A space over vector_add with a right, a wrong and an impossible candidate."""
    workload = registry.workload("vector_add")

    def define(case, knobs):
        from needle_tvm._tvm.names import te

        a, b, c = workload.define(case)
        if knobs["which"] == "wrong":
            c = te.compute(c.shape, lambda i: a[i] - b[i], name="c")
        return [a, b, c]

    def schedule(sch, case, knobs):
        if knobs["which"] == "impossible":
            sch.vectorize(sch.get_sblock("nothing of that name"))

    return workload, search.Space(define, schedule, lambda case: [{"which": k} for k in knobs])


def test_wrong_and_impossible_candidates_are_rejected(target):
    workload, space = planted(["wrong", "impossible", "right"])
    case = Case(workload.size("cpu", {"N": 40}), build.processor(target))
    found = search.own(space, workload, case, target, 3, silent)
    assert found.notes["knobs"] == {"which": "right"}
    assert found.notes["rejected"] == 2
    seconds = {knobs["which"]: seconds for knobs, seconds in found.tried}
    assert seconds.pop("right") > 0 and seconds == {"wrong": None, "impossible": None}


def test_no_working_candidate_is_an_error(target):
    workload, space = planted(["wrong", "impossible"])
    case = Case(workload.size("cpu", {"N": 40}), build.processor(target))
    with pytest.raises(LabError, match="none of 2 candidates worked"):
        search.own(space, workload, case, target, 5, silent)


def test_a_candidate_that_ends_its_process_is_rejected_and_the_next_one_judged(target, tmp_path):
    workload, space = planted(["right"])
    case = Case(workload.size("cpu", {"N": 40}), build.processor(target))
    judge = search._Judge(search._setup(workload, case, tmp_path, 0), 1)
    good = tmp_path / "good.so"
    build.write_library(space.module(case, {"which": "right"}), target, good)
    try:
        with pytest.raises(LabError):
            judge.seconds(tmp_path / "missing.so")
        assert judge.seconds(good) > 0
    finally:
        judge.close()


@pytest.mark.slow
def test_trials_add_the_two_search_rungs():
    request = Request(
        "depthwise", size=SMALL["depthwise"], rungs=["naive", "pad"], trials=2, rounds=1
    )
    result = run.run(request)
    own, tuned = result.rungs[-2:]
    assert (own.name, tuned.name) == (run.OWN_SEARCH, run.META_SCHEDULE)
    for entry in (own, tuned):
        assert entry.kind == "search" and entry.after == "pad"
        assert entry.check.error <= entry.check.tolerance
        assert entry.notes["candidates"] == 2 and entry.script
