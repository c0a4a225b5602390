"""Small programs that passes and schedules get right whatever expressions their extents are."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import ops
from needle.sizes.dims import Dim, dims_of

N, M, WIDE = Dim("n", max=20), Dim("m", min=2, max=33), Dim("n", max=300)
SOME = Dim("n", min=8, max=17)


def attention(q, k, v):
    return ops.softmax(q @ ops.transpose(k)) @ v


def scattered(x, w, b):
    rows, columns = x.shape[1:3]
    return ops.ConvInput((rows, 3 * columns - 2), (1, 3), (0, 0), groups=1)(x, w) + b


def recurrence(x, h, c, w):
    return ndl.recurrence.layers.lstm(x, h, c, w)


def two_dims(x, y):
    for _ in range(3):
        x = ops.softmax(x) * 2 + x
    return x, y.reshape((-1,)) + y.shape[0]


def mean_gradient(x):
    x.mean(2).astype("float64").sum().backward()
    return x.grad


def padded_gradient(x):
    y = ops.SlidingWindows((1, 1), (1, 1), (2, 2), (1, 1), 1.5)(x)[
        -2, np.array([-5, 2, -3]), :, :, -1
    ]
    difference = y.reshape((3, x.shape[2] + 4, 1, 2)) - y[None, :, None]
    (difference * difference).sum().backward()
    return x.grad


def gates_gradient(sums, c):
    h, _ = ops.lstm_gates(sums, c)
    h.astype("float64").sum().backward()
    return h, sums.grad, c.grad


# The function, and the shapes of its inputs.
CASES = {
    "columns of an axis shorter than two vectors": (
        lambda x: ops.logsoftmax(x, 0),
        [(2 * SOME, SOME, SOME)],
    ),
    "recurrences of n + 1 rows": (
        recurrence,
        [(3, N + 1, 16), (N + 1, 4), (N + 1, 4), (4, 16), (N,)],
    ),
    "a dim that merged kernels do not depend on": (two_dims, [(WIDE, 64), (M, 3)]),
    "divisions by expressions": (scattered, [(1, M - 1, M, 4), (1, 1, 3, 4), (3,), (M,)]),
    "sums whose last vector is not whole": (
        lambda x, y: ops.matmul(x, y),
        [(1, WIDE, 16), (1, 2, 16, 17)],
    ),
    "attention of a known batch": (attention, [(3, 2, M, 4)] * 3),
    "as many weights as rows": (lambda x, w: x @ w, [(N, 7, 16), (N, 16, 9)]),
    "one row less": (lambda x, w: ops.relu(x @ w), [(M - 1, 4, 8), (8, 16), (M,)]),
    "index arrays along two axes": (
        lambda x: x[np.array([0, -1]), np.array([1, -2])],
        [(N, M, 3)],
    ),
    "a size that no tensor of a kernel has": (mean_gradient, [(N, 1, M // 2), (M,)]),
    "windows of an expression": (
        lambda x, w: ops.Conv((2, 2), (2, 2), groups=1)(x, w),
        [(11, M, 1, 2), (1, 1, 2, 1)],
    ),
    "loops of n and n + 4": (lambda x: ops.exp(x), [(N, N + 4, 21)]),
    "loops of n // 2 and 3 * n + 2": (lambda x, y: x * y, [(M // 2, 3 * M + 2, 7)] * 2 + [(M,)]),
    "reshapes of which TVM cannot tell that they are": (padded_gradient, [(3, 2, M, 2)]),
    "gradients of gates of a few units": (gates_gradient, [(N, 12), (N, 3)]),
    "sorts of rows that are divided by an expression": (
        lambda x: ops.sort(x, 2)[0],
        [(1, 1, SOME + 1, SOME), (SOME,)],
    ),
    "no axes": (lambda x, y: x * y, [(), (N, 3)]),
}


def inputs_of(shapes, sizes):
    rng = np.random.default_rng(0)
    numbers = [[n if isinstance(n, int) else n.value(sizes) for n in shape] for shape in shapes]
    return [rng.uniform(-1, 1, shape).astype("float32") for shape in numbers]


@pytest.mark.parametrize("stage", ["noopt", "tuned"])
@pytest.mark.parametrize("case", CASES)
def test_right_at_bounds_and_between(case, stage):
    function, shapes = CASES[case]
    dims = sorted(dims_of(n for shape in shapes for n in shape), key=lambda dim: dim.name)
    count = function.__code__.co_argcount

    def model(*args):  # inputs that only tell a size are ignored
        return function(*args[:count])

    given = {
        number: {axis: n for axis, n in enumerate(shape) if not isinstance(n, int)}
        for number, shape in enumerate(shapes)
    }
    example = inputs_of(shapes, {dim: min(dim.max, max(dim.min, 9)) for dim in dims})
    exe = needle_tvm.compile(model, *map(ndl.Tensor, example), dims=given, stage=stage, threads=2)
    for size in (1, 2, 8, 11, 16, 17, 300):
        arrays = inputs_of(shapes, {dim: min(dim.max, max(dim.min, size)) for dim in dims})
        wanted = model(*map(ndl.Tensor, arrays))
        found = exe(*arrays)
        several = isinstance(wanted, tuple)
        for have, want in zip(
            found if several else [found], wanted if several else [wanted], strict=True
        ):
            np.testing.assert_allclose(have.numpy(), want.numpy(), rtol=2e-4, atol=2e-5)
