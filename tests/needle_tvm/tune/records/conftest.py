"""A target, and a database over an empty store."""

import pytest

from needle_tvm._tvm.names import make_target
from needle_tvm.tune.records.database import RecordDatabase
from needle_tvm.tune.records.keys import Key
from needle_tvm.tune.records.rows import GATED, MEASURED
from tests.needle_tvm.tune.records.committing import TARGET


@pytest.fixture(scope="module")
def target():
    return make_target(TARGET)


@pytest.fixture
def tuning(store, target):
    return RecordDatabase(store, Key.of(target), (MEASURED, GATED))
