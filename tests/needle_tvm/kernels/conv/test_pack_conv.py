"""Convolutions on packed weights."""

import pytest

from needle_tvm._tvm.names import OP_PATTERN, relax
from needle_tvm.kernels.conv.cpu_tiles import conv_tile, depthwise_tile
from needle_tvm.kernels.conv.pack_conv import pack_conv
from needle_tvm.kernels.conv.te import Channels, Geometry
from needle_tvm.kernels.conv.te import conv as packed_conv
from needle_tvm.kernels.dense.pack_weights import pack
from tests.needle_tvm.kernels.conv.convolutions import OF_PLANES, conv, planes_first
from tests.needle_tvm.modules import (
    AVX2,
    AVX512,
    Spec,
    check_becomes,
    check_stays,
    emit,
    kernel,
    relax_module,
)

X, W = Spec(2, 7, 6, 16), Spec(3, 3, 16, 24)
OUTPUT = 2, 7, 6, 24
PLAIN = Geometry((7, 6), (1, 1), (1, 1), (1, 1))


def packed(w, tile):
    return kernel(
        lambda w: pack(w, tile.channels), w, name="pack_weight", op_pattern=OP_PATTERN.opaque
    )


def packed_in_calls(w, tile):
    return kernel(lambda w: pack(w, tile.channels), w, name="pack", op_pattern=OP_PATTERN.injective)


def on_panels(x, panels, n, geometry, channels, tile):
    return kernel(
        lambda a, p: packed_conv(a, p, n, geometry, channels, tile),
        x,
        panels,
        name="depthwise_conv" if channels.depthwise else "conv",
        op_pattern=OP_PATTERN.out_fusable,
    )


def becomes(before, after, *specs, params=1, target=AVX512):
    check_becomes(
        pack_conv,
        relax_module(before, *specs, params=params),
        relax_module(after, *specs, params=params),
        target,
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_are_packed(dtype):
    tile = conv_tile(OUTPUT, 9 * 16, dtype, AVX512)
    specs = (Spec(*each.shape, dtype=dtype) for each in (X, W))
    becomes(
        conv,
        lambda x, w: on_panels(x, packed(w, tile), 24, PLAIN, Channels(16, 24, False, False), tile),
        *specs,
    )


def test_weights_that_are_an_input_are_packed_for_many_pixels():
    tile = conv_tile(OUTPUT, 9 * 16, "float32", AVX512)
    channels = Channels(16, 24, False, False)
    becomes(
        conv,
        lambda x, w: on_panels(x, packed_in_calls(w, tile), 24, PLAIN, channels, tile),
        *(X, W),
        params=0,
    )


def test_strides_dilation_and_padding():
    geometry = Geometry((3, 6), (2, 1), (1, 2), (1, 3))
    tile = conv_tile((2, 3, 6, 24), 9 * 16, "float32", AVX512)
    channels = Channels(16, 24, False, False)
    becomes(
        lambda x, w: conv(x, w, padding=(1, 3, 0, 1), strides=(2, 1), dilation=(1, 2)),
        lambda x, w: on_panels(x, packed(w, tile), 24, geometry, channels, tile),
        *(X, W),
    )


def test_groups():
    tile = conv_tile(OUTPUT, 9 * 8, "float32", AVX512, 12)
    channels = Channels(8, 12, False, False)
    becomes(
        lambda x, w: conv(x, w, groups=2),
        lambda x, w: on_panels(x, packed(w, tile), 24, PLAIN, channels, tile),
        *(X, Spec(3, 3, 8, 24)),
    )


def test_a_depthwise_convolution():
    tile = depthwise_tile((2, 7, 6, 16), (3, 3), (1, 1), "float32", AVX512)
    channels = Channels(1, 1, True, False)
    becomes(
        lambda x, w: conv(x, w, groups=16),
        lambda x, w: on_panels(x, packed(w, tile), 16, PLAIN, channels, tile),
        *(X, Spec(3, 3, 1, 16)),
    )


def test_one_channel_is_no_depthwise_convolution():
    tile = conv_tile((2, 7, 6, 1), 9, "float32", AVX512, overlapping=True)
    channels = Channels(1, 1, False, False)
    becomes(
        conv,
        lambda x, w: on_panels(x, packed(w, tile), 1, PLAIN, channels, tile),
        *(Spec(2, 7, 6, 1), Spec(3, 3, 1, 1)),
    )


WIDE = Spec(1, 16, 16, 256), Spec(1, 1, 256, 1024), Spec(1024)


@pytest.mark.parametrize(
    ("then", "narrow"),
    [
        (lambda y, b: relax.op.nn.gelu(y), True),
        (lambda y, b: relax.op.nn.gelu(emit(relax.op.add(y, b))), True),
        (lambda y, b: emit(relax.op.erf(emit(relax.op.multiply(y, b)))), True),
        (lambda y, b: relax.op.nn.silu(emit(relax.op.add(y, b))), False),
        (lambda y, b: relax.op.add(y, b), False),
    ],
    ids=["gelu", "bias and gelu", "scale and erf", "silu", "bias"],
)
def test_tiles_before_erf_leave_it_registers(then, narrow):
    """With AVX2, the tile is two vectors wide instead of four."""
    tiles = [
        conv_tile((1, 16, 16, 1024), 256, "float32", AVX2, step=1024, widest=widest)
        for widest in (4, 2)
    ]
    assert [tile.channels for tile in tiles] == [32, 16]
    geometry, channels = Geometry((16, 16), (1, 1), (1, 1), (0, 0)), Channels(256, 1024)
    becomes(
        lambda x, w, b: then(emit(conv(x, w, padding=0)), b),
        lambda x, w, b: then(
            on_panels(x, packed(w, tiles[narrow]), 1024, geometry, channels, tiles[narrow]), b
        ),
        *WIDE,
        params=2,
        target=AVX2,
    )


def to_rows(x, order=(0, 2, 3, 1)):
    return relax.op.permute_dims(x, list(order))


@pytest.mark.parametrize(("kernel_size", "overlapping"), [(3, True), (1, False)])
def test_few_channels_are_read_plane_by_plane(kernel_size, overlapping):
    padding = kernel_size // 2
    terms = kernel_size**2 * 7
    tile = conv_tile(OUTPUT, terms, "float32", AVX512, overlapping=overlapping)
    geometry = Geometry((7, 6), (1, 1), (1, 1), (padding, padding))
    channels = Channels(7, 24, False, True)
    becomes(
        lambda x, w: conv(to_rows(x), w, padding=padding),
        lambda x, w: on_panels(
            x,
            packed(emit(relax.op.permute_dims(w, [2, 0, 1, 3])), tile),
            24,
            geometry,
            channels,
            tile,
        ),
        *(Spec(2, 7, 7, 6), Spec(kernel_size, kernel_size, 7, 24)),
    )


def test_weights_that_two_layers_share_are_packed_once():
    tile = conv_tile(OUTPUT, 9 * 7, "float32", AVX512, overlapping=True)
    channels = Channels(7, 24, False, True)

    def after(x, y, w):
        panels = packed(emit(relax.op.permute_dims(w, [2, 0, 1, 3])), tile)
        return tuple(on_panels(each, panels, 24, PLAIN, channels, tile) for each in (x, y))

    planes = Spec(2, 7, 7, 6)
    becomes(
        lambda x, y, w: (conv(to_rows(x), w), conv(to_rows(y), w)),
        after,
        *(planes, planes, Spec(3, 3, 7, 24)),
    )


@pytest.mark.parametrize(
    ("shape", "order", "groups"),
    [
        ((2, 8, 7, 6), (0, 2, 3, 1), 1),
        ((2, 4, 6, 7), (0, 3, 2, 1), 1),
        ((2, 4, 7, 6), (0, 2, 3, 1), 2),
    ],
    ids=["many channels", "another order", "groups"],
)
def test_other_permutations_are_read_as_they_are(shape, order, groups):
    inputs = shape[1] // groups
    each = 24 // groups if groups > 1 else None
    tile = conv_tile(OUTPUT, 9 * inputs, "float32", AVX512, each, overlapping=inputs < 8)
    channels = Channels(inputs, 24 // groups, False, False)
    becomes(
        lambda x, w: conv(to_rows(x, order), w, groups=groups),
        lambda x, w: on_panels(to_rows(x, order), packed(w, tile), 24, PLAIN, channels, tile),
        *(Spec(*shape), Spec(3, 3, inputs, 24)),
    )


HALF = [Spec(*each.shape, dtype="float16") for each in (X, W)]
STAYS = {
    "weights that are an input, and few pixels": (conv, (Spec(1, 3, 5, 16), W), 0),
    "images that are parameters": (conv, (X, W), 2),
    "halves": (conv, HALF, 1),
    "two dtypes": (lambda x, w: conv(x, w, out_dtype="float32"), (X, HALF[1]), 1),
    "no images": (conv, (Spec(0, 7, 6, 16), W), 1),
    "other layouts": (planes_first, OF_PLANES, 1),
    "another operator": (relax.op.matmul, (Spec(2, 4), Spec(4, 6)), 1),
    "a function that does not name its parameters": (conv, (X, W), None),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    before, specs, params = STAYS[name]
    if name == "images that are parameters":
        check_stays(
            pack_conv,
            relax_module(lambda y, x, w: (y, conv(x, w)), Spec(1), *specs, params=params),
        )
    else:
        check_stays(pack_conv, relax_module(before, *specs, params=params))
