"""Stacks and concatenations of more parts than one kernel takes."""

import numpy as np
import pytest

import needle_tvm
from needle import ops
from needle.errors import ShapeError
from needle.ops.tuples import WIDEST
from needle.trace import trace
from tests.needle_tvm.conftest import tensor

FACTORS = range(1, 2 * WIDEST + 3)


def joined(x):
    made = [x * float(factor) for factor in FACTORS]
    return ops.stack(made, -2), ops.concat(made, 0)


def test_no_op_of_a_trace_takes_more(rng):
    graph = trace(joined, tensor(rng.standard_normal((3, 4), dtype=np.float32)))
    widths = [len(node.input_nodes) for node in graph.nodes if node.op is not None]
    assert max(widths) == WIDEST and len(widths) == len(FACTORS) + 2 * (3 + 1)


def test_parts_that_do_not_fit_are_refused_in_every_group(rng):
    x = tensor(rng.standard_normal((3, 4), dtype=np.float32))

    def ragged(x):
        return ops.stack([*[x] * (2 * WIDEST), x[:2]], 0)

    with pytest.raises(ShapeError):
        trace(ragged, x)
    with pytest.raises(ShapeError):
        ragged(x)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["noopt", "tuned"])
def test_many_parts_are_joined_in_groups(stage, rng):
    x = rng.standard_normal((3, 4), dtype=np.float32)
    parts = [x * np.float32(factor) for factor in FACTORS]
    wanted = np.stack(parts, -2), np.concatenate(parts, 0)
    found = needle_tvm.compile(joined, tensor(x), stage=stage, check=False)(tensor(x))
    for one, want, eager in zip(found, wanted, joined(tensor(x)), strict=True):
        np.testing.assert_array_equal(one.numpy(), want)
        np.testing.assert_array_equal(eager.numpy(), want)


@pytest.mark.slow
@pytest.mark.peer
def test_many_parts_of_pytorch():
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def forward(self, x):
            made = [x * factor for factor in FACTORS]
            return torch.stack(made, -2), torch.cat(made, 0)

    x = torch.rand(3, 4)
    found = needle_tvm.compile_torch(Model().eval(), x)(x)
    for one, want in zip(found, Model()(x), strict=True):
        np.testing.assert_array_equal(one.numpy(), want.numpy())
