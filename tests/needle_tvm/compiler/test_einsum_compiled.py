"""einsum and other products, compiled: equal to the eager ones, also at sizes that calls decide."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import fft, linalg, ops
from tests.needle.ops.test_einsum import CASES
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.together import check_together

STAGES = ("noopt", "fused", "tuned")


def einsum(subscripts):
    return lambda *xs: ops.einsum(subscripts, *xs)


def inputs(rng, *shapes):
    return [tensor(rng.standard_normal(shape, dtype=np.float32)) for shape in shapes]


def test_a_few_equations(rng):
    """Batch, merged axes, an order that is chosen and a diagonal, at sizes that calls decide."""
    n = ndl.Dim("n", min=3, max=64)

    def function(a, b):  # of (n, 3, 4) and (4, n)
        return (
            *(ops.einsum("bij,bkj->bik", a, a), ops.einsum("bij,jk,ck->bic", a, b, b)),
            *(ops.einsum("iji->j", a[:3, :, :3]), ops.tensordot(a, b, ([0, 2], [1, 0]))),
        )

    compiled = needle_tvm.compile(
        function, *inputs(rng, (5, 3, 4), (4, 5)), dims={"a": {0: n}, "b": {1: n}}
    )
    for size in (3, 9):
        xs = inputs(rng, (size, 3, 4), (4, size))
        for got, want in zip(compiled(*xs), function(*xs), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_compiled_is_eager(stage, rng):
    cases = [
        (einsum(subscripts), inputs(rng, *shapes))
        for subscripts, shapes in CASES.items()
        if 0 not in [n for shape in shapes for n in shape]
    ]
    cases += [
        (ops.bmm, inputs(rng, (2, 3, 4), (2, 4, 5))),
        (ops.tensordot, inputs(rng, (2, 3, 4), (3, 4, 5))),
        (ops.outer, inputs(rng, (3,), (4,))),
        (ops.dot, inputs(rng, (2, 3, 4), (5, 4, 6))),
        (ops.kron, inputs(rng, (2, 3), (4, 5))),
        (lambda x: ops.trace(x, 1, 0, 2), inputs(rng, (3, 4, 5))),
        (ops.cross, inputs(rng, (2, 3), (3,))),
        (lambda x: linalg.matrix_power(x, 5), inputs(rng, (3, 3))),
        (lambda x: linalg.norm(x, 1), inputs(rng, (3, 4))),
        (lambda x: linalg.norm(x), inputs(rng, (3, 4))),
    ]
    check_together(cases, 1e-4, stage=stage)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_compiled_gradients_are_eager(stage, rng):
    def gradients(a, b, c):
        y = ops.einsum("bij,bjk,jl->kl", a, b, c) + ops.trace(c) * ops.einsum("bkj->jk", a)[:3, :1]
        return ndl.autograd.grad((y * y).sum(), [a, b, c])

    xs = [ndl.Tensor(x.numpy()) for x in inputs(rng, (2, 3, 4), (2, 4, 3), (4, 4))]
    compiled = needle_tvm.compile(gradients, *xs, stage=stage)
    for got, want in zip(compiled(*xs), gradients(*xs), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_sizes_that_the_call_decides(stage, rng):
    n, m = ndl.Dim("n", min=2, max=64), ndl.Dim("m", min=2, max=64)

    def function(a, b, c):  # of (n, 4, m), (n, m, 5) and (m, m)
        return (
            *(ops.einsum("bij,bjk->bik", a, b), ops.einsum("bij,bjk,jl->kl", a, b, c)),
            *(ops.einsum("ii->i", c), ops.einsum("bij->jb", a), ops.einsum("bij,jl->lbi", a, c)),
            *(ops.einsum("bij,bil->bjl", a, a), ops.einsum("bij,cik->bcjk", a, a)),
            *(ops.tensordot(a, b, ([0, 2], [0, 1])), ops.outer(c, c[0]), ops.dot(c[0], c[1])),
            *(ops.kron(c, c[0]), ops.trace(c), ops.bmm(a, b), ops.cross(a[:, :3], a[:, 1:], 1)),
            *(linalg.matrix_power(c, 3), linalg.norm(c, 1), linalg.norm(c, "fro")),
        )

    dims = {"a": {0: n, 2: m}, "b": {0: n, 1: m}, "c": {0: m, 1: m}}

    def given(n, m):
        return inputs(rng, (n, 4, m), (n, m, 5), (m, m))

    compiled = needle_tvm.compile(function, *given(3, 4), dims=dims, stage=stage)
    for sizes in ((2, 2), (3, 7), (17, 33)):
        xs = given(*sizes)
        for number, (got, want) in enumerate(zip(compiled(*xs), function(*xs), strict=True)):
            np.testing.assert_allclose(
                got.numpy(), want.numpy(), rtol=1e-4, atol=1e-3, err_msg=str(number)
            )


@pytest.mark.parametrize("function", [linalg.inv, linalg.svd, fft.rfft])
def test_what_numpy_computes_is_refused_by_name(function):
    x = tensor(np.eye(3, dtype=np.float32))
    with pytest.raises(ndl.TraceError, match=rf"\.{function.__name__}: tracing: .* eager code"):
        needle_tvm.compile(function, x)
