"""A search that a user starts from Python shows its progress on stderr, unless told not to."""

import numpy as np
import pytest

import needle_tvm
from needle_tvm.tune import session
from tests.needle_tvm.conftest import make_mlp, tensor


@pytest.fixture(autouse=True)
def search(tmp_path, monkeypatch):
    """A search that finds nothing, in no time."""

    def tune(module, spec, options, progress=None):
        if progress is not None:
            progress("tuned: searching nothing")
        return module, []

    monkeypatch.setattr(session, "tune", tune)
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def compiling(capfd):
    """Compiles a model with keywords; returns the lines that came on stderr."""
    model, x = make_mlp(4, 3), tensor(np.ones((2, 4), np.float32))

    def compile(**keywords):
        needle_tvm.compile(model, x, **keywords)
        out, err = capfd.readouterr()
        assert out == ""
        return err.splitlines()

    return compile


SHOWN = ["tuned: compiling", "tuned: searching nothing", "tuned: comparing with the model"]


def test_a_search_is_shown_and_what_is_cached_is_not(compiling):
    assert compiling(trials=3) == SHOWN
    assert compiling(trials=3) == []
    assert compiling(minutes=0.5) == SHOWN
    assert compiling(minutes=0.5, recompile=True, progress=True) == SHOWN


def test_nothing_else_is_shown(compiling):
    assert compiling() == []
    assert compiling(recompile=True, progress=True) == []
    assert compiling(trials=3, progress=False) == []


def test_a_function_takes_the_place_of_what_is_shown(compiling):
    said = []
    assert compiling(trials=3, progress=said.append) == []
    assert said == SHOWN
    assert compiling(progress=said.append) == []
    assert said[3:] == [SHOWN[0], SHOWN[2]]
