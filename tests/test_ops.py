"""Properties of every op in the registry. Names no op: see needle.testing.check_op."""

import pytest

from needle import ops
from needle.ops import REGISTRY
from needle.testing import check_op

OWN = sorted(name for name, op in REGISTRY.items() if op.__module__.startswith("needle."))


@pytest.mark.parametrize("name", OWN)
def test_op(name):
    check_op(REGISTRY[name])


@pytest.mark.parametrize("name", OWN)
def test_exported_and_documented(name):
    op = REGISTRY[name]
    assert getattr(ops, op.__name__) is op
    function = getattr(ops, name, None)
    assert function is not None and (function.__doc__ or "").strip()
