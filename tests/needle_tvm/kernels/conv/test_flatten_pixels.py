"""1x1 convolutions over all pixels of an image, where tiles of pixels do not divide its rows."""

import numpy as np
import pytest

import needle_tvm
from needle import Tensor, nn
from needle_tvm._tvm.names import relax
from needle_tvm.kernels.conv.cpu_tiles import conv_tile
from needle_tvm.kernels.conv.flatten_pixels import flatten_pixels
from tests.needle_tvm.kernels.conv.convolutions import OF_PLANES, N, conv, planes_first
from tests.needle_tvm.modules import AVX2, AVX512, Spec, check_becomes, check_stays, relax_module

op = relax.op

IMAGES, WEIGHTS = Spec(2, 7, 7, 24), Spec(1, 1, 24, 64)


def pointwise(x, w, **options):
    return conv(x, w, 0, out_dtype="float32", **options)


def test_pixels_are_laid_out_in_one_row():
    def after(x, w):
        return op.reshape(pointwise(op.reshape(x, (2, 49, 1, 24)), w), (2, 7, 7, 64))

    check_becomes(
        flatten_pixels,
        relax_module(pointwise, IMAGES, WEIGHTS, params=1),
        relax_module(after, IMAGES, WEIGHTS, params=1),
        AVX2,
    )


STAYS = {
    "a larger window": (IMAGES, Spec(3, 3, 24, 64), {}),
    "strides": (IMAGES, WEIGHTS, {"strides": 2}),
    "padding": (IMAGES, WEIGHTS, {"padding": 1}),
    "groups": (IMAGES, Spec(1, 1, 12, 64), {"groups": 2}),
    "dilation that moves nothing": (IMAGES, WEIGHTS, {"dilation": 2}),
    "one row": (Spec(2, 1, 49, 24), WEIGHTS, {}),
    "one column": (Spec(2, 49, 1, 24), WEIGHTS, {}),
    "rows that tiles divide": (Spec(2, 6, 12, 24), WEIGHTS, {}),
    "no images": (Spec(0, 7, 7, 24), WEIGHTS, {}),
    "shapes that are not static": (Spec(N, 7, 7, 24), WEIGHTS, {}),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    *specs, options = STAYS[name]
    options = {"padding": 0, **options}
    check_stays(
        flatten_pixels, relax_module(lambda x, w: conv(x, w, **options), *specs, params=1), AVX2
    )


def test_other_layouts_stay():
    check_stays(flatten_pixels, relax_module(planes_first, *OF_PLANES, params=1), AVX2)


def test_rows_of_seven_fill_the_registers_of_avx512():
    check_stays(
        flatten_pixels, relax_module(pointwise, IMAGES, Spec(1, 1, 24, 64), params=1), AVX512
    )


@pytest.mark.parametrize("output", [(1, 14, 14, 192), (1, 28, 28, 64), (1, 49, 1, 368)], ids=str)
def test_avx2_reads_no_more_inputs_than_it_multiplies(output):
    """Each input of a pixel is loaded by an instruction of its own: a tile of one vector of
    channels has one for every multiply-add, and takes half as long again."""
    tile = conv_tile(output, 152, "float32", AVX2)
    vectors = tile.channels // 8
    assert vectors >= 2
    assert 8 <= tile.pixels * vectors <= 16 - vectors - 1


@pytest.mark.parametrize("batch", [1, 3])
def test_epilogues_on_flat_pixels_are_right(batch, rng):
    """Residual sums, activations and gates of channels, fused into a flattened convolution."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.widen = nn.Conv2d(24, 64, 1)
            self.gate = nn.Conv2d(24, 64, 1)
            self.narrow = nn.Conv2d(64, 24, 1)

        def forward(self, x):
            gate = self.gate(x.mean((2, 3), keepdims=True)).sigmoid()
            return self.narrow(self.widen(x).relu() * gate) + x

    model = Block().eval()
    x = Tensor(rng.standard_normal((batch, 24, 7, 7)).astype("float32"))
    target = {"kind": "llvm", "mcpu": "x86-64-v3"}
    compiled = needle_tvm.compile(model, x, target=target)
    np.testing.assert_allclose(compiled(x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)
    script = compiled.script
    assert f"(T.int64({batch}), T.int64(49), T.int64(1), T.int64(64))" in script
