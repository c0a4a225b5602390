"""`needle.autograd.grad`: gradients of chosen leaves, without touching `.grad`."""

import numpy as np
import pytest

import needle as ndl
from needle.autograd import grad


def leaf(*values):
    return ndl.Tensor(np.array(values, "float64"))


def test_gradients_are_those_of_backward_and_leave_no_trace():
    x, y, z = leaf(1, 2), leaf(3, 4), leaf(5, 6)
    y.grad = y.detach()

    def loss():
        return (x * y * y + z * z).sum()

    of_z, of_x = grad(loss(), [z, x])
    assert x.grad is None and z.grad is None and y.grad.numpy().tolist() == [3, 4]
    loss().backward()
    np.testing.assert_array_equal(of_x.numpy(), x.grad.numpy())
    np.testing.assert_array_equal(of_z.numpy(), z.grad.numpy())
    assert not of_x.requires_grad


def test_weights_of_results_and_second_derivatives():
    x = leaf(1, 2)
    (found,) = grad(x * x, [x], leaf(1, 10))
    assert found.numpy().tolist() == [2, 40]
    (first,) = grad((x * x * x).sum(), [x], create_graph=True)
    (second,) = grad(first.sum(), [x])
    assert second.numpy().tolist() == [6, 12]


def test_gradients_have_memory_of_their_own():
    x, y = leaf(1, 2), leaf(3, 4)
    of_x, of_y = grad((x + y).sum(), [x, y])
    of_x += 1.0
    assert of_y.numpy().tolist() == [1, 1]


def test_bad_inputs_are_refused_and_the_graph_is_kept():
    x, y = leaf(1, 2), leaf(3, 4)
    fixed = ndl.Tensor(np.ones(2), requires_grad=False)
    double = x * x
    loss = double.sum()
    for wrong, error, match in (
        ([x, 3], TypeError, "input 1 is a int"),
        ([double], RuntimeError, "input 0, .* is no leaf"),
        ([x, fixed], RuntimeError, "input 1, .* does not require a gradient"),
        ([y], RuntimeError, "does not depend on input 0"),
    ):
        with pytest.raises(error, match=match):
            grad(loss, wrong)
    assert grad(loss, [x])[0].numpy().tolist() == [2, 4]
    with pytest.raises(RuntimeError, match="retain_graph"):
        grad(loss, [x])
    with ndl.no_grad(), pytest.raises(RuntimeError, match="does not require a gradient"):
        grad((x * 2.0).sum(), [x])
