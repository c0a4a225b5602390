"""Calls of one artifact with random sizes, from eight threads: each bit as of one thread alone."""

import numpy as np
import pytest

import needle_tvm
from needle import nn, ops
from needle.sizes.dims import Dim
from tests.needle.test_concurrent import in_threads
from tests.needle_runtime.ways import drawn
from tests.needle_tvm.conftest import make_mlp, tensor

N, H, T = Dim("n", max=64), Dim("h", min=4, max=9), Dim("t", max=20)
FEW = Dim("n", max=6)
THREADS = 8
HELD = 2  # results that outlive the calls after them


@needle_tvm.jit(dims={"x": {0: N}, "y": {0: N}})
def similarity(x, y):
    """A function of two inputs that agree on a size, with a result of that size twice."""
    x, y = (each / ((each * each).sum(-1, keepdims=True) ** 0.5 + 1e-6) for each in (x, y))
    return ops.softmax(x @ y.transpose(), -1)


# A function of inputs, their shapes, and the sizes that a call may have.
CASES = {
    "mlp": (make_mlp(24, 200, 8), [(N, 24)], [{"n": n} for n in range(1, 65)]),
    "convolutions": (
        nn.Sequential(nn.Conv(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv(8, 4, 3, stride=2)),
        [(FEW, 3, H, 7)],
        [{"n": n, "h": h} for n in range(1, 7) for h in range(4, 10)],
    ),
    "attention": (
        nn.AttentionLayer(16, 2, 8, causal=True),
        [(FEW, T, 16)],
        [{"n": n, "t": t} for n in (1, 2, 5, 6) for t in range(1, 21)],
    ),
    "jit": (similarity, [(N, 12), (N, 12)], [{"n": n} for n in range(1, 65)]),
}


def at(shape, sizes):
    return tuple(n if isinstance(n, int) else sizes[n.name] for n in shape)


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """Callables, each with its inputs and the bits that one thread gets for each of the sizes."""
    model, shapes, sizes = CASES[request.param]
    inputs = [[drawn(*at(shape, each), seed=3) for shape in shapes] for each in sizes]
    if request.param == "jit":
        eager, callables = model.__wrapped__, [model]
    else:
        eager = model.eval()
        dims = {
            i: {a: n for a, n in enumerate(s) if isinstance(n, Dim)} for i, s in enumerate(shapes)
        }
        exe = needle_tvm.compile(model, *map(tensor, inputs[0]), dims=dims, threads=2)
        callables = [exe, exe.program]
    expected = []
    for arrays in inputs:
        found = [np.asarray(numpy(each(*arrays))) for each in callables]
        wanted = eager(*map(tensor, arrays)).numpy()
        for one in found:
            np.testing.assert_allclose(one, wanted, rtol=2e-4, atol=2e-5)
        expected.append([one.tobytes() for one in found])
    yield callables, inputs, expected
    if request.param == "jit":
        assert similarity.cache_info().compilations == 1
        similarity.clear_cache()


def numpy(result):
    return result if isinstance(result, np.ndarray) else result.numpy()


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_calls_of_random_sizes_by_eight_threads(case, count):
    callables, inputs, expected = case
    done = []

    def work(number):
        rng = np.random.default_rng([count, number])
        held = []
        for turn in range(count // THREADS):
            size, which = int(rng.integers(len(inputs))), turn % len(callables)
            held.append((callables[which](*inputs[size]), size, which))
            if len(held) == HELD:
                for result, size, which in held:
                    assert numpy(result).tobytes() == expected[size][which], (size, which)
                done.append(len(held))
                held.clear()

    in_threads(work, THREADS)
    assert sum(done) == count
