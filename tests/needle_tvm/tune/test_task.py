"""The budget goes to the task that lowers the model's time fastest, and is never exceeded."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from needle_tvm.errors import StageError
from needle_tvm.tune.options import Options
from needle_tvm.tune.task import Task, batch_size, pick

SECONDS = st.floats(1e-7, 1.0)


def task(name, calls=1, best=None, **options):
    return Task(name, calls, None, "", best_seconds=best, **options)


def picked(*tasks):
    found = pick(tasks)
    return found and found.name


def test_what_has_no_right_candidate_comes_first():
    assert picked(task("slow", 1, 9.0), task("none")) == "none"


def test_calls_count():
    assert picked(task("once", 1, 2.0), task("thrice", 3, 2.0)) == "thrice"


def test_what_is_exhausted_is_not_picked():
    tasks = [task("a", 9, 9.0, exhausted=True), task("b", 1, 1e-6)]
    assert picked(*tasks) == "b"
    assert picked(*tasks[:1]) is None and picked() is None


def test_batches_without_gain_lose_their_claim():
    """A task whose batches bring no gain gives way to its equal."""
    stuck, moving = task("stuck", best=1.0), task("moving", best=1.0)
    moving.saw(0.9)
    for each in (stuck, moving):
        each.learn(1.0)
    assert picked(stuck, moving) == "moving"
    for _ in range(50):
        stuck.learn(1.0)
    assert stuck.gain > 0, "nothing is given up for ever"


@given(SECONDS, st.lists(SECONDS, max_size=20))
def test_a_claim_stays_sane(first, batches):
    one = task("one", 2, first)
    for best in batches:
        before = one.best_seconds
        one.saw(best)
        one.learn(before)
        assert one.best_seconds == min(before, best)
        assert 0 < one.saving <= 1
        assert one.gain >= 0 and math.isfinite(one.gain)


@given(st.one_of(st.none(), st.integers(1, 10_000)), st.integers(1, 200))
def test_a_batch_fits_the_budget(trials, tasks):
    size = batch_size(trials, tasks)
    assert 1 <= size <= 16
    assert trials is None or size <= trials


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (Options(-1), "trials=-1"),
        (Options(True), "trials=True"),
        (Options(1.5), "trials=1.5"),
        (Options(1, minutes=0), "minutes=0"),
        (Options(1, minutes=math.nan), "minutes=nan"),
        (Options(1, minutes=math.inf), "minutes=inf"),
        (Options(1, minutes="3"), "minutes='3'"),
        (Options(1, seed=-1), "seed=-1"),
        (Options(1, seed=2**30), "seed="),
        (Options(1, cluster=""), "cluster=''"),
        (Options(cluster="tcp://localhost:8786"), "needs a budget"),
    ],
)
def test_bad_options_are_refused(options, named):
    with pytest.raises(StageError, match=named):
        options.check("tuned")


def test_only_the_tuned_stage_searches():
    for options in (Options(3), Options(minutes=1)):
        with pytest.raises(StageError, match="only stage 'tuned'"):
            options.check("fused")
        options.check("tuned")
    Options().check("noopt")
    with pytest.raises(StageError, match="'bogus': must be one of"):
        Options().check("bogus")
