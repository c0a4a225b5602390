"""Every op as the cell of a scan, compiled."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle.op import REGISTRY
from needle.testing import assert_close, examples

NAMES = [
    name
    for name, op in REGISTRY.items()
    if op.__module__.startswith("needle.") and not op.structural
]


def first_sample(op_class):
    """An op and inputs of the first sample that has elements, in a dtype that the op takes."""
    for sample in op_class.samples:
        op = op_class(**sample.attributes)
        if any(isinstance(x, list) for x in sample.inputs):
            continue
        for dtype in ("float32", "int32", "bool"):
            arrays = [examples.draw(x, dtype, np.random.default_rng(0)) for x in sample.inputs]
            try:
                made = op.infer(*[examples.spec(x, ndl.cpu()) for x in arrays])
            except (TypeError, ValueError):
                continue
            specs = made if isinstance(made, tuple) and not hasattr(made, "dtype") else (made,)
            if all(0 not in s.shape for s in specs) and all(x.size for x in arrays):
                return op, arrays
    return None


@pytest.mark.parametrize("name", NAMES)
def test_as_a_cell(name):
    found = first_sample(REGISTRY[name])
    if found is None:
        pytest.skip("takes tuples alone")
    op, arrays = found
    xs = [ndl.Tensor(np.stack([x, x]), requires_grad=False) for x in arrays]

    def run(*xs):
        def cell(count, slices):
            made = op(*slices)
            parts = tuple(made) if isinstance(made, ndl.TensorTuple) else (made,)
            return count + 1, parts

        return ndl.scan(cell, 0, tuple(xs))

    _, want = run(*xs)
    got = needle_tvm.compile(run, *xs, stage="tuned", check=False)(*xs)[1]
    for a, b in zip(got, want, strict=True):
        assert_close(np.asarray(a.numpy()), b.numpy(), 64, scale=1.0, what=name)
