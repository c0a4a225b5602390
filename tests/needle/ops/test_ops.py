"""Properties of every op in the registry, without naming any; see needle.testing.check_op."""

import pytest

import needle as ndl
from needle import ops
from needle.backend_ndarray.dtypes import DTYPES, SMALL_INTEGER
from needle.ops import REGISTRY
from needle.testing import OpCheckError, check_op

OWN = sorted(name for name, op in REGISTRY.items() if op.__module__.startswith("needle."))


def check(name, dtypes, request):
    chosen = request.config.getoption("--device")
    devices = None if chosen is None else [getattr(ndl, chosen)()]
    check_op(REGISTRY[name], devices=devices, dtypes=dtypes)


@pytest.mark.parametrize("name", OWN)
def test_op(name, request):
    """In the wide dtypes, and in one small integer, which is another for the next op."""
    small = SMALL_INTEGER[OWN.index(name) % len(SMALL_INTEGER)]
    dtypes = [dtype for dtype in DTYPES if dtype == small or dtype not in SMALL_INTEGER]
    check(name, dtypes, request)


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_op_of_small_integers(name, request):
    try:
        check(name, SMALL_INTEGER, request)
    except OpCheckError as error:  # an op of floats alone
        assert "refuses every dtype" in str(error)


@pytest.mark.parametrize("name", OWN)
def test_exported_and_documented(name):
    op = REGISTRY[name]
    assert getattr(ops, op.__name__) is op
    function = getattr(ops, name, None)
    assert function is not None and (function.__doc__ or "").strip()
