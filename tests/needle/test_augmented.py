"""Augmented assignment (`p -= lr * p.grad`) of Parameters and other Tensors, compared with
PyTorch's."""

import operator

import numpy as np
import pytest

import needle as ndl
import needle.course
from needle import nn
from needle.errors import ShapeError, TraceError
from needle.trace import trace

AUGMENTED = "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift".split()
BITS = ("iand", "ior", "ixor", "ilshift", "irshift")


def leaves():
    weights = np.array([[1.5, -2.0], [3.0, 0.5]], "float32")
    return {"Parameter": nn.Parameter(weights), "leaf": ndl.Tensor(weights)}


@pytest.mark.parametrize("kind", ["Parameter", "leaf"])
@pytest.mark.parametrize("device", ["cpu", "cpu_numpy"])
def test_a_loop_of_gradient_descent_trains(kind, device):
    rng = np.random.default_rng(0)
    x = ndl.Tensor(rng.standard_normal((64, 2)), dtype="float32", device=device)
    true = ndl.Tensor([[1.0, 2.0], [-1.0, 0.5]], device=device)
    y = (x @ true).detach()
    p = leaves()[kind]
    p = type(p)(p, device=device)
    before = p
    for _ in range(200):
        loss = ((x @ p - y) ** 2).mean()
        loss.backward()
        with ndl.no_grad():
            p -= 0.1 * p.grad
        p.grad = None
    assert p is before and p.requires_grad and p.is_leaf
    # Gradient descent on a quadratic function with condition number below 3 halves the error at
    # least each 10 steps.
    np.testing.assert_allclose(p.numpy(), true.numpy(), atol=1e-4)


@pytest.mark.parametrize("name", [*AUGMENTED, "imatmul"])
@pytest.mark.parametrize("other", ["number", "tensor", "row"])
def test_every_operator_writes_what_numpys_writes(name, other):
    is_bits = name in BITS
    dtype = "int32" if is_bits else "float32"
    start = np.array([[1, 2], [3, 4]], dtype)
    operand = {"number": 2 if is_bits else 1.5, "tensor": start[::-1].copy(), "row": start[:1]}[
        other
    ]
    if name == "imatmul" and other != "tensor":
        operand = np.eye(2, dtype=dtype)
    p = nn.Parameter(start, requires_grad=not is_bits)
    view, kept = p.detach()[0], p.detach()
    given = operand if isinstance(operand, (int, float)) else ndl.Tensor(operand)
    with ndl.no_grad():
        changed = getattr(operator, name)(p, given)
    assert changed is p
    expected = getattr(operator, name[1:] + "_" * (name in ("iand", "ior")))(start, operand)
    np.testing.assert_allclose(p.numpy(), expected.astype(dtype), rtol=1e-6)
    assert np.array_equal(view.numpy(), p.numpy()[0]) and np.array_equal(kept.numpy(), p.numpy())


@pytest.mark.parametrize("kind", ["Parameter", "leaf"])
@pytest.mark.parametrize("name", [*AUGMENTED[:7], "imatmul"])
def test_where_gradients_are_recorded_it_is_an_error(kind, name):
    p = leaves()[kind]
    before = p.numpy()
    with pytest.raises(RuntimeError, match=r"requires a gradient.*no_grad"):
        getattr(operator, name)(p, ndl.ones(2, 2))
    assert np.array_equal(p.numpy(), before) and p.is_leaf


def test_a_frozen_parameter_is_written_unless_a_gradient_would_be_recorded():
    frozen, learned = nn.Parameter(ndl.ones(2), requires_grad=False), nn.Parameter(ndl.ones(2))
    before = frozen
    frozen += 1
    assert frozen is before and frozen.tolist() == [2.0, 2.0]
    with pytest.raises(RuntimeError, match="no_grad"):
        frozen += learned
    assert frozen.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("start", "other", "error", "match"),
    [
        (np.ones((1, 2), "float32"), np.ones((3, 2), "float32"), ShapeError, r"\(3, 2\).*\(1, 2\)"),
        (np.ones(2, "int64"), 0.5, TypeError, "float64.*int64"),
        (np.ones(2, "bool"), np.ones(2, "int64"), TypeError, "int64.*bool"),
        (np.ones(2, "float32"), "half", TypeError, "str"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(start, other, error, match):
    p = nn.Parameter(start, requires_grad=start.dtype == "float32")
    given = ndl.Tensor(other) if isinstance(other, np.ndarray) else other
    with ndl.no_grad(), pytest.raises(error, match=match):
        p += given
    assert np.array_equal(p.numpy(), start)


def test_another_dtype_is_rounded_to_the_parameters():
    torch = pytest.importorskip("torch")
    steps = np.array([0.1, 1e-3], "float64")
    for dtype in ("float16", "bfloat16", "float32"):
        p = nn.Parameter(ndl.ones(2, dtype=dtype))
        theirs = torch.nn.Parameter(torch.ones(2, dtype=getattr(torch, dtype)))
        with ndl.no_grad(), torch.no_grad():
            p -= ndl.Tensor(steps)
            theirs -= torch.from_numpy(steps)
        assert p.dtype == dtype and p.tolist() == theirs.tolist()


def test_elements_that_share_memory_are_not_written():
    p = nn.Parameter(ndl.ones(1).broadcast_to(3))
    with ndl.no_grad():
        ndl.ones(3, 0).add_(1.0)  # none of its elements share memory
    with ndl.no_grad(), pytest.raises(RuntimeError, match="share memory"):
        p += ndl.Tensor([1.0, 2.0, 3.0])


def test_a_graph_that_needs_the_old_value_refuses_its_backward():
    p = nn.Parameter(ndl.ones(2))
    loss = (p * p).sum()
    with ndl.no_grad():
        p += 1
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_other_tensors_are_values():
    x = first = ndl.ones(2)
    x += nn.Parameter(ndl.ones(2))
    assert first.tolist() == [1.0, 1.0] and x.tolist() == [2.0, 2.0] and x.requires_grad
    with ndl.no_grad():
        y = x
        y *= 3
    assert x.tolist() == [2.0, 2.0] and y.tolist() == [6.0, 6.0]


def test_a_trace_changes_nothing():
    layer = nn.Linear(2, 2).eval()

    class Writes(nn.Module):
        def forward(self, x):
            with ndl.no_grad():
                layer.weight -= 1
            return layer(x)

    with pytest.raises(TraceError, match="writes to"):
        trace(Writes().eval(), ndl.ones(1, 2))

    def moved(x):
        x += 1
        return x * 2

    assert trace(moved, ndl.ones(2)).outputs


def test_the_course_keeps_its_own():
    p, linear = ndl.Tensor([1.0]), nn.Linear(2, 2)
    needle.course.install()
    try:
        before = p
        p += 1
        linear.weight = ndl.zeros(2, 2)
    finally:
        needle.course.uninstall()
    assert before.tolist() == [1.0] and p.tolist() == [2.0] and not p.is_leaf
