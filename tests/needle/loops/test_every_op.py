"""Every op of the registry in the cell of a scan, compiled, beside the eager loop."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import needle as ndl
from needle import _examples as examples
from needle.ops import REGISTRY

OWN = sorted(
    name
    for name, op in REGISTRY.items()
    if op.__module__.startswith("needle.") and not op.has_bodies
)


def _arrays(op: Any, sample: Any, dtype: str) -> list[np.ndarray] | None:
    """The inputs of a sample; None for tuples, and for dtypes that the op does not take."""
    rng = np.random.default_rng(zlib.crc32(op.name.encode()))
    arrays = [examples.draw(each, dtype, rng) for each in sample.inputs]
    if not arrays or any(isinstance(each, tuple) for each in arrays):
        return None
    try:
        op.infer(*[examples.spec(each, None) for each in arrays])
    except TypeError:
        return None
    return arrays


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_op(name: str) -> None:
    """`compile` compares the results with the eager ones."""
    needle_tvm = pytest.importorskip("needle_tvm")
    for sample in REGISTRY[name].samples[:2]:
        op = REGISTRY[name](**sample.attributes)
        found = [_arrays(op, sample, dtype) for dtype in ("float32", "int32")]
        arrays = next((each for each in found if each is not None), None)
        if arrays is None:
            continue

        def loop(*sequences: Any, op: Any = op) -> Any:
            def cell(count: Any, slices: Any) -> Any:
                made = op(*slices)
                return count + 1, list(made) if isinstance(made, ndl.TensorTuple) else [made]

            return ndl.scan(cell, ndl.zeros(()), list(sequences))

        given = [ndl.Tensor(np.stack([each] * 2)) for each in arrays]
        needle_tvm.compile(loop, *given, stage="noopt", progress=False)
