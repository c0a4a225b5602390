"""Fixtures of the compiler's tests, and small models."""

import itertools

import numpy as np
import pytest

import needle as ndl
from needle import nn

pytest.importorskip("tvm", reason="the compiler's tests need the [tvm] extra")


@pytest.fixture
def store(tmp_path):
    """An empty record store; the test fails if it reports damage."""
    from needle_tvm.tune.records.store import Store

    with Store(tmp_path / "records", report=pytest.fail) as opened:
        yield opened


@pytest.fixture
def rng():
    return np.random.default_rng(7)


OTHERS = (
    {"mcpu": "x86-64-v2"},
    {"mcpu": "haswell"},
    {"mcpu": "skylake-avx512"},
    {"mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"},
)


@pytest.fixture(params=OTHERS, ids=lambda fields: fields["mcpu"])
def processor(request):
    """A target of two threads and some vector width. This machine may not run its code."""
    from needle_tvm.target.spec import resolve

    return resolve({"kind": "llvm", **request.param}, 2).to_tvm()


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
