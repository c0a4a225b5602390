"""What language models of PyTorch need beside layers: caches that begin empty, and mixtures of
experts, whose rows are sorted, counted and multiplied by the matrix of their group."""

import numpy as np
import pytest

import needle_tvm
from needle.torch.converters import grouped
from needle.torch.registry import converter
from tests.needle_tvm.compiler.torch_checks import Applied

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer


converter("needle_tests.grouped_mm_fallback")(grouped.grouped_mm)


@torch.library.custom_op("needle_tests::grouped_mm_fallback", mutates_args=())
def grouped_mm(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Like the operator of transformers: PyTorch's own `_grouped_mm` takes bfloat16 alone."""
    out, start = input.new_zeros(input.shape[0], weight.shape[2]), 0
    for matrix, end in zip(weight, offs.tolist(), strict=True):
        out[start:end] = input[start:end] @ matrix
        start = end
    return out


@grouped_mm.register_fake
def _(input, weight, offs):
    return input.new_empty(input.shape[0], weight.shape[2])


def experts(x, weights, chosen):
    """Rows times the matrix that is chosen for each, in the way of transformers."""
    ordered, order = chosen.sort()
    counts = torch.histc(ordered.float(), bins=weights.shape[0], min=0, max=weights.shape[0] - 1)
    ends = counts.cumsum(0, dtype=torch.int32)
    return grouped_mm(x[order], weights, offs=ends)[order.argsort()], counts


def begun(x):
    """Concatenated with what PyTorch leaves out, as a cache of keys is at first."""
    return torch.cat([torch.tensor([]), x, x.new_zeros(0)], -2), torch.cat([x.new_zeros(0)], -1)


def histograms(x):
    outside = torch.cat([x, torch.tensor([-7.0, 7.0, 1.0, -1.0])])
    return torch.histc(outside, 5, -1, 1), torch.histc(x, 7), torch.histc(0 * x + 2, 4)


def every(x, weights, chosen):
    return *experts(x, weights, chosen), *begun(x), *histograms(x[0])


def test_experts_empty_lines_and_histograms():
    torch.manual_seed(0)
    inputs = torch.randn(6, 16), torch.randn(4, 16, 8), torch.tensor([3, 0, 3, 1, 1, 0])
    compiled = needle_tvm.compile_torch(Applied(every).eval(), *inputs, stage="noopt", check=False)
    other = (*inputs[:2], torch.tensor([2] * 5 + [3]))
    for given in (inputs, other):
        for found, wanted in zip(compiled(*given), every(*given), strict=True):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-5)


def test_groups_of_halves_and_rows_behind_the_last():
    x, weights = torch.randn(6, 16).bfloat16(), torch.randn(2, 16, 8).bfloat16()
    ends = torch.tensor([1, 4], dtype=torch.int32)
    model = Applied(lambda *given: torch._grouped_mm(given[0], given[1], offs=given[2])).eval()
    compiled = needle_tvm.compile_torch(model, x, weights, ends, stage="noopt", check=False)
    found = torch.from_dlpack(compiled(x, weights, ends))
    assert found.dtype == torch.bfloat16 and (found[4:] == 0).all()
    assert torch.allclose(found[:1], x[:1] @ weights[0], rtol=1e-2)
    assert torch.allclose(found[1:4], x[1:4] @ weights[1], rtol=1e-2)
