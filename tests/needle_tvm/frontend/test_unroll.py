"""Loops and choices written out, as GPUs get them: the same numbers."""

import numpy as np
import pytest

import needle as ndl
from needle import ops
from needle.trace import trace
from needle_runtime.errors import TargetError
from needle_tvm.frontend.unroll import unrolled

W = ndl.Tensor(np.random.default_rng(0).standard_normal((3, 3)))


def cell(h, x):
    h = ops.tanh(h @ W + x)
    return h, h * 2


def nested(h, x):
    last, _ = ndl.scan(cell, h, ops.stack([x, h], 0), reverse=True)
    return last, ops.summation(last, 1)


def chosen(h, x):
    h = ndl.cond(h.sum() > 0, lambda: h @ W, lambda: x - h)
    return h, ops.max(h, 0)


def evaluated(graph, arrays):
    values = {
        leaf.node: ndl.Tensor(a).cached_data for leaf, a in zip(graph.inputs, arrays, strict=True)
    }
    values |= {leaf.node: leaf.value for leaf in (*graph.params, *graph.constants)}
    for node in graph.nodes:
        if node.op is not None:
            values[node] = node.op.compute(*[values[each] for each in node.input_nodes])
    return [values[node].numpy() for node in graph.outputs]


@pytest.mark.parametrize("step", [cell, nested, chosen])
@pytest.mark.parametrize("reverse", [False, True])
def test_the_same_numbers(rng, step, reverse):
    h, xs = rng.standard_normal((2, 3)), rng.standard_normal((4, 2, 3))

    def model(h, xs):
        return ndl.scan(step, h, xs, reverse=reverse)

    graph = trace(model, h, xs)
    plain = unrolled(graph, lambda op: False)
    assert not any(node.op.has_bodies for node in plain.nodes if node.op is not None)
    last, stacked = model(ndl.Tensor(h), ndl.Tensor(xs))
    for found, expected in zip(evaluated(plain, [h, xs]), (last, stacked), strict=True):
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12)
    assert unrolled(graph, lambda op: True) is not graph
    assert unrolled(plain, lambda op: False) is plain


def test_a_loop_of_unknown_length_is_refused():
    graph = trace(lambda x: ndl.while_loop(lambda s: s.sum() < 9, lambda s: s + 1, x), np.ones(2))
    with pytest.raises(TargetError, match=r"while_loop.*needle\.scan"):
        unrolled(graph, lambda op: False)
