"""The ways to call a model: fresh inputs, and the same outputs however it is called."""

import numpy as np
import pytest

from apps import contestants, models
from apps.contestants import SETS
from apps.subjects import Subject
from bench import cases
from needle_runtime.process.child import load_function


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.arange(6, dtype=np.int64).reshape(1, 6),
        np.float32(3).reshape(()),
        np.zeros((0, 4), np.float32),
    ],
)
def test_fresh_arrays_are_different_arrays_of_the_same_elements(array):
    sets = [given for (given,) in contestants.fresh([array])]
    assert len(sets) == SETS
    np.testing.assert_array_equal(sets[0], array)
    for one in sets:
        assert (one.shape, one.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(np.sort(one.ravel()), np.sort(array.ravel()))
        others = [other for other in (array, *sets) if other is not one]
        assert not any(np.shares_memory(one, other) for other in others)
    if array.size >= SETS:
        assert len({one.tobytes() for one in sets}) == SETS


def test_calls_take_the_sets_in_turn():
    seen = []
    call, outputs = contestants.calls(lambda x: seen.append(x) or np.array([x]), [1, 2, 3])
    assert [int(call()[0]) for _ in range(5)] == [1, 2, 3, 1, 2]
    assert seen == [1, 2, 3, 1, 2]
    assert [int(x[0]) for x in outputs()] == [1, 2, 3]


@pytest.fixture
def subject(tmp_path, monkeypatch):
    """A subject of two inputs and two outputs."""
    pytest.importorskip("tvm", reason="needs the [tvm] extra")
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "files"
    folder.mkdir()
    return cases.Case("two", 3, drawn=models.tiny_model(2)).subject(folder)


def as_array(result):
    """An array of what a call returns: a Tensor, an array, a tvm_ffi tensor."""
    return result.numpy() if hasattr(result, "numpy") else np.from_dlpack(result)


def test_every_way_to_call_a_model_gives_what_it_computes(subject):
    entries = [subject.eager(1), *subject.ways(cases.TUNED, 1)]
    assert len({entry.name for entry in entries}) == len(entries) == 4
    exact = subject.exact()
    assert len(exact) == SETS * 2
    assert len({array.tobytes() for array in exact}) == len(exact)
    for entry in entries:
        call, outputs = load_function(entry.factory)(**entry.kwargs)
        found = outputs()
        assert len(found) == len(exact)
        for have, want in zip(found, exact, strict=True):
            np.testing.assert_allclose(have, want, atol=1e-5, err_msg=entry.name)
        first, second = (as_array(call()[0]) for _ in range(2))
        assert not np.array_equal(first, second), entry.name


def test_a_process_gets_the_executable_from_the_cache(subject, monkeypatch):
    import needle_tvm

    entry = subject.called(cases.TUNED, 1)
    served = []
    compile_model = needle_tvm.compile

    def watched(*inputs, **choices):
        served.append(compile_model(*inputs, **choices))
        return served[-1]

    monkeypatch.setattr(needle_tvm, "compile", watched)
    load_function(entry.factory)(**entry.kwargs)
    assert [each.from_cache for each in served] == [True]


def test_a_contestant_is_compiled_by_the_choices_of_its_search(monkeypatch, tmp_path):
    """In its own process it asks for what was compiled here, or it would find other code."""
    compiled = []
    monkeypatch.setattr(Subject, "compile", lambda self, threads, **search: compiled.append(search))
    model = models.find("mlp-100")
    subject = Subject(
        model, model.options, None, (np.zeros((1, 100), np.float32),), folder=tmp_path
    )
    given = {"trials": 3, "stage": "fused"}
    made = subject.called("needle", 2, **given)
    assert compiled == [given]
    assert made.kwargs["choices"] == {"threads": 2, **given}
