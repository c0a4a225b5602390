"""Any request has one rightly named outcome, disturbs no other, and leaves nothing behind.

The tests find leftover processes by a mark in the environment, even those that left their parents,
groups and sessions.
"""

import os
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from needle_tvm.errors import TuningError
from needle_tvm.tune.measure import workers
from needle_tvm.tune.measure.workers import CRASH, ERROR, MEMORY, OK, TIMEOUT, Limits, Workers
from tests import ROOT
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")

SERVICE = "tests.needle_tvm.tune.measure.faulty_services:serve"
MARK = "NEEDLE_TEST_MARK"
SECONDS, PROMPT = 1.5, 2.0  # the limit; how long after it a process must be gone
LIMITS = Limits(seconds=SECONDS, memory=300 << 20)

# Fault, kind, start of the detail.
FAULTS = [
    ("abort", CRASH, "ended by SIGABRT\nthe last line"),
    ("segfault", CRASH, "ended by SIGSEGV"),
    ("exit_silently", CRASH, "ended with exit code 0 and no answer"),
    ("hang", TIMEOUT, "no answer within 1.5 s"),
    ("hang_holding_the_gil", TIMEOUT, "no answer within 1.5 s"),
    ("stop_itself", TIMEOUT, "no answer within 1.5 s"),
    ("block_all_signals", TIMEOUT, "no answer within 1.5 s"),
    ("leave_the_group", TIMEOUT, "no answer within 1.5 s"),
    ("eat_memory", MEMORY, ""),
    ("eat_memory_below", MEMORY, ""),
    ("eat_memory_at_once", MEMORY, "MemoryError"),
    ("fail", ERROR, "ValueError: first line"),
    ("exit_by_exception", ERROR, "SystemExit: 0"),
    ("no_json", ERROR, "TypeError: Object of type object is not JSON serializable"),
    ("no_json_at_depth", ERROR, "ValueError: Circular reference detected"),
    ("answer_by_hand", CRASH, "ended with exit code 0 and no answer"),
    ("fork_and_hang", TIMEOUT, "no answer within 1.5 s"),
    ("fork_and_answer", OK, ""),
    ("print_for_ever_below", OK, ""),
]


# Longer limits for memory, which a busy machine gives slowly; other requests end long before.
PATIENT = {"eat_memory": 15.0, "eat_memory_below": 15.0}


@pytest.fixture
def mark():
    return secrets.token_hex(8)


@pytest.fixture
def pool(mark):
    with Workers("pool", SERVICE, processes=4, limits=LIMITS, environment={MARK: mark}) as found:
        yield found
    assert not marked(mark)


def marked(mark):
    """All living processes of a pool, wherever they are in the process tree."""
    found = []
    for process in psutil.process_iter():
        try:
            dead = process.status() == psutil.STATUS_ZOMBIE
            if not dead and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def standing(pool):
    """The process ids of a pool's two permanent processes, guard and template."""
    guard = psutil.Process(pool._child.pid)
    (template,) = guard.children()
    return guard.pid, template.pid


def answers(count, **more):
    return [{"do": "answer", "value": number, **more} for number in range(count)]


TIMES = [2, pytest.param(20, marks=pytest.mark.long)]


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize(("fault", "kind", "detail"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_fault_is_named_and_spoils_no_other_request(pool, mark, fault, kind, detail, times):
    requests = [{"do": fault} if n % 2 else {"do": "answer", "value": n} for n in range(2 * times)]
    outcomes = {}
    limits = Limits(PATIENT.get(fault, SECONDS), LIMITS.memory)
    for number, outcome in pool.map(requests, limits):
        assert number not in outcomes, "reported twice"
        outcomes[number] = outcome
    assert sorted(outcomes) == list(range(2 * times))
    for number, outcome in outcomes.items():
        if number % 2:
            assert (outcome.kind, outcome.detail.startswith(detail)) == (kind, True), outcome
            assert outcome.seconds < limits.seconds + PROMPT
        else:
            assert outcome.ok and outcome.value["value"] == number, outcome
    assert {process.pid for process in marked(mark)} == set(standing(pool))


def test_the_mark_finds_what_hides(pool, mark):
    """The check above would see every grandchild, as it does while they live."""
    rounds = pool.map([{"do": "fork_and_hang"}, {"do": "answer"}], Limits(120.0, LIMITS.memory))
    assert next(rounds)[1].ok
    # Guard and template, the child, and three grandchildren: two started, one forked twice.
    assert until(lambda: len(marked(mark)) == 6, 60.0)
    rounds.close()
    assert until(lambda: not marked(mark))


def test_outcomes_come_as_they_end_and_slots_are_filled_at_once(pool):
    slow = {"do": "answer", "sleep": 1.0}
    order = [number for number, _ in pool.map([slow, *answers(20)])]
    assert order[-1] == 0 and sorted(order) == list(range(21))


def test_what_a_request_started_lives_as_long_as_the_request(pool):
    """An orphan of a running request is not taken for a leftover of another."""
    outcomes = dict(pool.map([{"do": "orphan"}, *answers(20, sleep=0.1)]))
    assert outcomes[0].value == "alive"
    assert all(outcomes[number].ok for number in range(1, 21))


def test_the_children_share_one_import(pool):
    """They have the same parent, and none is used twice."""
    outcomes = [outcome for _, outcome in pool.map([{"do": "family"}] * 10)]
    assert len({outcome.value[0] for outcome in outcomes}) == 10
    assert {outcome.value[1] for outcome in outcomes} == {standing(pool)[1]}


def test_many_quick_requests_leave_no_descriptors_behind(mark):
    with Workers("quick", SERVICE, processes=2, limits=Limits(20.0, 1 << 30)) as pool:
        list(pool.map(answers(10)))
        watched = [os.getpid(), *standing(pool)]
        before = [psutil.Process(pid).num_fds() for pid in watched]
        outcomes = dict(pool.map(answers(200)))
        assert [outcomes[n].value["value"] for n in range(200)] == list(range(200))
        assert [psutil.Process(pid).num_fds() for pid in watched] == before
        assert standing(pool) == tuple(watched[1:])
    assert not psutil.pid_exists(watched[1]) and not psutil.pid_exists(watched[2])


def test_a_child_holds_no_pipe_of_another(pool):
    (alone,) = [outcome.value for _, outcome in pool.map([{"do": "descriptors"}])]
    busy = [{"do": "answer", "sleep": 0.5}] * 3
    outcomes = dict(pool.map([*busy, {"do": "descriptors"}]))
    # 0, 1, 2, the pipe for its answer, and the folder that it lists.
    assert len(outcomes[3].value) == len(alone) == 5


def test_large_requests_and_answers(pool):
    sizes = [1 << 16, 5 << 20, 5 << 20, (1 << 20) + 1]
    requests = [{"do": "echo", "value": "x" * size} for size in sizes]
    for number, outcome in pool.map(requests, Limits(30.0, 1 << 30)):
        assert outcome.ok and outcome.value == requests[number]["value"]


def test_limits_hold_while_nobody_reads_the_outcomes(pool):
    """The template never waits for its parent, so unread answers delay no deadline."""
    requests = [{"do": "echo", "value": "x" * (2 << 20)}] * 3 + [{"do": "hang"}] * 2
    rounds = pool.map(requests)
    next(rounds)
    time.sleep(SECONDS + PROMPT + 1)
    kinds = {}
    for number, outcome in rounds:
        kinds[number] = outcome.kind
        assert outcome.seconds < SECONDS + PROMPT
    assert [kinds[3], kinds[4]] == [TIMEOUT, TIMEOUT]


def test_leaving_the_loop_early_ends_the_rest(pool, mark):
    for _, outcome in pool.map([{"do": "answer"}, {"do": "hang"}, {"do": "hang"}]):
        assert outcome.ok
        break
    assert not marked(mark)
    assert pool.call({"do": "answer", "value": 1}).value["value"] == 1


def test_what_requests_print_reaches_nobody(pool, capfd):
    assert pool.call({"do": "print_much"}, Limits(20.0, 1 << 30)).value == "printed"
    assert capfd.readouterr() == ("", "")


def test_temporary_files_go_with_the_request(pool):
    done = pool.call({"do": "litter"})
    assert done.ok and not Path(done.value).exists()
    folder = Path(done.value).parent.parent
    assert folder == pool._folder and list(folder.iterdir()) == []
    assert pool.call({"do": "litter", "hang": True}).kind == TIMEOUT
    assert list(folder.iterdir()) == []
    pool.close()
    assert not folder.exists()


def test_the_environment_reaches_the_requests(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    chosen = {"TVM_NUM_THREADS": "5"}
    with Workers("e", SERVICE, processes=1, limits=LIMITS, environment=chosen) as pool:
        for name, value in (*chosen.items(), ("OPENBLAS_NUM_THREADS", "3")):
            assert pool.call({"do": "environment", "name": name}).value == value
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    with Workers("e", SERVICE, processes=1, limits=LIMITS) as pool:
        assert pool.call({"do": "environment", "name": "OPENBLAS_NUM_THREADS"}).value is None


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("who", ["guard", "template"])
def test_a_template_that_fails_loses_no_request(pool, mark, monkeypatch, who, how, times):
    monkeypatch.setattr(workers, "_SILENT_SECONDS", 2.5)
    for _ in range(times):
        seen = {}
        for number, outcome in pool.map(answers(12, sleep=0.1), Limits(30.0, LIMITS.memory)):
            assert number not in seen, "reported twice"
            seen[number] = outcome
            if len(seen) == 3:
                guard, template = standing(pool)
                os.kill(guard if who == "guard" else template, how)
        assert sorted(seen) == list(range(12))
        crashed = [outcome for outcome in seen.values() if not outcome.ok]
        if (who, how) == ("guard", signal.SIGSTOP):
            assert not crashed  # a stopped guard does not stop the work
            os.kill(guard, signal.SIGCONT)
        else:
            assert 0 < len(crashed) <= 4 and standing(pool) != (guard, template)
            assert {outcome.kind for outcome in crashed} == {CRASH}
            reason = "SIGKILL" if how == signal.SIGKILL else "no answer to 'a request'"
            assert all(reason in outcome.detail for outcome in crashed), crashed
        assert {process.pid for process in marked(mark)} == set(standing(pool))


@pytest.mark.parametrize("fault", ["kill_the_template", "stop_the_template"])
def test_a_request_that_fells_its_template(pool, mark, monkeypatch, fault):
    monkeypatch.setattr(workers, "_SILENT_SECONDS", 2.5)
    requests = [*answers(3), {"do": fault}, *answers(6, sleep=1.0)]
    outcomes = dict(pool.map(requests, Limits(30.0, LIMITS.memory)))
    assert sorted(outcomes) == list(range(10)) and outcomes[3].kind == CRASH
    assert all(outcomes[n].ok for n in range(7, 10)), "what had not begun is done by a new one"
    assert {process.pid for process in marked(mark)} == set(standing(pool))


def test_a_module_that_cannot_be_imported_is_named(tmp_path):
    cases = {
        "broken.py": ("import no_such_module", "No module named 'no_such_module'"),
        "empty.py": ("", "has no function 'serve'"),
        "ending.py": ("import os; os._exit(3)", "ended with exit code 3"),
        "threaded.py": (
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
            "def serve(request): return 1\n",
            "started threads",
        ),
    }
    for name, (text, message) in cases.items():
        (tmp_path / name).write_text(text)
        function = f"{tmp_path / name}:serve"
        with Workers("w", function, processes=1, limits=LIMITS) as pool:
            with pytest.raises(TuningError, match=message):
                pool.call({})
            with pytest.raises(TuningError, match=message):  # and again with a new template
                pool.call({})


def test_an_import_that_never_ends_is_named(tmp_path, mark, monkeypatch):
    monkeypatch.setattr(workers, "_START_SECONDS", 1.0)
    (tmp_path / "slow.py").write_text("import ctypes\nctypes.PyDLL(None).sleep(60)\n")
    function, environment = f"{tmp_path / 'slow.py'}:serve", {MARK: mark}
    with Workers("w", function, processes=1, limits=LIMITS, environment=environment) as pool:
        with pytest.raises(TuningError, match="no answer to 'start' within 1 s"):
            pool.call({})
        assert not marked(mark)


def test_bad_arguments_are_named(pool):
    for seconds, memory in ((0, 1), (-1.0, 1), (float("nan"), 1), (float("inf"), 1), (1.0, 0)):
        with pytest.raises(ValueError, match=r"(seconds|memory)=.*: must be positive and finite"):
            Limits(seconds, memory)
    with pytest.raises(ValueError, match="processes=0: must be at least 1"):
        Workers("w", SERVICE, processes=0, limits=LIMITS)
    with pytest.raises(TypeError, match="request 1 is not a JSON object"):
        pool.map([{"do": "answer"}, {"do": object()}])
    rounds = pool.map(answers(2))
    next(rounds)
    with pytest.raises(ValueError, match="another map is under way"):
        pool.map(answers(1))
    rounds.close()
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        pool.map(answers(1))
    pool.close()  # once more does no harm


def test_no_request_is_no_work(pool):
    assert list(pool.map([])) == []


PARENT = """
    import signal, sys, time
    from needle_tvm.tune.measure.workers import Limits, Workers

    signal.signal(signal.SIGINT, signal.default_int_handler)
    function, fault = sys.argv[1:]
    with Workers("w", function, processes=2, limits=Limits(60.0, 1 << 30)) as pool:
        for number, outcome in pool.map([{"do": "answer"}] + [{"do": fault}] * 3):
            sys.stdout.write(f"{number}\\n")
            sys.stdout.flush()
"""


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
@pytest.mark.parametrize("when", ["import", "requests"])
def test_nothing_outlives_the_parent(tmp_path, mark, how, when, times):
    service = tmp_path / "slow.py"
    service.write_text("import ctypes\nctypes.PyDLL(None).sleep(60)\ndef serve(r): pass\n")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    function = f"{service}:serve" if when == "import" else SERVICE
    # The parent, the folder's reaper, guard and template; with requests also two children and
    # three grandchildren of each.
    expected = 4 if when == "import" else 12
    for number in range(times):
        parent = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PARENT), function, "fork_and_hang"],
            env={**os.environ, MARK: mark, "TMPDIR": str(temporary)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            assert until(lambda: len(marked(mark)) >= expected), marked(mark)
            assert list(temporary.iterdir())
            time.sleep(0.05 * number)  # at another moment each time
            parent.send_signal(how)
            parent.wait(timeout=PATIENCE)
            assert until(lambda: not marked(mark)), marked(mark)
            assert until(lambda: not list(temporary.iterdir()))
        finally:
            parent.kill()
            parent.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("moment", [0.1, 0.3, 0.6, 1.0, 1.5])
def test_nothing_outlives_a_parent_killed_while_tvm_is_imported(tmp_path, mark, moment):
    service = tmp_path / "imports_tvm.py"
    service.write_text("import time\nimport tvm\ndef serve(request): time.sleep(60)\n")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), f"{service}:serve", "hang"],
        env={**os.environ, MARK: mark, "TMPDIR": str(temporary)},
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        time.sleep(moment)
        assert marked(mark)
    finally:
        parent.kill()
        parent.wait()
    assert until(lambda: not marked(mark)), marked(mark)
    assert until(lambda: not list(temporary.iterdir()))
