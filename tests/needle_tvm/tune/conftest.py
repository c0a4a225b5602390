"""A search in the tests' own process, which needs no import of TVM and xgboost of its own."""

import pytest

from needle_tvm.tune import search, session, space


class InThisProcess:
    """Stands in for the child process of `session.search`; its workers are processes as ever."""

    def __init__(self, name, function, setup, **options):
        self._answers = search.search(setup, iter(()))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._answers.close()

    def receive(self, what):
        return next(self._answers)


@pytest.fixture
def in_this_process(monkeypatch):
    """Search in this process, and breed candidates from a small population."""
    monkeypatch.setattr(session, "Child", InThisProcess)
    for name, value in (("_POPULATION", 8), ("_UNMEASURED", 4), ("_GENERATIONS", 1)):
        monkeypatch.setattr(space, name, value)
