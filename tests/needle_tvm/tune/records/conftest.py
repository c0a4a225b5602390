"""A target, and a database over an empty store."""

import pytest

from needle_tvm._tvm.names import make_target
from needle_tvm.tune.records.database import Database
from needle_tvm.tune.records.keys import Key
from tests.needle_tvm.tune.records.committing import TARGET


@pytest.fixture(scope="module")
def target():
    return make_target(TARGET)


@pytest.fixture
def database(store, target):
    return Database(store, Key.of(target))
