"""while_loop and cond compiled, beside eager at every stage."""

import threading

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import ops
from needle.errors import UnsupportedError
from needle.nn import Parameter
from needle.testing import assert_close

STAGES = ("noopt", "fused", "tuned")
W = Parameter(ndl.Tensor(np.random.default_rng(0).standard_normal((4, 4)) * 0.3, dtype="float32"))


def whiles(limit):
    return lambda s: s[0] < limit


def count(*parts):
    return lambda s: (s[0] + 1, *[part(s) for part in parts])


def collatz(x):
    step = lambda n: ndl.cond((n % 2 == 0).reshape(()), lambda: n // 2, lambda: 3 * n + 1)  # noqa: E731
    return ndl.while_loop(lambda s: s[0] != 1, lambda s: (step(s[0]), s[1] + 1), (x, 0))


def nested_whiles(x):
    def outer(s):
        inner = ndl.while_loop(lambda t: t.sum() < s[0], lambda t: t + 1.0, s[1])
        return s[0] + 4.0, inner

    return ndl.while_loop(lambda s: s[0] < 20.0, outer, (0.0, x))


def scan_in_while(x):
    def body(s):
        total, ys = ndl.scan(lambda c, row: (c + row, (c * row).tanh()), s[1].sum(0) * 0.1, s[1])
        return s[0] + 1, ys + total

    return ndl.while_loop(whiles(3), body, (0, x))


def choices_in_scan(x):
    def cell(s, row):
        y = ndl.cond(row.sum() > 0, lambda: (s @ W).tanh(), lambda: s - row)
        z = ndl.while_loop(lambda t: (t * t).sum() > 1.0, lambda t: t * 0.5, y)
        return y, z

    return ndl.scan(cell, x[0], x)


def sorting_branch(x):
    return ndl.cond(
        x[0, 0] > 0,
        lambda: (ops.sort(x, -1)[0], ops.argsort(x, -1)),
        lambda: (-x, ops.argsort(-x, 0)),
    )


def nested_conds(x):
    inner = lambda: ndl.cond(x.sum() > 0, lambda: x @ W, lambda: x * 3)  # noqa: E731
    return ndl.cond((x[0, :1] > 0), inner, lambda: x)


BOTH = {
    "counter": (lambda x: ndl.while_loop(whiles(5), count(lambda s: s[1] * 2), (0, x))),
    "none": (lambda x: ndl.while_loop(whiles(-1), count(lambda s: s[1] * 2), (0, x))),
    "kept": (lambda x: ndl.while_loop(whiles(3), count(lambda s: s[1]), (0, x))),
    "swapped": (
        lambda x: ndl.while_loop(whiles(3), count(lambda s: s[2], lambda s: s[1]), (0, x, x * 2))
    ),
    "constant": (lambda x: ndl.while_loop(whiles(3), count(lambda s: x), (0, x * 2))),
    "twice": (lambda x: ndl.while_loop(whiles(2), count(*[lambda s: s[1] + 1] * 2), (0, x, x))),
    "weights": (lambda x: ndl.while_loop(whiles(4), count(lambda s: (s[1] @ W).tanh()), (0, x))),
    "test_of_a_flag": (
        lambda x: ndl.while_loop(
            lambda s: s[0], lambda s: (s[1].sum() > -50, s[1] - 1), (x.sum() < 1e9, x)
        )
    ),
    "test_of_shape_1": (lambda x: ndl.while_loop(lambda s: s[:1, 0] < 9, lambda s: s.abs() + 1, x)),
    "nested_whiles": nested_whiles,
    "scan_in_while": scan_in_while,
    "choices_in_scan": choices_in_scan,
    "sorting_branch": sorting_branch,
    "nested_conds": nested_conds,
    "inputs": (lambda x: ndl.cond(x.sum() > 0, lambda: (x, x, W), lambda: (x, x + 1, W * 2))),
    "sort_in_while": (
        lambda x: ndl.while_loop(whiles(3), count(lambda s: ops.sort(s[1] * -1, 0)[0]), (0, x))
    ),
    "same_in_both": (lambda x: ndl.cond(x.sum() > 0, lambda: x @ W, lambda: x @ W)),
    "constants": (lambda x: ndl.cond(x.sum() > 0, lambda: 1.0, lambda: 2.0)),
    "views": (lambda x: ndl.cond(x.sum() > 0, lambda: x.reshape(-1), lambda: (x * 2).reshape(-1))),
}


def flat(value):
    if isinstance(value, (tuple, list, ndl.TensorTuple)):
        return [y for x in value for y in flat(x)]
    return [np.asarray(value.numpy())]


def check(function, *inputs, stages=STAGES, **choices):
    want = flat(function(*inputs))
    for stage in stages:
        made = needle_tvm.compile(function, *inputs, stage=stage, check=False, **choices)
        for a, b in zip(flat(made(*inputs)), want, strict=True):
            assert_close(a, b, 64, scale=1.0, what=stage)
    return made


def inputs_of(rng, shape=(3, 4), dtype="float32"):
    x = rng.standard_normal(shape) * 0.5
    return [ndl.Tensor(s * x, dtype=dtype, requires_grad=False) for s in (1, -1)]


@pytest.mark.parametrize("name", BOTH)
def test_rows(name, rng):
    for x in inputs_of(rng):
        check(BOTH[name], x, stages=("noopt", "tuned"))


def test_integers(rng):
    check(collatz, ndl.Tensor(np.array(27)))
    check(collatz, ndl.Tensor(np.array([27])))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "bool", "float64"])
def test_dtypes(dtype, rng):
    x = ndl.Tensor(rng.integers(0, 2, (5,))).astype(dtype)
    step = (lambda s: ~s[1]) if dtype == "bool" else (lambda s: s[1] + s[1])
    check(lambda x: ndl.while_loop(whiles(3), count(step), (0, x)), x)
    check(lambda x: ndl.cond(x.sum() > 1, lambda: (x, x), lambda: (step((0, x)), x)), x)


def test_no_elements():
    x = ndl.zeros((0, 3))
    check(lambda x: ndl.while_loop(whiles(3), count(lambda s: s[1] + 1), (0, x)), x)
    check(lambda x: ndl.cond(x.sum() > 1, lambda: x * 2, lambda: x + 1), x)


def test_threads_pay(rng):
    x = ndl.Tensor(rng.standard_normal((256, 256)) * 0.05, dtype="float32", requires_grad=False)
    w = Parameter(ndl.Tensor(rng.standard_normal((256, 256)) * 0.05, dtype="float32"))
    check(lambda x: ndl.while_loop(whiles(9), count(lambda s: (s[1] @ w).tanh()), (0, x)), x)
    loop = lambda x: ndl.while_loop(  # noqa: E731
        lambda s: (s[1] * s[1]).sum() > 1e-3, count(lambda s: ops.exp(s[1] @ w) * 0.5 - 0.5), (0, x)
    )
    check(loop, x)
    check(lambda x: ndl.cond(x[0, 0] > 0, lambda: ((x @ w) @ w).tanh(), lambda: x * 2), x)


def test_gradients(rng):
    def gradient(x, w):
        y = ndl.cond(x.sum() > 0, lambda: ((x @ w).tanh(), x), lambda: (x * x, x @ w))
        total = (y[0] * y[0]).sum() + (y[1] * x).sum()
        first = ndl.autograd.grad(total, [x, w], create_graph=True)
        return [*first, *ndl.autograd.grad(sum((g * g).sum() for g in first), [x, w])]

    w = ndl.Tensor(rng.standard_normal((4, 4)), dtype="float64")
    for x in inputs_of(rng, dtype="float64"):
        given = [ndl.Tensor(v.numpy(), requires_grad=True) for v in (x, w)]
        check(gradient, *given, stages=("noopt", "tuned"))


def test_open_sizes(rng):
    n = ndl.Dim("n", min=1, max=64)
    for name in ("counter", "swapped", "weights", "nested_whiles", "inputs", "sorting_branch"):
        function = BOTH[name]
        made = needle_tvm.compile(
            function, inputs_of(rng)[0], dims={0: {0: n}}, stage="tuned", check=False
        )
        for rows in (1, 3, 50):
            for x in inputs_of(rng, (rows, 4)):
                for a, b in zip(flat(made(x)), flat(function(x)), strict=True):
                    assert_close(a, b, 64, scale=1.0, what=name)


def test_called_from_two_threads_at_once(rng):
    x, y = inputs_of(rng)
    function = BOTH["nested_conds"]
    made = needle_tvm.compile(function, x, stage="tuned")
    wrong = []

    def call(x):
        want = flat(function(x))[0]
        for _ in range(200):
            if not np.allclose(flat(made(x))[0], want, atol=1e-5):
                wrong.append(x)

    threads = [threading.Thread(target=call, args=(each,)) for each in (x, y)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_no_gradient_through_a_while_loop(rng):
    def gradient(x):
        return ndl.autograd.grad(BOTH["weights"](x)[1].sum(), [x])[0]

    x = ndl.Tensor(rng.standard_normal((3, 4)), dtype="float32")
    with pytest.raises(UnsupportedError, match="number of steps is unknown"):
        gradient(x)
    with pytest.raises(UnsupportedError, match="number of steps is unknown"):
        needle_tvm.compile(gradient, x)
