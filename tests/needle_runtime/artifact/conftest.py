"""A small model and its artifact."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import needle_tvm
from tests.needle_tvm.conftest import make_mlp, tensor


@pytest.fixture(scope="module")
def model():
    return make_mlp(16, 20, 5)


@pytest.fixture(scope="module")
def array():
    return np.random.default_rng(3).standard_normal((4, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def exported(model, array, tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "mlp"
    needle_tvm.compile(model, tensor(array), stage="tuned").export(path)
    return path


@pytest.fixture
def copied(exported, tmp_path):
    return Path(shutil.copytree(exported, tmp_path / "copy"))
