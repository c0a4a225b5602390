"""Plugin of pytest that `tests.power.suite_mutations` runs a suite with. PYTEST_DONT_REWRITE.

A copy of this file lies in the environment that the suite runs in. The plugin orders the tests and
writes down how each went. With SUITE_REACHED set, every Python process there imports this file
first and appends to SUITE_REACHED which functions were called: a line of JSON for each test and
function, written at once, so that a process that is killed loses nothing. The test is the one in
PYTEST_CURRENT_TEST, which the processes that a test starts inherit.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

_REACHED = os.environ.get("SUITE_REACHED")
_ROOT = os.environ.get("SUITE_ROOT", "") + "/"
_seen: dict[int, Any] = {}  # code objects by id; keeping them keeps the ids unique


def _note(frame: Any, event: str, _: Any) -> None:
    code = frame.f_code
    if event != "call" or id(code) in _seen:
        return
    _seen[id(code)] = code
    if code.co_filename.startswith(_ROOT + "needle"):
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
        place = f"{code.co_filename[len(_ROOT) :]}:{code.co_firstlineno}"
        try:
            _append(str(_REACHED), [test, place])
        except OSError:  # the test forbids its process to open or write files
            pass


def _append(path: str, entry: object) -> None:
    # Opened each time: tests and what they run close descriptors that are not theirs.
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, json.dumps(entry).encode() + b"\n")
    finally:
        os.close(file)


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Order the tests as SUITE_PLAN says: `first` before the others, or `only` and no others."""
    plan = json.loads(Path(os.environ["SUITE_PLAN"]).read_text())
    first, only, unsound = (set(plan.get(key, ())) for key in ("first", "only", "unsound"))
    kept = [i for i in items if i.nodeid not in unsound and (not only or i.nodeid in only)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = sorted(kept, key=lambda item: item.nodeid not in first)


def pytest_runtest_logstart() -> None:
    _seen.clear()  # so that each test is recorded with all functions it calls


def pytest_runtest_logreport(report: Any) -> None:
    _append(os.environ["SUITE_REPORTS"], [report.nodeid, report.outcome, report.duration])


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _append(os.environ["SUITE_REPORTS"], [report.nodeid, report.outcome, 0.0])


if _REACHED:
    threading.setprofile(_note)
    sys.setprofile(_note)
