"""Makes the modules of gallery/ importable: they are scripts, which find each other beside them."""

import importlib
import sys

import pytest

from tests import ROOT


@pytest.fixture
def load(monkeypatch):
    """load(name) imports a module of gallery/, under its name there, for this test alone."""
    monkeypatch.syspath_prepend(str(ROOT / "gallery"))

    def imported(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    yield imported
    for name in ("common", "run_all"):
        sys.modules.pop(name, None)
