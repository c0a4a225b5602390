"""`needle.scan` compiled, beside eager: what becomes of states and results, sizes, and threads."""

import os
import threading

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import nn
from tests.needle.loops.rows import ROWS

QUICK = ("swapped and changed", "rotated", "a constant", "old and new state")
STAGES = [pytest.param("noopt", marks=pytest.mark.slow), "tuned"]


def flat(values):
    return [x for v in values for x in flat(v)] if isinstance(values, (tuple, list)) else [values]


def check(run, function, *inputs, rtol=1e-9):
    for found, wanted in zip(flat(run(*inputs)), flat(function(*inputs)), strict=True):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=rtol, atol=rtol)


def tensors(rng, *shapes, scale=1.0):
    return [ndl.Tensor(rng.normal(size=shape) * scale) for shape in shapes]


def of(row, reverse):
    def function(xs, w, *states):
        after, ys = ndl.scan(lambda s, x: row.cell(ndl, s, x, w), [*states], xs, reverse=reverse)
        return [*after, *ys]

    return function


def gradient_of(function):
    def gradient(*inputs):
        total = sum((y * ndl.cos(y)).sum() for y in function(*inputs))
        grads = []
        for x in inputs:  # some are not reached
            try:
                grads += ndl.autograd.grad(total, [x], retain_graph=True)
            except RuntimeError:
                continue
        return grads

    return gradient


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_rows(name, reverse, rng):
    """Each at one of the stages."""
    row = ROWS[name]
    stage = ("noopt", "fused", "tuned")[(list(ROWS).index(name) + reverse) % 3]
    inputs = tensors(rng, (5, 3), (3, 3), *[(3,)] * row.states)
    function = of(row, reverse)
    check(needle_tvm.compile(function, *inputs, stage=stage), function, *inputs)
    if function(*inputs)[0].requires_grad:
        function = gradient_of(function)
        check(needle_tvm.compile(function, *inputs, stage=stage), function, *inputs)


def test_some_rows(rng):
    """At once, with their gradients."""

    def function(xs, w, a, b, c):
        found = []
        for name in QUICK:
            states = (a, b, c)[: ROWS[name].states]
            found += of(ROWS[name], name == QUICK[-1])(xs, w, *states)
        return found, gradient_of(lambda *_: found)(xs, w, a, b, c)

    inputs = tensors(rng, (5, 3), (3, 3), (3,), (3,), (3,))
    check(needle_tvm.compile(function, *inputs), function, *inputs)


@pytest.mark.parametrize("stage", STAGES)
def test_lengths_are_expressions_of_dims(stage, rng):
    def function(h, x):
        def cell(s, x):
            return ndl.tanh(s + x[0] * x[1]), s

        last, ys = ndl.scan(cell, h, (x[1:], x[:-1]), reverse=True)
        return last, ys, ndl.scan(lambda s, _: (s * 0.9, s), last, length=2 * x.shape[0] + 1)

    (h,), steps = tensors(rng, (3,)), ndl.Dim("steps", min=2, max=20)
    run = needle_tvm.compile(
        function, h, *tensors(rng, (5, 3)), stage=stage, dims={"x": {0: steps}}
    )
    for count in (2, 5, 20):
        check(run, function, h, *tensors(rng, (count, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_scans_in_scans_of_open_lengths(stage, rng):
    def function(h, x):
        def inner(q, z):
            return ndl.tanh(q * 0.5 + z * h), q

        return ndl.scan(lambda s, x: ndl.scan(inner, s, x * s), h, x)

    (h,), dims = tensors(rng, (3,)), {0: ndl.Dim("t", max=20), 1: ndl.Dim("u", max=7)}
    for each in (function, lambda h, x: gradient_of(function)(h, x)):
        run = needle_tvm.compile(each, h, *tensors(rng, (5, 4, 3)), stage=stage, dims={"x": dims})
        for shape in ((5, 4, 3), (1, 1, 3), (20, 7, 3)):
            check(run, each, h, *tensors(rng, shape, scale=0.3))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "float16", "bfloat16"])
def test_dtypes_of_states(dtype, rng):
    def function(h):
        last, ys = ndl.scan(lambda s, _: ((s * 3 + s).astype(dtype), s), h.astype(dtype), length=9)
        return last.astype("float64"), ys.astype("float64")

    h = ndl.Tensor(np.array([1.0, 100.0, 3.0]))
    check(needle_tvm.compile(function, h), function, h)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs, self.again, self.norm = nn.Linear(3, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.first = nn.Parameter(ndl.zeros(8))

    def cell(self, h, x):
        h = self.norm(ndl.tanh(self.again(h) + self.inputs(x)))
        return h, h

    def forward(self, x):
        return ndl.scan(self.cell, ndl.broadcast_to(self.first, (x.shape[1], 8)), x)


def test_modules(rng):
    """The weights of a compiled module are packed again when the module has others."""
    model, dims = Recurrent().eval(), {0: ndl.Dim("steps", max=50), 1: ndl.Dim("batch", max=8)}
    run = needle_tvm.compile(model, ndl.randn(6, 4, 3), dims={0: dims})
    for shape in ((6, 4, 3), (1, 1, 3), (50, 8, 3)):
        check(run, model, ndl.randn(*shape), rtol=1e-4)
    other = Recurrent().eval()
    run.set_params(other.state_dict())
    check(run, other, ndl.randn(6, 4, 3), rtol=1e-4)

    x, wrong = ndl.randn(6, 4, 3), []
    wanted = other(x)[0].numpy()

    def called():
        for _ in range(100):
            if not np.allclose(run(x)[0].numpy(), wanted, atol=1e-5):
                wrong.append(x)

    threads = [threading.Thread(target=called) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    child = os.fork()
    if not child:
        called()
        os._exit(len(wrong))
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
def test_gradients_of_gradients_of_long_loops(rng):
    def function(h, x):
        _, ys = ndl.scan(lambda s, x: (ndl.tanh(s * 0.9 + x), s * x), h, x)
        (grad,) = ndl.autograd.grad((ys * ys).sum(), [h], create_graph=True)
        return ndl.autograd.grad((grad * grad).sum(), [h, x])

    inputs = tensors(rng, (4,), (10_000, 4))
    check(needle_tvm.compile(function, *inputs), function, *inputs, rtol=1e-7)
