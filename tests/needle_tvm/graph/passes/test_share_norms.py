"""Several layer norms of one tensor as one, their scales and shifts folded into the products."""

import numpy as np
import pytest

from needle_tvm._tvm.names import relax, tirx
from needle_tvm.graph.passes.share_norms import share_norms
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, emit, relax_module

ROW, W = Spec(8), Spec(8, 6)
matmul, multiply, add, reshape = (
    getattr(relax.op, name) for name in ("matmul", "multiply", "add", "reshape")
)


def norm(x, g, b, axes=(-1,), epsilon=1e-5):
    return emit(relax.op.nn.layer_norm(x, g, b, axes=list(axes), epsilon=epsilon))


def two(x, g, b, h, c, v, w, **options):
    """Two products of one tensor, each with a norm of its own."""
    return matmul(norm(x, g, b), v), matmul(norm(x, h, c, **options), w)


def plain(x, dtype="float32", epsilon=1e-5):
    ones = relax.const(np.ones(8), dtype)
    return emit(
        relax.op.nn.layer_norm(x, ones, ones, axes=[-1], epsilon=epsilon, center=False, scale=False)
    )


def folded(n, g, b, w):
    bias = matmul(reshape(b, (1, 8)), w)
    return add(matmul(n, multiply(w, reshape(g, (8, 1)))), bias)


def specs(*shape, dtype="float32"):
    others = (Spec(*each.shape, dtype=dtype) for each in (ROW, ROW, ROW, ROW, W, W))
    return Spec(*shape, dtype=dtype), *others


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (tirx.Var("n", "int64"), 8)], ids=str)
def test_two_norms(shape, dtype):
    def after(x, g, b, h, c, v, w):
        n = plain(x, dtype)
        return folded(n, g, b, v), folded(n, h, c, w)

    types = specs(*shape, dtype=dtype)
    check_becomes(
        share_norms,
        relax_module(two, *types, params=6),
        relax_module(after, *types, params=6),
    )
    last = len(shape) - 1
    check_becomes(
        share_norms,
        relax_module(lambda *v: two(*v, axes=[last]), *types, params=6),
        relax_module(after, *types, params=6),
    )


def test_a_norm_of_two_products_and_epsilons_apart():
    def before(x, g, b, h, c, v, w):
        one, other = norm(x, g, b), norm(x, h, c)
        third, fourth = norm(x, g, c, epsilon=0.5), norm(x, h, b, epsilon=0.5)
        return matmul(one, v), matmul(one, w), matmul(other, w), matmul(third, v), matmul(fourth, v)

    def after(x, g, b, h, c, v, w):
        n, m = plain(x), plain(x, epsilon=0.5)
        return (
            *(folded(n, g, b, v), folded(n, g, b, w), folded(n, h, c, w)),
            *(folded(m, g, c, v), folded(m, h, b, v)),
        )

    check_becomes(
        share_norms,
        relax_module(before, *specs(3, 8), params=6),
        relax_module(after, *specs(3, 8), params=6),
    )


def of_inputs(*order):
    """`two` with arguments in another order, and how many of the last are parameters."""
    return lambda *given: two(*(given[i] for i in order))


STAYS = {
    "one norm": (lambda x, g, b, h, c, v, w: matmul(norm(x, g, b), v), specs(3, 8), 6),
    "norms of two tensors": (
        lambda x, y, g, b, w: (matmul(norm(x, g, b), w), matmul(norm(y, g, b), w)),
        (Spec(3, 8), Spec(3, 8), ROW, ROW, W),
        3,
    ),
    "two epsilons": (lambda *v: two(*v, epsilon=0.5), specs(3, 8), 6),
    "a vector": (two, specs(8), 6),
    "no rows": (two, specs(0, 8), 6),
    "scales that are inputs": (
        lambda g, x, b, v, w: (matmul(norm(x, g, b), v), matmul(norm(x, g, b), w)),
        (ROW, Spec(3, 8), ROW, W, W),
        3,
    ),
    "shifts that are inputs": (
        lambda b, x, g, v, w: (matmul(norm(x, g, b), v), matmul(norm(x, g, b), w)),
        (ROW, Spec(3, 8), ROW, W, W),
        3,
    ),
    "weights that are inputs": (
        lambda x, v, w, g, b: (matmul(norm(x, g, b), v), matmul(norm(x, g, b), w)),
        (Spec(3, 8), W, W, ROW, ROW),
        2,
    ),
    "weights of three axes": (
        lambda x, g, b, v, w: (matmul(norm(x, g, b), v), matmul(norm(x, g, b), w)),
        (Spec(2, 3, 8), ROW, ROW, Spec(2, 8, 6), Spec(2, 8, 6)),
        4,
    ),
    "weights on the left": (
        lambda x, g, b, v, w: (matmul(v, norm(x, g, b)), matmul(w, norm(x, g, b))),
        (Spec(8, 8), ROW, ROW, Spec(8, 8), Spec(8, 8)),
        4,
    ),
    "readers that are no product": (
        lambda x, g, b: (relax.op.negative(norm(x, g, b)), relax.op.exp(norm(x, g, b))),
        (Spec(3, 8), ROW, ROW),
        2,
    ),
    "other axes": (
        lambda x, g, b, h, c, v, w: (
            matmul(norm(x, g, b, axes=[0]), v),
            matmul(norm(x, h, c, axes=[0]), w),
        ),
        specs(8, 8),
        6,
    ),
    "two axes": (
        lambda x, g, b, v, w: (
            matmul(norm(x, g, b, axes=[0, 1]), v),
            matmul(norm(x, g, b, axes=[0, 1]), w),
        ),
        (Spec(3, 8), Spec(3, 8), Spec(3, 8), W, W),
        4,
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    before, types, params = STAYS[name]
    check_stays(share_norms, relax_module(before, *types, params=params))


def test_a_norm_that_others_read_stays():
    def before(x, g, b, h, c, v, w):
        read = norm(x, g, b)
        return matmul(read, v), relax.op.negative(read), matmul(norm(x, h, c), w)

    check_stays(share_norms, relax_module(before, *specs(3, 8), params=6))


def test_rows_that_are_not_static_stay():
    n = tirx.Var("n", "int64")
    types = Spec(3, n), *[Spec(n)] * 4, *[Spec(n, 6)] * 2
    check_stays(share_norms, relax_module(two, *types, params=6))


def test_a_function_that_does_not_name_its_parameters_stays():
    check_stays(share_norms, relax_module(two, *specs(3, 8), params=None))
