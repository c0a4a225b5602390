"""Ops as a student writes them, on the course's names alone, beside needle's own."""

import numpy as np
import pytest

import needle as ndl
import needle.course


@pytest.fixture(params=["needle", "course"], autouse=True)
def installed(request):
    needle.course.install(semantics=request.param)
    yield
    needle.course.uninstall()


def check(own, builtin, *arrays):
    """Values and gradients of both, for inputs in float64."""
    grads = []
    for function in (own, builtin):
        inputs = [ndl.Tensor(a, dtype="float64") for a in arrays]
        out = function(*inputs)
        weights = np.random.default_rng(1).random(out.shape)
        (out * ndl.Tensor(weights, requires_grad=False)).sum().backward()
        grads.append([out.numpy(), *(x.grad.numpy() for x in inputs)])
    for found, expected in zip(*grads, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def random(*shape):
    return np.random.default_rng(0).standard_normal(shape)


def test_logsumexp():
    from needle.backend_selection import array_api
    from needle.ops.ops_mathematic import broadcast_to, exp, reshape

    from needle.autograd import TensorOp

    class LogSumExp(TensorOp):
        def __init__(self, axes):
            self.axes = axes

        def compute(self, Z):
            largest = array_api.max(Z, axis=self.axes, keepdims=True)
            shifted = array_api.exp(Z - array_api.broadcast_to(largest, Z.shape))
            total = array_api.log(array_api.sum(shifted, axis=self.axes))
            return total + array_api.reshape(largest, total.shape)

        def gradient(self, out_grad, node):
            (Z,) = node.inputs
            kept = [1 if i in self.axes else n for i, n in enumerate(Z.shape)]
            whole = lambda x: broadcast_to(reshape(x, kept), Z.shape)  # noqa: E731
            return whole(out_grad) * exp(Z - whole(node))

    x = random(3, 4, 5) * 100
    check(LogSumExp((0, 2)), lambda t: ndl.ops.logsumexp(t, (0, 2)), x)


def test_matmul():
    from needle.ops.ops_mathematic import matmul, summation, transpose

    from needle.ops import TensorOp

    class MatMul(TensorOp):
        def compute(self, a, b):
            return a @ b

        def gradient(self, out_grad, node):
            a, b = node.inputs
            da, db = matmul(out_grad, transpose(b)), matmul(transpose(a), out_grad)
            return (
                summation(da, axes=tuple(range(len(da.shape) - len(a.shape)))),
                summation(db, axes=tuple(range(len(db.shape) - len(b.shape)))),
            )

    check(MatMul(), ndl.ops.matmul, random(6, 2, 3), random(3, 4))


def test_stack_and_split_of_tuples():
    from needle.backend_selection import array_api
    from needle.ops.ops_tuple import make_tuple

    from needle.autograd import TensorOp, TensorTupleOp

    class Stack(TensorOp):
        def compute(self, args):
            out = array_api.empty((len(args), *args[0].shape), args[0].dtype, args[0].device)
            for i, a in enumerate(args):
                out[i, :] = a
            return out

        def gradient(self, out_grad, node):
            return Split()(out_grad)

    class Split(TensorTupleOp):
        def compute(self, A):
            return tuple(A[i, :].compact() for i in range(A.shape[0]))

        def gradient(self, out_grad, node):
            return Stack()(make_tuple(*out_grad))

    def own(a, b):
        first, second = Split()(Stack()(make_tuple(a, b * b)))
        return first * second

    check(own, lambda a, b: a * b * b, random(4), random(4) + 3)


def test_conv_with_as_strided():
    from needle.autograd import TensorOp

    class Conv(TensorOp):
        def compute(self, A, B):
            n, h, w, c = A.shape
            k, _, _, out = B.shape
            s0, s1, s2, s3 = A.strides
            shape = (n, h - k + 1, w - k + 1, k, k, c)
            windows = A.as_strided(shape, (s0, s1, s2, s1, s2, s3)).compact()
            flat = windows.reshape((n * shape[1] * shape[2], k * k * c))
            return (flat @ B.compact().reshape((k * k * c, out))).reshape((*shape[:3], out))

        def gradient(self, out_grad, node):
            A, B = node.inputs
            k = B.shape[0]
            turned = ndl.flip(B, axes=(0, 1)).transpose((2, 3))
            dA = ndl.conv(out_grad, turned, padding=k - 1)
            grad = out_grad.transpose((0, 1)).transpose((1, 2))
            dB = ndl.conv(A.transpose((0, 3)), grad, padding=0)
            return dA, dB.transpose((0, 1)).transpose((1, 2))

    check(Conv(), lambda a, b: ndl.conv(a, b, padding=0), random(2, 6, 6, 3), random(3, 3, 3, 4))
