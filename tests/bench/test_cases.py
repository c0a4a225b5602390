"""The cases of the benchmark: those of the default run, and shapes drawn by seed."""

import numpy as np
import pytest

import apps.contestants
import needle as ndl
from bench import cases

COUNT = 20


def test_a_seed_always_draws_the_same():
    first = cases.drawn(3, COUNT)
    assert first == cases.drawn(3, COUNT)
    assert first[:5] == cases.drawn(3, 5)
    assert len({case.name for case in first}) == COUNT
    assert first != cases.drawn(4, COUNT)
    assert cases.drawn(3, 0) == []


@pytest.mark.parametrize("seed", [0, 1])
def test_drawn_cases_are_models_that_run(seed):
    drawn = cases.drawn(seed, COUNT)
    assert {case.kind.twin for case in drawn} == {"mlp", "convnet", "bert"}
    for case in drawn:
        model, inputs = apps.contestants.build_model(case.factory, **case.options)
        assert all(x.shape[0] == case.batch and x.dtype == np.float32 for x in inputs)
        with ndl.no_grad():
            found = model(*(ndl.Tensor(x, requires_grad=False) for x in inputs)).numpy()
        assert found.size and np.isfinite(found).all(), case.name


def test_the_default_run_has_nine_different_cases():
    names = [case.name for case in cases.DEFAULT]
    assert len(set(names)) == 9
    assert names[:3] == ["mlp, batch 8", "conv, batch 8", "transformer, batch 8"]
    for case in cases.DEFAULT:
        assert case.batch in case.kind.batches
