"""First and second order gradients against central differences along random directions."""

import numpy as np

import needle as ndl

STEP = 1e-5


def check_gradients(function, *arrays, device=None, tolerance=1e-6):
    """The gradients of sum(weights * function(*arrays)), and those of their product with a random
    direction, are its slopes: in float64, relative to the largest."""
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.5, 1.5, function(*leaves(arrays, device)).shape)
    first, second = ([rng.standard_normal(a.shape) for a in arrays] for _ in "12")

    def value(given):
        with ndl.no_grad():
            return (function(*leaves(given, device)) * constant(weights, device)).sum().item()

    def slope(given, create_graph=False):
        """The gradient times the first direction, and the leaves."""
        xs = leaves(given, device)
        total = (function(*xs) * constant(weights, device)).sum()
        total.backward(create_graph=create_graph)
        along = constant(np.zeros(()), device)
        for x, direction in zip(xs, first, strict=True):
            if x.grad is not None:
                along = along + (x.grad * constant(direction, device)).sum()
        return along, xs

    along, xs = slope(arrays, create_graph=True)
    close(slope(arrays)[0].item(), difference(value, arrays, first), tolerance)
    close(along.item(), difference(value, arrays, first), tolerance)
    for x in xs:
        x.grad = None
    found = 0.0
    if along.requires_grad:
        along.backward()
        grads = [0.0 if x.grad is None else x.grad.numpy() for x in xs]
        found = sum(float(np.sum(g * d)) for g, d in zip(grads, second, strict=True))
    close(found, difference(lambda given: slope(given)[0].item(), arrays, second), tolerance)


def leaves(arrays, device):
    return [ndl.Tensor(a, device=device) for a in arrays]


def constant(array, device):
    return ndl.Tensor(array, device=device, requires_grad=False)


def difference(function, arrays, directions):
    ends = [
        function([a + sign * STEP * d for a, d in zip(arrays, directions, strict=True)])
        for sign in (1, -1)
    ]
    return (ends[0] - ends[1]) / (2 * STEP)


def close(found, wanted, tolerance):
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
