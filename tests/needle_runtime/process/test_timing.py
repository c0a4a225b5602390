"""Contests: correct numbers, outputs first, and no process left behind however they end."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from needle_runtime.process import child, timing
from needle_runtime.process.threads import THREAD_VARIABLES
from needle_runtime.process.timing import Contestant, Result, Spread, TimingError, contest, ratio
from tests.waiting import PATIENCE, until

FACTORIES = Path(__file__).with_name("timing_factories.py")
QUICK = {"rounds": 3, "block_seconds": 0.02, "idle_seconds": 0.0, "warmup_seconds": 0.01}


def contestant(function, name=None, env=None, threads=None, **kwargs):
    return Contestant(name or function, f"{FACTORIES}:{function}", kwargs, env or {}, threads)


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_times_are_those_of_the_calls():
    seen = []
    slow, fast = contest(
        [
            contestant("sleeper", "slow", seconds=0.004),
            contestant("sleeper", "fast", seconds=0.001),
        ],
        progress=lambda done, total, text: seen.append((done, total, text)),
        **QUICK,
    )
    assert (slow.name, fast.name) == ("slow", "fast")
    for result, least in ((slow, 0.004), (fast, 0.001)):
        assert len(result.seconds) == QUICK["rounds"]
        assert result.calls >= 5 * QUICK["rounds"]
        assert all(seconds >= least for seconds in [result.first, *result.seconds])
    faster = ratio(fast, slow)
    assert faster.lower <= faster.median <= faster.upper
    assert faster.median > 1
    dones, totals = [done for done, _, _ in seen], {total for _, total, _ in seen}
    assert dones == sorted(dones)
    assert totals == {dones[-1]}


def test_the_order_moves_on_each_round():
    order = []
    contest(
        [contestant("sleeper", name) for name in "abc"],
        progress=lambda done, total, text: order.append(text[0]) if "round" in text else None,
        **QUICK,
    )
    assert "".join(order) == "abcbcacab"


def test_a_call_longer_than_the_block_is_made_once():
    (result,) = contest([contestant("sleeper", seconds=0.05)], **QUICK)
    assert result.calls == QUICK["rounds"]


def test_outputs_are_checked_before_anything_is_timed():
    def check(outputs):
        np.testing.assert_array_equal(outputs["one"][0], outputs["two"][0])

    started = []
    with pytest.raises(AssertionError):
        contest(
            [contestant("sleeper", "one"), contestant("sleeper", "two", value=2.0)],
            check=check,
            progress=lambda done, total, text: started.append(text),
            **QUICK,
        )
    assert started == ["one: starting", "two: starting"]


def test_outputs_keep_shape_and_dtype():
    outputs = timing.collect_outputs([contestant("empty_outputs")])["empty_outputs"]
    assert [(array.shape, array.dtype.name) for array in outputs] == [
        ((0, 4), "float32"),
        ((), "int64"),
    ]


def test_prints_do_not_reach_the_protocol():
    (result,) = contest([contestant("noisy")], **QUICK)
    assert result.calls >= 15
    assert result.median > 0


def test_threads_and_environment_reach_the_child():
    names = [*THREAD_VARIABLES, "MY_OWN"]
    env = {"MY_OWN": "9", THREAD_VARIABLES[-1]: "1"}
    outputs = timing.collect_outputs([contestant("environment", names=names, env=env, threads=3)])
    assert outputs["environment"][0].tolist() == [3, 3, 3, 3, 1, 9]
    assert "MY_OWN" not in os.environ


def test_a_factory_in_a_module_the_parent_can_import(tmp_path, monkeypatch):
    (tmp_path / "a_module_beside.py").write_text(
        "import numpy as np\ndef make(): return (lambda: None), (lambda: [np.arange(3)])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    outputs = timing.collect_outputs([Contestant("beside", "a_module_beside:make")])
    assert outputs["beside"][0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("fails", "who: ValueError: the weights are gone"),
        ("dies", "who: its process was ended by SIGABRT"),
        ("objects", "who: TypeError: an output has dtype object: outputs must be numeric arrays"),
        ("absent", f"who: ValueError: {FACTORIES} has no function 'absent'"),
        ("not_a_function", f"who: ValueError: {FACTORIES} has no function 'not_a_function'"),
    ],
)
def test_a_failure_names_the_contestant_and_the_cause(factory, message):
    with pytest.raises(TimingError) as caught:
        contest([contestant("sleeper", "fine"), contestant(factory, "who")], **QUICK)
    assert str(caught.value) == message


def test_a_failure_shows_the_child_s_stderr():
    with pytest.raises(TimingError) as caught:
        contest([contestant("fails")], **QUICK)
    assert "what led to it" in caught.value.details
    assert "Traceback" in caught.value.details


def test_a_failure_on_the_way_is_reported(tmp_path):
    with pytest.raises(TimingError, match="fails_later: RuntimeError: broke on the way"):
        contest([contestant("fails_later", marker=str(tmp_path / "marker"))], **QUICK)


def test_a_contestant_that_fails_may_be_left_out(tmp_path):
    errors = []

    def leave_out(error):
        errors.append(str(error))
        return error.child != "sleeper"

    later = contestant("fails_later", marker=str(tmp_path / "marker"))
    checked = []
    results = contest(
        [contestant("fails", "early"), contestant("sleeper"), later, contestant("sleeper", "last")],
        leave_out=leave_out,
        check=lambda outputs: checked.extend(outputs),
        **QUICK,
    )
    assert [result.name for result in results] == ["sleeper", "last"]
    assert all(len(result.seconds) == QUICK["rounds"] for result in results)
    assert checked == ["sleeper", "fails_later", "last"]
    assert [error.partition(":")[0] for error in errors] == ["early", "fails_later"]
    with pytest.raises(TimingError, match="the weights are gone"):  # none would be left
        contest([contestant("fails", "only")], leave_out=lambda error: True, **QUICK)


def test_contestants_that_tune_themselves_start_alone_after_the_others(tmp_path):
    entries = [contestant("leaves_a_mark", name, folder=str(tmp_path)) for name in "abcd"]
    results = contest(entries, alone=("a", "c"), **QUICK)
    assert [result.name for result in results] == list("abcd")
    marks = {result.name: int(result.outputs[0]) for result in results}
    assert (marks["a"], marks["c"]) == (2, 3) and max(marks["b"], marks["d"]) <= 1


def test_a_device_clock_is_read_in_every_block():
    clocked, broken, plain = contest(
        [
            contestant("clocked", "a", seconds=2.0),
            contestant("clocked", "b"),
            contestant("sleeper"),
        ],
        **QUICK,
    )
    assert clocked.device == [2.0] * QUICK["rounds"]
    assert clocked.to_dict()["device"]["median"] == 2.0
    assert broken.device == plain.device == [] and "device" not in plain.to_dict()


def test_times_are_of_one_repeat():
    (once,) = contest(
        [Contestant("a", f"{FACTORIES}:sleeper", {"seconds": 0.02}, repeats=4)], **QUICK
    )
    assert 0.005 <= once.median < 0.02


@pytest.mark.parametrize("name", ["no_colon", "missing_file.py:make", ":make", "json:"])
def test_a_malformed_factory_is_named(name):
    with pytest.raises(TimingError, match=name.partition(":")[0] or "module:function"):
        contest([Contestant("who", name)], **QUICK)


def test_a_file_is_executed_once_and_shadows_no_module(tmp_path):
    path = tmp_path / "json.py"
    path.write_text("made = []\ndef make(): made.append(1); return made\n")
    assert child.load_function(f"{path}:make")() == [1]
    assert child.load_function(f"{path}:make")() == [1, 1]
    assert hasattr(sys.modules["json"], "dumps")


def test_a_silent_child_meets_the_deadline_and_its_group_is_killed(tmp_path):
    pids = tmp_path / "pids"
    with pytest.raises(TimingError, match=r"hangs: no answer to 'start' within 8 s"):
        contest([contestant("hangs", pids=str(pids))], timeout=8.0, **QUICK)
    assert until(lambda: not any(alive(pid) for pid in pids.read_text().split()))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, uses prctl")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_child_outlives_its_parent(tmp_path, how):
    pids = tmp_path / "pids"
    script = textwrap.dedent(
        f"""
        from needle_runtime.process.timing import Contestant, contest
        contest([Contestant("hangs", {f"{FACTORIES}:hangs"!r}, {{"pids": {str(pids)!r}}})])
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    try:
        assert until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        leader, grandchild = pids.read_text().split()
        parent.send_signal(how)
        parent.wait(timeout=PATIENCE)
        assert until(lambda: not alive(leader))
        if how == signal.SIGINT:  # the parent could end the whole group
            assert until(lambda: not alive(grandchild))
        elif alive(grandchild):
            os.kill(int(grandchild), signal.SIGKILL)
    finally:
        parent.kill()
        parent.wait()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"contestants": []}, "at least one"),
        ({"contestants": [Contestant("a", "x:y"), Contestant("a", "x:z")]}, "distinct"),
        ({"rounds": 0}, "rounds=0"),
        ({"min_calls": 0}, "min_calls=0"),
        ({"block_seconds": 0.0}, "block_seconds=0.0"),
        ({"timeout": float("nan")}, "timeout=nan"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    arguments = {"contestants": [Contestant("a", "x:y")], **arguments}
    with pytest.raises(ValueError, match=message):
        contest(arguments.pop("contestants"), **arguments)


def test_ratio_pairs_the_rounds():
    ours, peer = Result("ours", [], [1.0, 2.0, 4.0]), Result("peer", [], [2.0, 6.0, 16.0])
    assert ratio(ours, peer) == Spread(3.0, 2.5, 3.5)
    with pytest.raises(ValueError, match="one contest"):
        ratio(ours, Result("short", [], [1.0]))


def test_difference_pairs_the_rounds():
    rng = np.random.default_rng(0)
    one, other = (Result(name, [], rng.random(9).tolist()) for name in ("one", "other"))
    found = timing.difference(one, other)
    pairs = np.array(one.seconds) - np.array(other.seconds)
    expected = np.percentile(pairs, [25, 50, 75])
    np.testing.assert_allclose([found.lower, found.median, found.upper], expected)
    with pytest.raises(ValueError, match="one contest"):
        timing.difference(one, Result("short", [], [1.0]))


def test_spread_agrees_with_numpy():
    values = np.random.default_rng(0).random(17).tolist()
    spread = Spread.of(values)
    np.testing.assert_allclose(
        [spread.lower, spread.median, spread.upper], np.percentile(values, [25, 50, 75])
    )
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="at least one"):
        Spread.of([])


def test_timing_and_threads_need_neither_needle_nor_tvm():
    script = (
        "import sys, needle_runtime.process.timing, needle_runtime.process.threads\n"
        "print([m for m in ('needle', 'tvm', 'torch') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
