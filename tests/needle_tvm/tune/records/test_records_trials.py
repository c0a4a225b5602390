"""Trials: a session's spent budget survives its process and damage; stores of older schemas."""

import errno
import math
import os
import signal

import pytest

from needle_tvm.errors import RecordsError
from needle_tvm.tune.records import rows
from needle_tvm.tune.records.rows import GATED, MEASURED, REJECTED, Trial
from needle_tvm.tune.records.store import Store
from tests.needle_tvm.tune.records.record_writer import (
    SPENT,
    add_trial,
    make_record,
    make_trial,
    make_workload,
    session_of,
)
from tests.needle_tvm.tune.records.test_records_damage import contents, rows_of
from tests.needle_tvm.tune.records.test_records_store import Killed, run_beside

SESSION = session_of("writer")


def test_a_trial_is_kept_whole_and_counts_once(store, tmp_path):
    assert store.spent(SESSION) == (0, 0.0)
    for _ in range(2):  # writing a row again changes nothing
        for i in range(6):
            add_trial(store, "writer", i)
        add_trial(store, "another", 0)
        assert store.spent(SESSION) == (6, 6 * SPENT)
        assert contents(store) == rows_of("writer", 6) | rows_of("another", 1)
    with Store(tmp_path / "merged") as other:
        for i in range(3, 8):
            add_trial(other, "writer", i)
        for _ in range(2):
            other.merge(store)
        assert other.spent(SESSION) == (8, 8 * SPENT)
    record = rows.name(make_trial("writer", 0)[3])
    workload, module, key, kept, _, _ = make_trial("writer", 0)
    longer = [Trial(SESSION, record, 1.0, "seed")]  # another trial of the same record
    store.add([kept], workload=workload, module=module, key=key, trials=longer)
    assert store.spent(SESSION) == (6, 5 * SPENT + 1.0)
    counts = store.remove([record])
    assert (counts["records"], counts["trials"]) == (1, 2)
    assert store.spent(SESSION) == (5, 5 * SPENT)


def test_a_trial_that_cannot_be_written_whole_is_not_written(store, monkeypatch):
    add_trial(store, "writer", 0)
    before = contents(store)

    def failing(descriptor, data, offset, write=os.pwrite):
        write(descriptor, data[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "pwrite", failing)
    with pytest.raises(RecordsError, match="nothing was written"):
        add_trial(store, "writer", 1)
    assert contents(store) == before


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"session": "my session"}, "session 'my session': must be 8 to 64 hex digits"),
        ({"seconds": -1.0}, "seconds -1.0: must be a float from 0"),
        ({"seconds": math.nan}, "seconds nan"),
        ({"seconds": math.inf}, "seconds inf"),
        ({"seconds": 1}, "seconds 1: must be a float"),
        ({"source": "luck"}, "source 'luck': must be one of search, rule, seed"),
    ],
)
def test_a_bad_trial_is_refused_by_name(changed, said):
    values = {"session": SESSION, "record": "0" * 64, "seconds": 1.0, "source": "rule"}
    with pytest.raises(ValueError, match=said):
        Trial(**{**values, **changed})


def test_what_is_about_another_record_is_refused(store):
    workload, module, key, _, verdicts, trials = make_trial("writer", 1)
    of = {"workload": workload, "module": module, "key": key}
    for about in ({"verdicts": verdicts}, {"trials": trials}):
        with pytest.raises(ValueError, match="another record"):
            store.add([make_record(workload, "other")], **of, **about)
    assert contents(store) == {}


def test_what_was_tried_is_known_with_its_strongest_state(store):
    workload, module, key = make_workload(0)
    of = {"workload": workload, "module": module, "key": key}
    for i, (run_secs, states) in enumerate(
        [([3.0], []), ([2.0], [GATED]), ([1.0], [GATED, REJECTED]), (None, [REJECTED])]
    ):
        record = rows.measurement(workload, [i], run_secs, [], host="first")
        again = rows.measurement(workload, [i], run_secs and [5.0], [], host="again")
        store.add([record, again], **of)
        for state in states:
            store.decide([rows.name(record)], state)
    assert store.known([rows.name(workload)]) == {
        "[0]": (MEASURED, 3.0),
        "[1]": (GATED, 2.0),
        "[2]": (REJECTED, 1.0),
        "[3]": (REJECTED, None),
    }
    assert store.known([rows.name(make_workload(1)[0])]) == store.known([]) == {}


def test_a_trial_outlives_a_kill_right_after_its_commit(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from record_writer import *\n"
        "add_trial(Store(sys.argv[1]), 'writer', 0)\n"
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    with pytest.raises(Killed):
        run_beside(code, tmp_path / "records")
    with Store(tmp_path / "records", report=pytest.fail) as store:
        assert store.spent(SESSION) == (1, SPENT)
