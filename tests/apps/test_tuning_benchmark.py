"""The mechanics of comparing searches; the figures are not checked."""

import json

import numpy as np
import pytest

import apps.contestants
from bench import cases, searches, tuning
from needle_tvm.process import timing

pytestmark = pytest.mark.slow

OPTIONS = ["-m", "mlp", "--trials", "2", "--stock-batch", "2", "--threads", "2"]


def search(name, seconds, distinct, **rejected):
    found = {"seconds": seconds, "search_seconds": None, "trials": 9, "rejected": rejected}
    found |= {"distinct": distinct, "tasks": 4, "tasks_searched": 3}
    return {"name": f"{name} 1", "kind": name, **found, "per_minute": 60 * distinct / seconds}


def test_both_search_first_and_last_equally_often():
    assert tuning.search_order(2) == [tuning.STOCK, tuning.OURS, tuning.OURS, tuning.STOCK]
    for count in range(1, 7):
        order = tuning.search_order(count)
        assert order.count(tuning.STOCK) == order.count(tuning.OURS) == count


def test_the_ratio_is_of_distinct_candidates_a_minute():
    found = [
        search(tuning.STOCK, 60, 10),
        search(tuning.OURS, 60, 30),
        search(tuning.OURS, 120, 40),
        search(tuning.STOCK, 30, 4),
    ]
    assert [one["per_minute"] for one in found] == [10, 30, 20, 8]
    ratio = tuning.throughput_ratio(found)
    assert ratio == {"median": pytest.approx(2.75), "lowest": 2, "highest": 3.75}
    assert tuning.throughput_ratio([search(tuning.STOCK, 9, 0), search(tuning.OURS, 9, 3)]) == {}


def test_the_page_names_what_failed_and_what_was_not_checked():
    report = {"model": "mlp", "stock_batch": 64}
    report["searches"] = [search(tuning.STOCK, 60, 10, failed=1), search(tuning.OURS, 30, 7)]
    report["ratio"] = tuning.throughput_ratio(report["searches"])
    assert tuning.table(report["searches"])[1:] == [
        ["TVM tune_relax 1", "60 s", "9", "1 failed", "10", "10.0", "3 of 4"],
        ["needle tuned 1", "30 s", "9", "none", "7", "14.0", "3 of 4"],
    ]
    notes = "\n".join(tuning.notes(report))
    assert "TVM's were not checked" in notes and "ours / TVM's: 1.40 (1.40-1.40" in notes


class Record:
    """The part of a TVM record that `_ran` reads."""

    def __init__(self, run_secs):
        self.run_secs = run_secs


def test_a_candidate_that_did_not_run_is_not_counted():
    given = [[1e-6], [1e-6, 2e-6], [1e10], [1e-6, 1e10], [], None]
    assert [searches._ran(Record(seconds)) for seconds in given] == [True, True, *[False] * 4]


def test_failures_are_told_as_tvms_logs_tell_them(tmp_path):
    log = tmp_path / "logs" / "task_0.log"
    log.parent.mkdir()
    log.write_text(
        "[INFO] Trial #1: Error in building:\nLocalBuilder: Timeout, killed after 30.0 seconds\n"
        "[INFO] Trial #2: Error in running:\nLocalRunner: An exception occurred\n"
        "[INFO] Trial #3: GFLOPs: 3\n"
    )
    found = searches._failures(tmp_path, 2)
    assert found == {"build timeout": 1, "run error": 1}
    assert searches._failures(tmp_path, 3) == {"failed": 3}  # one failure is in no log
    assert searches._failures(tmp_path / "none", 0) == {}


def test_candidates_are_told_apart_by_what_they_compile_to():
    pytest.importorskip("tvm", reason="needs the [tvm] extra")
    from needle_tvm._tvm.names import IRModule, Schedule, make_target, ms, te

    a = te.placeholder((64, 64), name="a")
    module = IRModule(
        {"main": te.create_prim_func([a, te.compute((64, 64), lambda i, j: a[i, j] + 1.0)])}
    )
    target = make_target({"kind": "llvm", "num-cores": 2})

    def record(factor, twice=False):
        schedule = Schedule(module)
        (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
        first, _ = schedule.get_loops(block)
        schedule.split(first, [None, factor])
        if twice:
            schedule.get_loops(block)  # another trace of the same module
        return ms.database.TuningRecord(
            schedule.trace, ms.database.Workload(module), [1e-6], target, None
        )

    records = [record(4), record(8), record(4), record(8, twice=True)]
    assert searches._distinct(records) == 2
    assert searches._distinct(records[:1]) == 1 and searches._distinct([]) == 0


@pytest.mark.parametrize(
    "arguments", [["--trials", "0"], ["-m", "gpt"], ["--searches", "-1"], ["--out", "/dev/null/x"]]
)
def test_bad_arguments_are_one_line(capsys, arguments):
    try:
        code = tuning.main(arguments)
    except SystemExit as error:
        code = error.code
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert arguments[0] in line or arguments[1] in line


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    pytest.importorskip("tvm", reason="needs the [tvm] extra")
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    options = tuning.make_parser().parse_args(OPTIONS)
    return tmp_path, options, cases.Case("mlp", 8).subject(tmp_path)


def test_a_whole_run_with_searches_that_are_left_out(prepared, monkeypatch, capsys):
    """Order, files and the contest, with the untuned artifact as the result of two searches."""
    folder, _, _ = prepared

    def found_nothing(name, out, subject, options, before):
        assert (name, options.seed + len(before)) == (tuning.OURS, len(before))
        subject.compile(2).export(out / "artifact")
        rejected = {"wrong": 1} if before else {}
        return {
            k: v for k, v in search(name, 60, 5, **rejected).items() if k not in ("name", "kind")
        }

    monkeypatch.setattr(tuning, "search_order", lambda count: [tuning.OURS] * count)
    monkeypatch.setattr(tuning, "search", found_nothing)
    out = folder / "out"
    given = ["--rounds", "1", "--block-seconds", "0.01", "--out", str(out)]
    assert tuning.main([*OPTIONS, *given]) == 0, capsys.readouterr().err
    result = json.loads((out / "tuning.json").read_text())
    assert [one["name"] for one in result["searches"]] == ["needle tuned 1", "needle tuned 2"]
    (case,) = result["cases"]
    names = [tuning.EAGER, tuning.RULE, "needle tuned 1", "needle tuned 2"]
    assert [entry["name"] for entry in case["contestants"]] == names
    assert set(case["ratios"]["needle tuned 1"]) == {*names} - {"needle tuned 1"}
    page = (out / "tuning.md").read_text()
    printed = capsys.readouterr().out
    for text in (*names, "1 wrong", "3 of 4", "its time / needle tuned 1"):
        assert text in page and text in printed
    assert (out / "tuning.png").read_bytes().startswith(b"\x89PNG")


# TVM's tuner takes more than a minute.
@pytest.mark.parametrize("name", [pytest.param(tuning.STOCK, marks=pytest.mark.long), tuning.OURS])
def test_what_a_search_finds_computes_what_the_eager_model_does(prepared, name):
    folder, options, subject = prepared
    entries = tuning.unsearched(subject, options.threads)
    found = tuning.search(name, folder / "0", subject, options, [])
    # A busy machine may have a candidate run into TVM's time limit.
    assert 1 <= found["trials"] <= 3
    failed = sum(found["rejected"].values())
    assert found["distinct"] <= found["trials"] - failed
    assert found["per_minute"] == pytest.approx(60 * found["distinct"] / found["seconds"])
    assert 1 <= found["tasks_searched"] <= found["tasks"]
    json.dumps(found, allow_nan=False)
    out = folder / "0"
    entries.append(tuning.contestant(name, f"{name} 1", out, subject, options.threads))
    outputs = timing.collect_outputs(entries)
    apps.contestants.check_agreement(outputs)
    assert set(outputs) == {tuning.EAGER, tuning.RULE, f"{name} 1"}


def test_a_found_model_that_is_wrong_fails_the_contest():
    outputs = {tuning.EAGER: [np.ones(3)], "TVM tune_relax 1": [np.full(3, 1.1)]}
    with pytest.raises(apps.contestants.Disagreement, match="TVM tune_relax 1"):
        apps.contestants.check_agreement(outputs)
