"""What leaves a loop: products that no step before decides, and sums of outer products."""

import numpy as np
import pytest

import needle as ndl
from needle import ops
from needle.autograd.shapes import Spec
from needle.loops import gradient
from needle.loops.tracing import traced
from needle.ops import Matmul, Scan
from needle.recurrence import layers
from needle.recurrence.hoisting import parts
from needle.trace import trace


def tensor(*shape):
    return ndl.Tensor(np.random.default_rng(0).standard_normal(shape).astype("float32"))


W, V = tensor(3, 3), tensor(3, 5)


def of_cell(cell, state=((2, 3),), slices=((2, 3),)):
    """The parts of the body of a cell of one state and one slice."""
    specs = [Spec(shape, "float32") for shape in (*state, *slices)]

    def call(h, x):
        return cell(h, x)

    _, body, _ = traced(call, specs)
    return body, parts(body, len(state), len(slices))


def products(body):
    return sum(isinstance(step.op, Matmul) for step in body.steps)


@pytest.mark.parametrize(
    ("cell", "inside"),
    [
        (lambda h, x: (ops.tanh(h @ W + x @ W), h), 1),  # of the slice: before the loop
        (lambda h, x: (ops.tanh(h @ W + ops.tanh(x @ W) @ W), h), 1),  # and what it is made of
        (lambda h, x: (ops.tanh(h + x), ops.sigmoid(h @ V)), 0),  # for the output: behind it
        (lambda h, x: (ops.tanh(h + x), ops.summation(h @ V, 1)), 1),  # a sum over axes stays
        (lambda h, x: (ops.tanh(h @ (W @ W)), h), 1),  # of constants: once
        (lambda h, x: (ops.tanh((h * x) @ W), h), 1),
        (lambda h, x: (ops.tanh((x @ ops.transpose(x)) @ h), h), 1),  # of two slices
    ],
)
def test_products_inside(cell, inside):
    _, found = of_cell(cell)
    assert products(found.core) == inside
    xs, h = tensor(4, 2, 3), tensor(2, 3)
    last, stacked = ndl.scan(cell, h, xs)
    now, kept = h, []
    for t in range(4):
        now, y = cell(now, xs[t])
        kept.append(y.numpy())
    np.testing.assert_allclose(last.numpy(), now.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(stacked.numpy(), np.stack(kept), rtol=1e-5, atol=1e-5)


def test_a_loop_of_nothing_runs_no_loop():
    xs = tensor(4, 2, 3)
    graph = trace(lambda xs: ndl.scan(lambda s, x: (s, ops.tanh(x @ W)), (), xs)[1], xs)
    assert not any(isinstance(node.op, Scan) for node in graph.nodes)


@pytest.mark.parametrize(
    ("body", "states", "wanted"),
    [
        (layers.LSTM, 2, {0, 1, 5}),  # sums, not products; states before each step
        (layers.GRU, 1, {0, 5}),
        (layers.RNN["tanh"], 1, {0}),  # the result is all that tanh's gradient reads
    ],
)
def test_what_is_kept_for_the_gradient(body, states, wanted):
    op = gradient.recording(Scan(body, states, 1, 7))
    assert set(op.body.outputs[len(body.outputs) :]) == wanted
    assert gradient.recording(op) is op or gradient.recording(op) == op


def test_outer_products_are_summed_behind_the_loop():
    """The gradient of a weight is one product of all steps; that of a small factor is a state."""
    xs, h = tensor(5, 2, 8), tensor(2, 8)
    weight, factor = tensor(8, 8), tensor(8)

    def loss(weight, factor):
        return ndl.scan(lambda h, x: (ops.tanh(h @ weight + x) * factor, None), h, xs)[0].sum()

    def grads(weight, factor):
        return ndl.autograd.grad(loss(weight, factor), [weight, factor])

    graph = trace(grads, weight, factor)
    (back,) = [node.op for node in graph.nodes if isinstance(node.op, Scan) and node.op.reverse]
    shapes = [spec.shape for spec in back.body.inputs[: back.states]]
    assert (8, 8) not in shapes and (8,) in shapes


def test_without_gradients_nothing_is_kept():
    xs, h = tensor(5, 2, 3), tensor(2, 3)
    with ndl.no_grad():
        _, y = ndl.scan(lambda h, x: (ops.tanh(h @ W + x), h), h, xs)
    assert not y.requires_grad and y.op is None


class Unlike(ops.Op):
    """An op of somebody's own, without a gradient rule."""

    name = "unlike"

    def infer(self, x):
        return x

    def compute(self, x):
        return x + x


def test_an_op_without_a_gradient_rule_fails_where_one_is_asked_for():
    xs, h = tensor(5, 3), tensor(3)
    call = lambda h, xs: ndl.scan(lambda h, x: (Unlike()(h) + x, h), h, xs)  # noqa: E731
    assert any(isinstance(node.op, Scan) for node in trace(call, h, xs).nodes)
    with ndl.no_grad():
        assert call(h, xs)[0].shape == (3,)
    with pytest.raises(NotImplementedError, match="unlike: gradient"):
        call(h, xs)[0].sum().backward()


def test_loops_of_dims_of_one_name_are_apart():
    """A loop is remembered by its text, in which a dim is its name."""

    def graph(least, most):
        call = lambda xs: ndl.scan(lambda h, x: (ops.tanh(h @ W + x), h), xs[0] * 0, xs)  # noqa: E731
        return trace(call, tensor(4, 2, 3), dims={0: {0: ndl.Dim("n", min=least, max=most)}})

    for bounds in ((2, 9), (3, 70)):
        made = graph(*bounds)
        (op,) = [node.op for node in made.nodes if isinstance(node.op, Scan)]
        assert op.length.bounds == bounds and [(d.min, d.max) for d in made.dims] == [bounds]


def test_no_step_of_a_body_of_other_sizes():
    """A fixed body takes the sizes and the dtype of its inputs, without a step too."""
    h, z, w = (ndl.zeros(shape, dtype="float64") for shape in ((2, 3), (0, 2, 3), (3, 3)))
    hidden, last = layers.rnn(z, h, w, nonlinearity="tanh")
    assert (hidden.shape, hidden.dtype, last.shape) == ((0, 2, 3), "float64", (2, 3))
