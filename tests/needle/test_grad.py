"""`needle.autograd.grad`: gradients of chosen leaves, without touching `.grad`."""

import numpy as np
import pytest

import needle as ndl
from needle.autograd import grad
from needle.trace import trace


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
        ([double], RuntimeError, "input 0, .* is not a leaf"),
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


@pytest.mark.parametrize("name", ["round", "floor", "ceil", "trunc", "sign"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_gradient_that_is_zero_everywhere_is_zeros(name, dtype, device):
    function = getattr(ndl.ops, name)
    x, w = (ndl.Tensor([0.4, -1.6], device=device, dtype=dtype) for _ in range(2))
    for inputs, y in (([x], function(x)), ([x, w], function(x * w))):
        for create_graph in (False, True):
            grads = grad(y.sum(), inputs, create_graph=create_graph, retain_graph=True)
            assert [g.spec for g in grads] == [x.spec] * len(inputs)
            np.testing.assert_array_equal(grads[-1].numpy(), 0)
    function(x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 0)
    (first,) = grad(function(x).sum(), [x], create_graph=True)
    (second,) = grad((first * x).sum(), [x])
    np.testing.assert_array_equal(second.numpy(), 0)


def test_gradients_at_corners_go_on():
    """Gradients of gradients are finite, too."""
    for function in (ndl.ops.std, lambda x: ndl.ops.norm(x, 3), ndl.ops.prod):
        x = ndl.Tensor(np.zeros(3))
        (g,) = grad(function(x), [x], create_graph=True)
        (h,) = grad((g * g).sum() + x.sum() * 0, [x])
        assert np.isfinite(h.numpy()).all()


def test_zeros_while_tracing():
    traced = trace(lambda x: grad(ndl.ops.floor(x).sum(), [x])[0], ndl.Tensor(np.ones((2, 3))))
    (out,) = traced.outputs
    assert (out.spec.shape, out.spec.dtype) == ((2, 3), "float64")
