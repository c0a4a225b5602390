"""Ops whose results may lie in the memory of their inputs say so."""

import numpy as np
import pytest

import needle as ndl
from needle.op import REGISTRY
from needle.testing import examples

OWN = sorted(name for name, cls in REGISTRY.items() if cls.__module__.startswith("needle."))


def memory(array):
    """The addresses of an array's first byte, and of the one behind the last."""
    start, size = array.view.data_ptr, array.numpy().dtype.itemsize
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    low, high = sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps)
    return start + low * size, start + (high + 1) * size


def overlap(one, other):
    (first, end), (start, last) = memory(one), memory(other)
    return one.size > 0 < other.size and first < last and start < end


@pytest.mark.parametrize("name", OWN)
def test_what_shares_memory_is_declared(name):
    found = False
    for sample in REGISTRY[name].samples:
        for dtype in ("float32", "int64", "bool"):
            draw = np.random.default_rng(0)
            try:
                arrays = [examples.draw(each, dtype, draw) for each in sample.inputs]
                inputs = [examples.tensor(each, ndl.cpu(), False) for each in arrays]
                with ndl.no_grad():
                    result = REGISTRY[name](**sample.attributes)(*inputs)
            except (TypeError, ValueError, OverflowError):
                continue  # the op has no such dtype
            for x in (part for each in inputs for part in parts(each)):
                found |= any(overlap(part._data, x._data) for part in parts(result))
    if found:
        assert REGISTRY[name].may_share
    elif REGISTRY[name].may_share:
        assert name in ("tuple_get_item",)  # a part of a tuple, which has no memory of its own


def parts(value):
    return value if isinstance(value, (list, tuple, ndl.TensorTuple)) else [value]
