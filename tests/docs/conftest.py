"""What a page's code registers is forgotten after its test."""

import pytest


@pytest.fixture(autouse=True)
def registered_ops():
    registry = pytest.importorskip("needle.op").REGISTRY
    before = dict(registry)
    yield
    registry.clear()
    registry.update(before)
