"""Properties of every op in the registry, without naming any; see needle.testing.check_op."""

import pytest

import needle as ndl
from needle import ops
from needle.ops import REGISTRY
from needle.testing import check_op

OWN = sorted(name for name, op in REGISTRY.items() if op.__module__.startswith("needle."))


@pytest.mark.parametrize("name", OWN)
def test_op(name, request):
    chosen = request.config.getoption("--device")
    check_op(REGISTRY[name], devices=None if chosen is None else [getattr(ndl, chosen)()])


@pytest.mark.parametrize("name", OWN)
def test_exported_and_documented(name):
    op = REGISTRY[name]
    assert getattr(ops, op.__name__) is op
    function = getattr(ops, name, None)
    assert function is not None and (function.__doc__ or "").strip()
