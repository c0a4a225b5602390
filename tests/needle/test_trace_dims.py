"""Traces with dims: at any sizes, they are the traces that inputs of these sizes make."""

import numpy as np
import pytest

import needle as ndl
from needle import nn, ops
from needle.errors import DimError, ShapeError, TraceError
from needle.sizes.dims import Dim, dims_of
from needle.trace import trace

N, M, T = Dim("n", max=20), Dim("m", min=2, max=9), Dim("t", min=2, max=12)
H, W = Dim("h", min=8, max=30), Dim("w", min=8, max=30)
K = Dim("k", min=8, max=64, multiple_of=8)
LINEAR = nn.Linear(8, 8).eval()
CROSS = nn.AttentionLayer(16, 2, 8, causal=True).eval()


def gradient(x, y):
    weight = LINEAR.weight
    nn.CrossEntropyLoss()(ops.tanh(x @ weight), y).backward()
    found, weight.grad = weight.grad, None
    return found


def halves(x):
    middle = x.shape[0] // 2
    return ops.concat([x[middle:], x[:middle]], 0) * x.shape[0] - 1 / (x + x.shape[0])


def reductions(x):
    return [
        *(rule(x, 0) for rule in (ops.max, ops.min, ops.argmax, ops.logsumexp, ops.var)),
        *(x.mean(), x.sum((0, 1)), ops.softmax(x, 0), ops.normalize(x, 0), ops.flip(x)),
    ]


def grown(x):
    rows = -x.shape[0] % 8
    return ops.pad(x, ((0, rows), (1, 0)))[:, 1:].reshape((-1, 8, 8)).sum(1)


def blocks(x):
    return x.reshape((x.shape[0] // 8, 8, 4)).sum(1), x[::8], x[-3:], x[5], x[x.shape[0] - 1]


CASES = {
    "mlp": (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), [(N, 8)]),
    "convolutions": (
        nn.Sequential(nn.Conv(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.ReLU()),
        [(N, 3, H, W)],
    ),
    "groups": (nn.Sequential(nn.GroupNorm(2, 4), nn.AvgPool2d(3, 2, 1)), [(2, 4, H, W)]),
    "attention": (nn.AttentionLayer(16, 2, 8, causal=True), [(N, T, 16)]),
    "two lengths": (lambda q, k: CROSS(q, k, k), [(N, T, 16), (N, M, 16)]),
    "transformer": (
        nn.Transformer(16, 8, 1, num_head=2, dim_head=8, batch_first=True, sequence_len=12),
        [(N, T, 16)],
    ),
    "lstm": (nn.LSTM(6, 5, 2), [(T, N, 6)]),
    "halves": (halves, [(M, 8)]),
    "reductions": (reductions, [(N, 8)]),
    "grown": (grown, [(N, 8)]),
    "blocks": (blocks, [(K, 4)]),
    "gradient": (gradient, [(N, 8), ("int64", N)]),
    "products": (lambda x, y: (x @ ops.transpose(y), x.reshape(-1)), [(N, 8), (M, 8)]),
    "expressions": (lambda x, y: x + y[::2] + y[: x.shape[0]], [(N, 8), (2 * N, 8)]),
    "picked": (lambda x, i: (ops.take(x, i, 0), x[i], x[:, i[0]]), [(M, 2), ("int64", N, 2)]),
    "squares": (lambda x: x.reshape((x.shape[0] * x.shape[1],)), [(N, M)]),
}


def inputs_of(shapes, sizes):
    arrays = []
    for shape in shapes:
        dtype, *extents = shape if isinstance(shape[0], str) else ("float32", *shape)
        numbers = [n if isinstance(n, int) else n.value(sizes) for n in extents]
        values = np.random.default_rng(0).standard_normal(numbers)
        arrays.append((values if dtype == "float32" else abs(values) % 2).astype(dtype))
    return arrays


def symbolic(shapes):
    return {
        number: {a: n for a, n in enumerate(extents) if not isinstance(n, int)}
        for number, shape in enumerate(shapes)
        for extents in [shape[1:] if isinstance(shape[0], str) else shape]
    }


@pytest.mark.parametrize("case", CASES)
def test_at_sizes_it_is_the_trace_of_these_sizes(case):
    model, shapes = CASES[case]
    if isinstance(model, nn.Module):
        model.eval()
    rng = np.random.default_rng(1)
    dims = sorted(
        dims_of(n for shape in shapes for n in shape if not isinstance(n, str)),
        key=lambda dim: dim.name,
    )
    graph = trace(model, *inputs_of(shapes, {d: d.max for d in dims}), dims=symbolic(shapes))
    assert graph.dims == dims
    drawn = [
        {d: d.multiple_of * int(rng.integers(d.min // d.multiple_of, d.max // d.multiple_of + 1))
         for d in dims}
        for _ in range(4)
    ]  # fmt: skip
    for sizes in ({d: d.min for d in dims}, {d: d.max for d in dims}, *drawn):
        inputs = inputs_of(shapes, sizes)
        sized, plain = graph.at(sizes), trace(model, *inputs)
        assert [leaf.spec for leaf in sized.inputs] == [leaf.spec for leaf in plain.inputs]
        assert [node.spec for node in sized.outputs] == [node.spec for node in plain.outputs]
        for found, wanted in zip(computed(sized, inputs), computed(plain, inputs), strict=True):
            np.testing.assert_array_equal(found, wanted)


def computed(graph, inputs):
    values = {
        leaf.node: array if leaf in graph.inputs else leaf.value.numpy()
        for leaves, arrays in (
            (graph.inputs, inputs),
            ([*graph.params, *graph.constants], [None] * 10**3),
        )
        for leaf, array in zip(leaves, arrays, strict=False)
    }
    for node in graph.nodes:
        if node.op is not None:
            operands = [ndl.backend_ndarray.NDArray(values[x]) if not isinstance(values[x], tuple)
                        else tuple(map(ndl.backend_ndarray.NDArray, values[x]))
                        for x in node.input_nodes]  # fmt: skip
            out = node.op.compute(*operands)
            values[node] = tuple(x.numpy() for x in out) if type(out) is tuple else out.numpy()
    return [values[node] for node in graph.outputs]


X = np.zeros((5, 8), np.float32)


@pytest.mark.parametrize(
    ("dims", "match"),
    [
        ({"y": {0: N}}, "'y' is not an input; they are x, xs_0"),
        ({2: {0: N}}, "2 is not an input"),
        ({1: {0: N}}, "1 is not an input"),
        ({"x": {2: N}}, r"dims\['x'\]\[2\]: the input is float32\[5, 8\], which has no axis 2"),
        ({"x": {"0": N}}, r"dims\['x'\]\['0'\]: an axis is an int"),
        ({"x": {0: N, -2: N}}, "axis 0 is given twice"),
        ({"x": {0: N}, 0: {0: N}}, "input 'x' is given twice"),
        ({"x": {0: 5}}, r"dims\['x'\]\[0\]=5: must be a Dim"),
        ({"x": {0: N - 1}}, "can be 0, which is below 1"),
        ({"x": N}, r"dims\['x'\]=n: must be a dict from axes"),
        ([N], "must be a dict like"),
        ({"x": {0: N}, "xs_0": {0: Dim("n", max=9)}}, r"one name: n \(1 to 20\), n \(1 to 9\)"),
    ],
)
def test_dims_that_do_not_fit(dims, match):
    with pytest.raises(DimError, match=match):
        trace(lambda x, xs: x + xs[0], X, [X], dims=dims)


@pytest.mark.parametrize(
    ("function", "error", "match"),
    [
        (lambda x: x @ np.zeros((3, 8), "f"), ShapeError, "extents 8 and 3"),
        (lambda x: np.zeros((2, 4), "f") @ x, TraceError, "matmul: .*whether 4 == n"),
        (lambda x: x + np.zeros((4, 8), "f"), TraceError, r"add: .*whether n == 4.*n \(1 to 20\)"),
        (lambda x: x.reshape((-1, 16)), TraceError, "reshape: .*8 \\* n elements.*multiple_of"),
        (lambda x: x[:7], TraceError, "slice: .*whether n < 7"),
        (lambda x: x[3], TraceError, "slice: .*whether n > 3"),
        (lambda x: x[1:], TraceError, "slice: .*extent n - 1 can be 0.*larger min"),
        (lambda x: ops.squeeze(x), TraceError, "squeeze: .*whether n == 1"),
        (lambda x: ops.split(x, 0), TraceError, "split: axis 0 of float32.*size n"),
        (lambda x: list(x), TraceError, "the value of n.*range"),
        (lambda x: len(x), TraceError, "the value of n"),
        (lambda x: ops.max_pool(x.reshape((1, -1, 8, 1)), 2), TraceError, "whether n < 2"),
        (lambda x: ops.broadcast_to(x, (3, 8)), TraceError, "broadcast_to: .*whether n == 3"),
        (lambda x: x * 2 if x.shape[0] > 4 else x, TraceError, "whether n > 4.*test_trace_dims"),
    ],
)
def test_what_sizes_do_not_decide(function, error, match):
    with pytest.raises(error, match=match):
        trace(function, X, dims={0: {0: N}})


def test_an_error_names_the_module():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(4, 4)).eval()
    with pytest.raises(ShapeError, match="8 and 4"):
        trace(model, X, dims={0: {0: N}})
    with pytest.raises(TraceError, match=r"module 'modules\.0' needs to know whether n == 8"):
        trace(model, X, dims={0: {1: N}})


def test_bounds_are_part_of_the_fingerprint():
    def fingerprint(dim, x=X):
        return trace(LINEAR, x, dims={0: {0: dim}}).fingerprint()

    assert fingerprint(N) == fingerprint(Dim("n", max=20), X[:2])
    assert len({fingerprint(d) for d in (N, M, Dim("n", max=21), Dim("n", max=20, min=2))}) == 4
    assert fingerprint(N) != trace(LINEAR, X).fingerprint()


def test_eager_tensors_keep_plain_ints():
    x = ndl.Tensor(X)
    assert all(type(n) is int for n in (*x.shape, x.numel())) and isinstance(x.size, int)
    assert all(type(n) is int for n in trace(LINEAR, X).outputs[0].spec.shape)
