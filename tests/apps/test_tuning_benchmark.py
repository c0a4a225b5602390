"""The mechanics of comparing searches; the figures are not checked."""

import json

import pytest

import apps.contestants
from bench import cases, tuning
from needle_runtime.process import timing
from needle_runtime.process.child import ChildError

pytestmark = pytest.mark.slow

OPTIONS = ["--models", "mlp", "mlp-100", "--minutes", "0.01", "--threads", "2", "--rounds", "1"]


def found(seconds, failed=0):
    counts = {"trials": 9, "failed": failed, "rejected": {}, "tasks": 4, "tasks_searched": 3}
    return {"seconds": seconds, **counts}


@pytest.mark.parametrize(
    "arguments", [["--minutes", "0"], ["-m", "gpt"], ["--seed", "-1"], ["--out", "/dev/null/x"]]
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


def test_an_interrupted_run_goes_on_with_the_models_that_are_left(prepared, monkeypatch, capsys):
    """TVM's search gets as long as ours took; the page has each model once, and its command."""
    folder, _, _ = prepared
    given, interrupted = [], [2]

    def search(service, folder, subject, options, seconds):
        given.append((service, seconds))
        if len(given) > interrupted[0]:
            raise KeyboardInterrupt
        if service == "stock" and len(given) > 3:
            raise ChildError("stock: TVM cannot search this model")
        return found(70.0 if service == "ours" else 75.0, failed=2)

    def contestants(subject, folder, options):
        rules = subject.called(tuning.RULES, options.threads)
        return [rules, subject.called(tuning.OURS, options.threads)]

    monkeypatch.setattr(tuning, "search", search)
    monkeypatch.setattr(tuning, "entries", contestants)
    out = folder / "out"
    arguments = [*OPTIONS, "--block-seconds", "0.01", "--out", str(out)]
    assert tuning.main(arguments) == 130
    assert given[:2] == [("ours", 0.6), ("stock", 70.0)]
    interrupted[0] = 99
    assert tuning.main(arguments) == 0, capsys.readouterr().err
    assert [service for service, _ in given] == ["ours", "stock", "ours", "ours", "stock"]
    result = json.loads((out / "tuning.json").read_text())
    assert [case["case"] for case in result["cases"]] == ["mlp, batch 8", "mlp-100, batch 8"]
    page, printed = (out / "tuning.md").read_text(), capsys.readouterr().out
    assert "`python -m bench.tuning --models mlp mlp-100 --minutes 0.01" in page
    for text in (tuning.RULES, tuning.STOCK, "9 (2)", "3 of 4", "70 s", "75 s"):
        assert text in page
    assert "needle, searched" in printed and "9 (2)" in printed and "failed" in page
    assert "cannot search" in result["cases"][1]["searches"][tuning.STOCK]["error"]
    assert (out / "tuning.png").read_bytes().startswith(b"\x89PNG")
    assert tuning.main([*arguments, "--seed", "1"]) == 2
    assert "has results of other searches" in capsys.readouterr().err


# TVM's tuner takes more than a minute.
@pytest.mark.parametrize("service", [pytest.param("stock", marks=pytest.mark.long), "ours"])
def test_what_a_search_finds_computes_what_our_rules_do(prepared, service):
    folder, options, subject = prepared
    told = tuning.search(service, folder, subject, options, 0.6)
    assert told["trials"] >= 1 and told["failed"] <= told["trials"]
    assert told["seconds"] > 0.6 and 1 <= told["tasks_searched"] <= told["tasks"]
    json.dumps(told, allow_nan=False)
    rules, ours, stock = tuning.entries(subject, folder, options)
    outputs = timing.collect_outputs([rules, {"ours": ours, "stock": stock}[service]])
    apps.contestants.check_agreement(outputs)
