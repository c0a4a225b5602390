"""The run of a benchmark of many contests."""

import argparse

import pytest

from bench import harness
from needle_runtime.errors import UsageError


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ([], ["conv one", "conv two", "lstm three"]),
        (["conv"], ["conv one", "conv two"]),
        (["one", "lstm"], ["conv one", "lstm three"]),
    ],
)
def test_a_case_is_run_if_its_name_has_any_of_the_parts(monkeypatch, tmp_path, parts, wanted):
    cases = dict.fromkeys(
        ["conv one", "conv two", "lstm three"], lambda options, folder: ([], None)
    )
    ran = []
    monkeypatch.setattr(harness.contests, "new_report", lambda *given: {"cases": []})
    monkeypatch.setattr(harness.contests, "run", lambda name, *given: ran.append(name) or {})
    monkeypatch.setattr(harness.tables, "print_case", lambda case: None)
    monkeypatch.setattr(harness.tables, "publish", lambda *given: None)
    options = argparse.Namespace(parts=parts, out=tmp_path)
    assert harness.run(options, "page", cases, [], table=lambda found: []) == 0
    assert ran == wanted and (tmp_path / "page.json").is_file()


def test_parts_of_no_name_are_refused(tmp_path):
    options = argparse.Namespace(parts=["none"], out=tmp_path)
    with pytest.raises(UsageError, match="no case name contains any of"):
        harness.run(options, "page", {"one": lambda *given: None}, [])
    assert not list(tmp_path.iterdir())
