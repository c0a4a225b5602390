"""PyTorch functions, compiled and compared with PyTorch."""

import os
import zlib
from contextlib import nullcontext

import numpy as np
import pytest

import needle_tvm
from needle_tvm.lower.libraries import unoptimized

torch = pytest.importorskip("torch")
STAGES = ["fused", "tuned"]


class Applied(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def check(function, compiled_for, inputs=None, steps=8, atol=0.0):
    """Check that the tuned stage gives PyTorch's results for `inputs`, with the same nesting and
    within `steps` roundings of the dtype; and in a third of the tests the fused stage, which has
    the same passes but for schedules and is not optimised by LLVM."""
    inputs = compiled_for if inputs is None else inputs
    model = Applied(function).eval()
    expected, nested = torch.utils._pytree.tree_flatten(model(*inputs))
    third = zlib.crc32(os.environ["PYTEST_CURRENT_TEST"].encode()) % 3 == 0
    for stage in STAGES if third else STAGES[1:]:
        with nullcontext() if stage == "tuned" else unoptimized():
            compiled = needle_tvm.compile_torch(model, *compiled_for, stage=stage, check=False)
        results, structure = torch.utils._pytree.tree_flatten(compiled(*inputs))
        assert structure == nested
        for found, want in zip(results, expected, strict=True):
            if not isinstance(want, torch.Tensor):
                assert found == want
                continue
            found = np.asarray(found.numpy())
            assert found.shape == tuple(want.shape)
            assert found.dtype.name == str(want.dtype).partition(".")[2]
            tolerance = 0.0
            if want.is_floating_point():
                tolerance = steps * torch.finfo(want.dtype).eps
                found, want = found.astype(np.float64), want.double()
            np.testing.assert_allclose(found, want.numpy(), rtol=tolerance, atol=atol)


def agree_at(model, make, dims, sizes, stage, tolerance=2e-5):
    """Check that code for many sizes gives PyTorch's results for `make(*size)` at each of them.
    `model` is a module or a function; the code is made from the inputs of 6, 5, ... elements."""
    model = model if isinstance(model, torch.nn.Module) else Applied(model)
    example = make(*(range(6, 6 - len(sizes[0]), -1)))
    compiled = needle_tvm.compile_torch(model.eval(), *example, dims=dims, stage=stage)
    leaves = torch.utils._pytree.tree_leaves
    for size in sizes:
        inputs = make(*size)
        with torch.no_grad():
            expected = leaves(model(*inputs))
        for found, want in zip(leaves(compiled(*inputs)), expected, strict=True):
            assert found.shape == tuple(want.shape)
            np.testing.assert_allclose(found.numpy(), want.numpy(), rtol=1e-4, atol=tolerance)
    return compiled
