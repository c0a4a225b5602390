"""Gradients to a convolution's weights, as convolutions."""

import numpy as np
import pytest

import needle_tvm
from needle import ops
from needle.autograd.dispatch import apply
from needle.ops.conv import ConvWeight
from needle_tvm._tvm.names import relax
from needle_tvm.graph.dependence import bindings_of, is_op
from needle_tvm.kernels.conv.cpu import TAPS
from needle_tvm.kernels.conv.weight_gradients import weight_gradients
from needle_tvm.lower import pipeline
from needle_tvm.tir.functions import NODES, nodes_in, prim_funcs
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.modules import AVX512, Spec, check_stays, needle_module

torch = pytest.importorskip("torch")


def gradient(kernel, **options):
    return lambda x, g: apply(ConvWeight(kernel, **options), (x, g))


def convolutions(function, *specs):
    """The convolutions that a gradient becomes, with its other operators' names."""
    module = weight_gradients(needle_module(function, *specs), AVX512)
    values = list(bindings_of(module["main"]).values())
    found = [value for value in values if is_op(value, "relax.nn.conv2d")]
    assert len(found) == 1
    return found[0], {str(v.op.name) for v in values if isinstance(v, relax.Call)}


def of_pytorch(x, g, kernel, stride, padding, dilation):
    x, g = (torch.from_numpy(each).permute(0, 3, 1, 2).double() for each in (x, g))
    shape = g.shape[1], x.shape[1], *kernel
    found = torch.nn.grad.conv2d_weight(x, shape, g, stride, padding, dilation)
    return found.permute(2, 3, 1, 0).numpy()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_they_are_pytorchs(seed, dtype):
    draw = np.random.default_rng(seed)
    while True:
        kernel, stride, dilation = (tuple(draw.integers(1, 4, 2).tolist()) for _ in range(3))
        padding = tuple(draw.integers(0, 4, 2).tolist())
        images = tuple(draw.choice([1, 2, 3, 5, 8, 13], 2).tolist())
        outputs = [
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, p, d, k, s in zip(images, padding, dilation, kernel, stride, strict=True)
        ]
        if min(outputs) > 0:
            break
    batch, inputs, channels = (int(draw.choice([1, 3, 4, 16])) for _ in range(3))
    x = draw.standard_normal((batch, *images, inputs)).astype(dtype)
    g = draw.standard_normal((batch, *outputs, channels)).astype(dtype)
    function = gradient(kernel, stride=stride, padding=padding, dilation=dilation)
    found = needle_tvm.compile(function, tensor(x), tensor(g))(x, g).numpy()
    expected = of_pytorch(x, g, kernel, stride, padding, dilation)
    # Sums of at most 16 * 8 * 8 products.
    unit = np.finfo(dtype).eps * np.abs(expected).max(initial=1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=64 * unit)


def test_strides_and_dilation_change_places():
    function = gradient((3, 3), stride=(2, 1), padding=(1, 1), dilation=(1, 2))
    call, _ = convolutions(function, Spec(2, 8, 8, 3), Spec(2, 4, 6, 5))
    assert [*map(int, call.attrs.strides)] == [1, 2]
    assert [*map(int, call.attrs.dilation)] == [2, 1]
    # One row of padding in front is enough for the last row that a window reaches.
    assert [*map(int, call.attrs.padding)] == [1, 1, 0, 1]


def test_taps_that_meet_only_padding_are_not_computed():
    function = gradient((3, 3), padding=(1, 1))
    call, others = convolutions(function, Spec(4, 1, 1, 8), Spec(4, 1, 1, 16))
    assert [int(n) for n in call.ty.shape.values] == [8, 1, 1, 16]
    assert "relax.nn.pad" in others


def test_long_sums_are_taken_in_parts():
    function = gradient((1, 1))
    for batch, size, parts in [(16, 8, 2), (64, 8, 8), (7, 32, 7), (1, 64, 1), (3, 8, 1)]:
        images = Spec(batch, size, size, 4)
        call, others = convolutions(function, images, Spec(batch, size, size, 6))
        assert int(call.attrs.groups) == parts
        assert ("relax.sum" in others) == (parts > 1)
    x = np.full((64, 16, 16, 1), 0.1, "float32")
    found = needle_tvm.compile(function, tensor(x), tensor(x))(x, x).numpy()
    # 16384 equal products, added one after the other, are off by 1e-4.
    np.testing.assert_allclose(found, np.sum(x.astype("float64") ** 2), rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 8, 8, 17, 37), (3, 5, 6, 64, 16), (64, 8, 8, 8, 8)])
def test_the_gradient_is_written_once_in_the_layout_of_the_weights(shape):
    batch, rows, columns, inputs, channels = shape
    of_weights = gradient((3, 2), padding=(1, 1))

    def step(x, g, w):
        found = of_weights(x, g)
        clipped = found / (1.0 + (found * found).sum())
        return w - clipped * 0.1, w * 0.9 + clipped * clipped

    specs = Spec(batch, rows, columns, inputs), Spec(batch, rows, columns + 1, channels)
    weights = Spec(3, 2, inputs, channels)
    module = needle_module(step, *specs, weights)
    module = pipeline.run(pipeline.of(AVX512, "tuned").graph, module, AVX512)
    writers = [
        name
        for name, function in prim_funcs(module).items()
        if any(TAPS in block.annotations for block in nodes_in(function, NODES.sblock))
    ]
    assert len(writers) == 1
    draw = np.random.default_rng(0)
    x, g, w = (draw.standard_normal(each.shape).astype("float32") for each in (*specs, weights))
    found = needle_tvm.compile(step, *map(tensor, (x, g, w)))(x, g, w)
    wanted = of_pytorch(x, g, (3, 2), (1, 1), (1, 1), (1, 1))
    wanted /= 1 + (wanted**2).sum()
    # Sums of at most 64 * 8 * 9 products, divided by numbers above 1.
    for a, b in zip(found, (w - wanted * 0.1, w * 0.9 + wanted**2), strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 3, 6, 8), (1, 3, 3, 6, 8), (3, 3, 6, 8), (3, 3, 1, 8)])
@pytest.mark.parametrize("inputs", [6, 1])
def test_what_is_added_may_have_a_larger_shape(shape, inputs):
    """The gradient, and then a convolution whose result (1, 3, 3, 8) is broadcast as well."""
    draw = np.random.default_rng(0)
    of_weights = gradient((3, 3))
    shapes = (2, 9, 7, inputs), (2, 7, 5, 8), shape, (3, 3, inputs, 8), (1, 3, 3, inputs)
    x, g, b, w, image = (draw.standard_normal(each).astype("float32") for each in shapes)

    def added(x, g, b, w, image):
        return of_weights(x, g) + b, ops.relu(ops.conv(image, w)) * b[..., :1, :]

    found = needle_tvm.compile(added, *map(tensor, (x, g, b, w, image)))(x, g, b, w, image)
    wanted = of_pytorch(x, g, (3, 3), (1, 1), (0, 0), (1, 1)) + b
    # Sums of 70 products.
    np.testing.assert_allclose(found[0].numpy(), wanted, rtol=0, atol=1e-4)
    images, weights = torch.from_numpy(image).permute(0, 3, 1, 2), torch.from_numpy(w)
    made = torch.conv2d(images, weights.permute(3, 2, 0, 1), padding=1).relu()
    np.testing.assert_allclose(
        found[1].numpy(), made.permute(0, 2, 3, 1).numpy() * b[..., :1, :], rtol=0, atol=1e-4
    )


@pytest.mark.parametrize(
    ("function", "specs"),
    [
        (gradient((3, 3), padding=(1, 1), groups=2), (Spec(2, 4, 4, 4), Spec(2, 4, 4, 6))),
        (gradient((3, 3), padding=(1, 1)), (Spec(0, 4, 4, 4), Spec(0, 4, 4, 6))),
        *[
            (gradient((1, 1)), (Spec(16, 9, 9, 2, dtype=dtype), Spec(16, 9, 9, 3, dtype=dtype)))
            for dtype in ("float16", "bfloat16")
        ],
        (lambda x, y: x * y, (Spec(2, 3), Spec(2, 3))),
    ],
    ids=["groups", "no images", "float16", "bfloat16", "another op"],
)
def test_what_stays(function, specs):
    check_stays(weight_gradients, needle_module(function, *specs), AVX512)
