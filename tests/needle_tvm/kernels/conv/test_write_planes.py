"""Convolutions that write their results channels first."""

import numpy as np
import pytest

import needle_tvm
from needle import nn, ops
from needle_tvm._tvm.names import OP_PATTERN, relax
from needle_tvm.kernels.conv.pack_conv import pack_conv
from needle_tvm.kernels.conv.write_planes import fuse_planes, write_planes
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.kernels.conv.convolutions import conv
from tests.needle_tvm.modules import AVX512, Spec, emit, relax_module

X, W, BIAS = Spec(2, 40, 40, 16), Spec(3, 3, 16, 32), Spec(32)
TO_PLANES = [0, 3, 1, 2]


def passed(function, *specs):
    """The module after the passes, of a function of an input and two parameters."""
    module = relax_module(function, *specs, params=2)
    with AVX512:
        return fuse_planes(write_planes(pack_conv(module, AVX512), AVX512), AVX512)


def has_planes(function, *specs):
    patterns = {
        variable.name_hint: function.attrs.get("op_pattern")
        for variable, function in passed(function, *specs).functions_items()
    }
    assert patterns.get("planes", OP_PATTERN.elementwise) == OP_PATTERN.elementwise
    return "planes" in patterns


def permuted(y, order=TO_PLANES):
    return relax.op.permute_dims(y, order)


def test_a_result_that_is_permuted():
    assert has_planes(lambda x, w, b: permuted(conv(x, w)), X, W, BIAS)


def test_operators_between():
    def act(x, w, b):
        return permuted(relax.op.nn.silu(relax.op.add(conv(x, w), b)))

    assert has_planes(act, X, W, BIAS)


def test_images_of_a_volume():
    def volume(x, w, b):
        y = relax.op.reshape(relax.op.nn.relu(conv(x, w)), (1, 2, 40, 40, 32))
        return permuted(y, [0, 4, 1, 2, 3])

    assert has_planes(volume, X, W, BIAS)


@pytest.mark.parametrize(
    "function, x, w",
    [
        (lambda x, w, b: permuted(conv(x, w)), Spec(2, 10, 10, 16), W),  # small
        (lambda x, w, b: permuted(conv(x, w)), Spec(1, 4, 600, 16), W),  # of few rows
        (lambda x, w, b: permuted(conv(x, w), [0, 3, 2, 1]), X, W),  # another order
        (lambda x, w, b: permuted(conv(x, w, groups=2)), X, Spec(3, 3, 8, 32)),
        (lambda x, w, b: permuted(conv(x, w, groups=32)), Spec(2, 40, 40, 32), Spec(3, 3, 1, 32)),
        (lambda x, w, b: permuted(conv(x, w)), Spec(400, 2, 2, 16), Spec(3, 3, 16, 64)),
        (lambda x, w, b: permuted(relax.op.nn.relu(x)), Spec(2, 40, 40, 32), W),
        (lambda x, w, b: permuted(relax.op.nn.softmax(conv(x, w))), X, W),
        (lambda x, w, b: permuted(relax.op.reshape(conv(x, w), (2, 20, 80, 32))), X, W),
        (lambda x, w, b: permuted(relax.op.add(conv(x, w), conv(x, w))), X, W),
    ],
    ids=[
        *("small", "few_rows", "order", "groups", "depthwise", "several_images_in_a_tile"),
        *("no_conv", "not_elementwise", "other_images", "two_convolutions"),
    ],
)
def test_what_stays(function, x, w):
    assert not has_planes(function, x, w, BIAS)


def test_a_result_that_others_read_stays():
    def twice(x, w, b):
        y = emit(conv(x, w))
        return permuted(y), relax.op.nn.relu(y)

    assert not has_planes(twice, X, W, BIAS)


class Model(nn.Module):
    """A convolution, and what follows it: `(result, another input)`."""

    def __init__(self, layer, after):
        super().__init__()
        self.layer, self.after = layer, after

    def forward(self, x, beside):
        return self.after(self.layer(x), beside)


# Layers, the shapes of their inputs, what follows them, and the shape of its other operand.
CASES = {
    "tiles_of_rows_that_do_not_divide_them": (
        *(nn.Conv2d(3, 64, 3, padding=1), (8, 3, 33, 5)),
        *(lambda y, b: y, lambda y, b: y, (1,)),
    ),
    "a_function": (
        *(nn.Conv2d(3, 20, 3, padding=1), (1, 3, 61, 67)),
        *(lambda y, b: ops.sigmoid(y), lambda y, b: 1 / (1 + np.exp(-y)), (1,)),
    ),
    "an_operator_after_the_permutation": (
        *(nn.Conv2d(5, 21, 5, stride=2), (2, 5, 95, 81)),
        *(lambda y, b: ops.relu(y) + b, lambda y, b: np.maximum(y, 0) + b, (2, 21, 46, 39)),
    ),
    "a_volume": (
        *(nn.Conv3d(2, 24, (3, 5, 3), stride=(2, 1, 2), padding=1), (2, 2, 19, 37, 41)),
        *(lambda y, b: y * 2, lambda y, b: y * 2, (1,)),
    ),
}


@pytest.mark.parametrize(
    "name",
    [next(iter(CASES)), *(pytest.param(n, marks=pytest.mark.slow) for n in list(CASES)[1:])],
)
def test_numbers(name, rng):
    torch = pytest.importorskip("torch")
    layer, shape, after, in_numpy, other = CASES[name]
    x, beside = (rng.standard_normal(each).astype(np.float32) for each in (shape, other))
    executable = needle_tvm.compile(
        Model(layer, after).eval(), *map(tensor, (x, beside)), threads=2
    )
    functions = [line for line in executable.script.splitlines() if " def fused_conv" in line]
    assert [line.count("planes") > 0 for line in functions] == [True]

    count = len(shape) - 2
    weight = layer.weight.numpy().transpose(count + 1, count, *range(count))
    arrays = [torch.from_numpy(a.astype(np.float64)) for a in (x, weight, layer.bias.numpy())]
    convolved = torch.nn.functional.conv2d if count == 2 else torch.nn.functional.conv3d
    expected = in_numpy(convolved(*arrays, layer.stride, layer.padding).numpy(), beside)
    found = executable(*map(tensor, (x, beside))).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
