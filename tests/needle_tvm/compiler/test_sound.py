"""Programs that once compiled wrongly or not at all, and similar ones.

Each is compared with NumPy, in float64 where the types allow it.
"""

import numpy as np
import pytest

import needle_tvm
from needle import nn, ops
from needle.testing import assert_close
from tests.needle_tvm.conftest import tensor

STAGES = ("noopt", "fused", "tuned")
THREADS = (1, 2)


def check(function, arrays, expected, stage="tuned", threads=None, length=1):
    """Check two calls of the compiled function; the second runs on used memory."""
    compiled = needle_tvm.compile(
        function, *map(tensor, arrays), stage=stage, threads=threads, check=False
    )
    for _ in range(2):
        results = compiled(*map(tensor, arrays))
        results = results if isinstance(results, tuple) else (results,)
        for found, value in zip(results, expected, strict=True):
            value = np.asarray(value).astype(found.dtype)
            assert_close(found.numpy(), value, reduction_length=length)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(24,), (17,), (1001,), (3, 5, 7)])
@pytest.mark.parametrize("base", ["same", "one"])
def test_a_power_that_is_read_twice(shape, dtype, base, rng):
    """A vector moved back computed some elements twice, in memory that TVM shares."""
    b = rng.standard_normal(shape).astype(dtype)
    a = rng.standard_normal(shape if base == "same" else (1,)).astype(dtype)
    wide = [x.astype("float64") for x in (a, b)]
    v = (np.abs(wide[0]) + 0.6) ** np.tanh(wide[1])

    def f(a, b):
        v = (ops.abs(a) + 0.6) ** ops.tanh(b)
        return v + v * v

    for threads in THREADS:
        check(f, [a, b], [v + v * v], threads=threads)


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool"])
@pytest.mark.parametrize("length", [17, 24, 31, 50])
def test_normalised_vectors_of_integers(length, dtype, rng):
    x = rng.integers(-3, 4, length).astype(dtype)
    wide = x.astype("float64")
    softmax = np.exp(wide - wide.max())
    log = wide - wide.max() - np.log(softmax.sum())

    def f(x):
        return ops.softmax(x, axis=-1), ops.logsoftmax(x)

    try:
        f(tensor(x))
    except TypeError:
        pytest.skip(f"needle has no softmax of {dtype}")
    check(f, [x], [softmax / softmax.sum(), log], length=length)


@pytest.mark.parametrize("stage", STAGES)
def test_outputs_made_of_parameters_alone(stage, rng):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Parameter(rng.standard_normal((3, 5)).astype("float32"))
            self.q = nn.Parameter(rng.standard_normal((5,)).astype("float32"))

        def forward(self, x):
            total = self.p.sum()
            return x * 2, total, self.p, ops.exp(self.q) @ self.p.transpose(), total + x

    model = Model()
    model.eval()
    x = rng.standard_normal((2, 2)).astype("float32")
    p, q = (each.numpy().astype("float64") for each in (model.p, model.q))
    expected = [x * 2, p.sum(), p, np.exp(q) @ p.T, p.sum() + x]
    check(model, [x], expected, stage, length=15)


@pytest.mark.parametrize("stage", STAGES)
def test_vectors_multiplied_after_a_0_d_operand(stage, rng):
    a, b = (rng.standard_normal(9).astype("float32") for _ in range(2))
    m = rng.standard_normal((9, 4)).astype("float32")
    s = np.float32(1.5).reshape(())

    def f(a, b, m, s):
        return ops.matmul(a * s, b), ops.matmul(a + s, m), ops.matmul(m.transpose(), s - b) * s

    expected = [a * s @ b, (a + s) @ m, m.T @ (s - b) * s]
    check(f, [a, b, m, s], expected, stage, length=9)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("axes", [(-1, -2), (2, 0), (1, -3), (2, 1, 0), (-2, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_over_unsorted_axes(stage, axes, keepdims, rng):
    x = rng.standard_normal((4, 3, 5)).astype("float32")
    wide = x.astype("float64")

    def f(x):
        return (
            ops.var(x, axes, keepdims=keepdims),
            ops.summation(x, axes, keepdims=keepdims),
            ops.max(x, axes, keepdims=keepdims),
            ops.mean(x, axes, keepdims=keepdims),
        )

    kept = {"axis": axes, "keepdims": keepdims}
    expected = [wide.var(**kept), wide.sum(**kept), wide.max(**kept), wide.mean(**kept)]
    check(f, [x], expected, stage, length=60)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("start", range(0, 24, 5))
def test_reversed_slices_with_steps(stage, start, rng):
    """TVM divided descending indices wrongly, and LLVM vectorised masked loops wrongly."""
    x = rng.standard_normal((24, 12)).astype("float32")
    key = (slice(start, None, -3), slice(None, None, -1))
    check(
        lambda x: (ops.exp(x[key]), x[key].reshape((-1,)) * 2),
        [x],
        [np.exp(x[key].astype("float64")), x[key].reshape(-1) * 2],
        stage,
    )


@pytest.mark.parametrize("stage", STAGES)
def test_nothing_and_empty_tensors(stage):
    empty = np.zeros((0, 3), "float32")
    full = np.arange(6, dtype="float32").reshape(2, 3)
    with np.errstate(all="ignore"):
        check(
            lambda e, x: (e + 1, ops.summation(e, 0), ops.concat((e, x), 0), e @ x.transpose()),
            [empty, full],
            [empty + 1, empty.sum(0), full, np.zeros((0, 2))],
            stage,
        )


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_constants_keep_their_dtype(stage, dtype):
    """Translation once turned 64 bits into 32."""
    big = {"float64": 1 + 2.0**-40, "int64": 2**40 + 1}[dtype]
    constant = np.full(3, big, dtype)
    x = np.arange(3, dtype=dtype)
    table = tensor(constant)
    check(lambda x: x + table, [x], [x + constant], stage)


@pytest.mark.parametrize("stage", STAGES)
def test_bfloat16_is_rounded_between_operations(stage, rng):
    """TVM dropped the casts between operations that it fused."""
    import ml_dtypes

    def rounded(x):
        return x.astype(ml_dtypes.bfloat16).astype("float32")

    x = rng.standard_normal(200).astype(ml_dtypes.bfloat16)
    wide = x.astype("float32")
    expected = rounded(rounded(wide * 3) - rounded(wide * 2))
    compiled = needle_tvm.compile(lambda x: x * 3 - x * 2, tensor(x), stage=stage)
    found = compiled(tensor(x)).numpy().astype("float32")
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("length", [5, 64])
def test_an_own_ops_arithmetic_of_booleans(stage, length, rng):
    """Topi keeps sums and products of booleans, which LLVM's code generator does not have."""
    from needle.op import REGISTRY, Elementwise, register

    @register
    class OwnMix(Elementwise):
        """y = x * x + x."""

        def reference(self, x):
            return x * x + x

        def compute(self, x):
            return x * x + x

        def emit_te(self, k, x):
            return k.topi.add(k.topi.multiply(x, x), k.topi.maximum(x, k.topi.minimum(x, x)))

    try:
        x = rng.integers(0, 2, length).astype(bool)
        check(lambda x: OwnMix()(x), [x], [x], stage)
    finally:
        del REGISTRY["own_mix"]


VIEWS = [  # two views of x, whose shapes broadcast to a shape that neither has
    ((5, 3), (5, 1, 3), (1, 5, 3)),
    ((3, 5), (3, 1, 5), (1, 3, 1, 5)),
    ((1, 5), (1, 1, 5), (5, 1)),
    ((2, 3, 4), (2, 3, 1, 4), (2, 1, 3, 4)),
    ((6, 4), (6, 4), (1, 6, 4)),
    ((6, 4), (2, 3, 4), (3, 2, 1, 4)),
]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("shape", "one", "other"), VIEWS, ids=str)
def test_two_views_of_one_tensor(shape, one, other, stage, rng):
    """`tuned` once took the second view for one like the first and gave a wrong shape."""
    x, y = (rng.standard_normal(shape).astype("float32") for _ in "xy")

    def f(x, y):
        a, b = x.reshape(one), x.reshape(other)
        return ops.relu(a - b), b * (y.reshape(one) + 1), ops.exp(x.reshape(one)) - y.reshape(other)

    a, b = x.reshape(one).astype("float64"), x.reshape(other).astype("float64")
    expected = [np.maximum(a - b, 0), b * (y.reshape(one) + 1), np.exp(a) - y.reshape(other)]
    check(f, [x, y], expected, stage)


@pytest.mark.parametrize("shape", [(5,), (1, 1, 1, 5), (1,), (1, 1, 1, 1)], ids=str)
def test_a_view_and_a_tensor_of_more_axes(shape, rng):
    x, y = (rng.standard_normal(s).astype("float32") for s in ((3, 5), shape))
    wide = x.astype("float64").reshape(3, 1, 5)
    check(lambda x, y: ops.relu(x.reshape((3, 1, 5)) + y), [x, y], [np.maximum(wide + y, 0)])


OVERFLOWING = {
    "above": lambda a, b: (a + 1) > a,
    "below": lambda a, b: (a - 1) < a,
    "at least": lambda a, b: (a + b) >= a,
    "difference": lambda a, b: (a - b) < 0,
    "square": lambda a, b: (a * a) >= 0,
    "product": lambda a, b: a * b + a - b,
    "negative": lambda a, b: (-a, -a > 0),
    "sum": lambda a, b: ((a * b).sum(), (a + b).reshape(2, 40).sum(0)),
    "matrices": lambda a, b: a.reshape(8, 10) @ b.reshape(10, 8),
    "cast": lambda a, b: ((a * b).astype("float64"), (a + b).astype("int64")),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", OVERFLOWING)
def test_integers_wrap_around(name, dtype, stage):
    """TVM assumes that integers never overflow, and tells LLVM so."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    a = np.resize(np.array([most, least, most - 1, least + 1, 0, 1, -1, 2, 12345], dtype), 80)
    b = np.resize(np.array([1, -1, most, least, 5, -7, 2**30], dtype), 80)
    with np.errstate(over="ignore"):
        expected = OVERFLOWING[name](a, b)
    expected = expected if isinstance(expected, tuple) else (expected,)
    compiled = needle_tvm.compile(OVERFLOWING[name], tensor(a), tensor(b), stage=stage, check=False)
    results = compiled(a, b)
    results = results if isinstance(results, tuple) else (results,)
    for found, value in zip(results, expected, strict=True):
        np.testing.assert_array_equal(found.numpy(), value)


HIGHER = {  # a scale or norm with more axes than its operand, or fewer than the rule expected
    "scaled rows": lambda p, x: (x @ p["w"]) * p["s"],
    "a scaled row": lambda p, x: (x[0] @ p["w"]) * p["s"][0],
    "softmax": lambda p, x: ops.reshape(ops.softmax((x @ p["w"]) * p["s"], 1), (3, 4)),
    "sum": lambda p, x: ops.summation((x @ p["w"]) * p["s"], 0),
    "shifted": lambda p, x: (x @ p["w"] + p["s"]) * p["v"],
    "norms of a row": lambda p, x: ops.concat(
        [
            ops.layer_norm(x[0], p["g"], p["h"]) @ p["w"],
            ops.layer_norm(x[0], p["h"], p["g"]) @ p["w"],
        ],
        0,
    ),
    "convolution": lambda p, x: ops.conv(ops.reshape(x, (1, 3, 5, 1)), p["k"], 1, 1) * p["t"],
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", HIGHER)
def test_a_scale_may_have_more_axes(name, stage, rng):
    shapes = {"w": (5, 4), "s": (1, 1, 4), "v": (4,), "g": (5,), "h": (5,)}
    shapes |= {"k": (3, 3, 1, 8), "t": (1, 1, 1, 1, 8)}
    parameters = {
        name: nn.Parameter(tensor(rng.standard_normal(shape).astype("float32")))
        for name, shape in shapes.items()
    }
    x = tensor(rng.standard_normal((3, 5)).astype("float32"))

    def function(x):
        return HIGHER[name](parameters, x)

    expected = function(x).numpy()
    found = needle_tvm.compile(function, x, stage=stage, check=False)(x).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("weights", "rows", "scale"), [(1e20, 1e-10, 1e20), (1e-25, 1e30, 1e-20), (1, 1, np.inf)]
)
def test_weights_overflow_no_sooner_than_results(weights, rows, scale, stage, rng):
    w = nn.Parameter(tensor((rng.standard_normal((8, 16)) * weights).astype("float32")))
    x = tensor((rng.standard_normal((4, 8)) * rows).astype("float32"))
    expected = ((x @ w) * scale).numpy()
    found = needle_tvm.compile(lambda x: (x @ w) * scale, x, stage=stage, check=False)(x).numpy()
    atol = 1e-6 * np.abs(expected[np.isfinite(expected)]).max(initial=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)


LONG = {
    "mean": (lambda x: ops.mean(x), lambda x: x.mean()),
    "sum of rows": (lambda x: x.sum(1), lambda x: x.sum(1)),
    "sum of columns": (lambda x: x.sum(0), lambda x: x.sum(0)),
    "variance": (lambda x: ops.var(x), lambda x: x.var()),
    "error": (lambda x: ((x - 1) ** 2).mean(), lambda x: ((x - 1) ** 2).mean()),
    "logsumexp": (lambda x: ops.logsumexp(x, (0, 1)), lambda x: np.log(np.exp(x).sum())),
    "normalize": (
        lambda x: ops.normalize(x, (0, 1))[:2],
        lambda x: ((x - x.mean()) / np.sqrt(x.var() + 1e-5))[:2],
    ),
    "softmax": (
        lambda x: ops.softmax(ops.reshape(x, (1, -1))),
        lambda x: (np.exp(x) / np.exp(x).sum()).reshape(1, -1),
    ),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", LONG)
def test_a_long_sum_is_as_exact_as_a_short_one(name, stage, rng):
    """Added sequentially, positive terms lose a bit each time their number doubles."""
    function, reference = LONG[name]
    x = rng.uniform(0.5, 1.5, (509, 1021)).astype("float32")
    found = needle_tvm.compile(function, tensor(x), stage=stage, check=False)(tensor(x)).numpy()
    # Exponentials are summed in float32, where each of n terms may be one rounding off.
    rtol = 1e-4 if name == "softmax" else 2e-6
    expected = reference(x.astype("float64"))
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max())
