"""Fixtures of the compiler's tests: a cache of their own, and small models."""

import itertools

import numpy as np
import pytest

import needle as ndl
from needle import nn

pytest.importorskip("tvm", reason="the compiler's tests need the [tvm] extra")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Compiled models of one test session are shared by its tests and by nobody else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEEDLE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def make_mlp(*widths, dtype="float32"):
    """Linear and ReLU layers of these widths, in eval mode."""
    layers = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs, dtype=dtype), nn.ReLU()]
    model = nn.Sequential(*layers)
    model.eval()
    return model


def tensor(array):
    return ndl.Tensor(array, requires_grad=False)
