"""Transposed convolutions as those of needle, of images of channels last."""

import pytest

from needle.ops._conv_transpose import axis_of, emit
from needle_tvm._tvm.names import relax, tirx
from needle_tvm.frontend.torch.passes.conv_transpose import conv_transpose
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, relax_module
from tests.needle_tvm.modules import emit as bound

op = relax.op
n = tirx.Var("n", "int64")
X, W = Spec(2, 3, 6, 7), Spec(3, 5, 4, 4)


def transposed(**options):
    return lambda x, w: op.nn.conv2d_transpose(x, w, **options)


def becomes(before, after, *specs):
    check_becomes(
        conv_transpose,
        relax_module(before, *specs, params=1),
        relax_module(after, *specs, params=1),
    )


def channels_last(x, w, rows, columns, groups=1):
    """(B, H, W, C) of operands that are permuted so."""
    return bound(emit(relax, bound(x), bound(w), (axis_of(*rows), axis_of(*columns)), groups))


@pytest.mark.parametrize("batch", [2, n])
@pytest.mark.parametrize(
    ("options", "window", "rows", "columns"),
    [
        ({"padding": 1}, (5, 3, 3), (6, 6, 3, 1, 1, 1), (7, 7, 3, 1, 1, 1)),
        ({"strides": 2, "padding": 1}, (5, 4, 4), (6, 12, 4, 2, 1, 1), (7, 14, 4, 2, 1, 1)),
        (
            {"strides": 2, "output_padding": 1},
            *((5, 2, 3), (6, 13, 2, 2, 0, 1), (7, 16, 3, 2, 0, 1)),
        ),
        (
            {"strides": (2, 1), "dilation": (1, 3), "groups": 3},
            *((2, 4, 2), (6, 14, 4, 2, 0, 1), (7, 10, 2, 1, 0, 3)),
        ),
    ],
    ids=["padding", "stride", "results past the last", "groups and dilation"],
)
def test_images(options, window, rows, columns, batch):
    def after(x, w):
        x, w = op.permute_dims(x, [0, 2, 3, 1]), op.permute_dims(w, [2, 3, 1, 0])
        y = channels_last(x, w, rows, columns, options.get("groups", 1))
        return op.permute_dims(y, [0, 3, 1, 2])

    becomes(transposed(**options), after, Spec(batch, 3, 6, 7), Spec(3, *window))


def test_a_sequence_is_an_image_one_row_high():
    def after(x, w):
        x = op.reshape(op.permute_dims(x, [0, 2, 1]), (2, 1, 9, 4))
        w = op.reshape(op.permute_dims(w, [2, 1, 0]), (1, 4, 5, 4))
        y = channels_last(x, w, (1, 1, 1, 1, 0, 1), (9, 18, 4, 2, 1, 1))
        return op.permute_dims(op.reshape(y, (2, 18, 5)), [0, 2, 1])

    becomes(
        lambda x, w: op.nn.conv1d_transpose(x, w, strides=2, padding=1),
        after,
        *(Spec(2, 4, 9), Spec(4, 5, 4)),
    )


def volume(x, w, taps):
    """(B, planes, pixels, groups, taps, channels) of a volume's planes as images."""
    x = op.reshape(op.permute_dims(x, [0, 2, 3, 4, 1]), (2 * 3, 6, 7, 4))
    w = op.permute_dims(op.permute_dims(w, [2, 3, 4, 1, 0]), [1, 2, 0, 3, 4])
    y = channels_last(x, op.reshape(w, (1, 1, taps * 5, 4)), (6, 6, 1, 1, 0, 1), (7, 7, 1, 1, 0, 1))
    return bound(op.reshape(y, (2, 3, 42, 1, taps, 5)))


def test_a_volume_whose_planes_become_blocks():
    def after(x, w):
        y = op.permute_dims(volume(x, w, 2), [0, 1, 4, 2, 3, 5])
        y = op.reshape(op.reshape(y, (2, 6, 42, 1, 5)), (2, 6, 6, 7, 5))
        return op.permute_dims(y, [0, 4, 1, 2, 3])

    becomes(
        lambda x, w: op.nn.conv3d_transpose(x, w, strides=(2, 1, 1)),
        after,
        *(Spec(2, 4, 3, 6, 7), Spec(4, 5, 2, 1, 1)),
    )


def test_a_volume_whose_planes_overlap():
    """Of 3 taps by strides of 2 the first and the third fall on one plane; one plane is cut off."""

    def part(y, begin, plane):
        ends = [begin, plane], [begin + 3, plane + 1]
        return op.strided_slice(y, [1, 4], *ends, assume_inbound=True)

    def after(x, w):
        y = bound(op.nn.pad(volume(x, w, 3), [0, 0, 1, 0, *[0] * 8]))
        shape = (2, 3, 1, 42, 1, 5)
        phases = [op.add(part(y, 1, 0), part(y, 0, 2)), part(y, 1, 1)]
        y = op.concat([op.reshape(phase, shape) for phase in phases], axis=2)
        y = op.strided_slice(op.reshape(y, (2, 6, 42, 1, 5)), [1], [1], [6], assume_inbound=True)
        return op.permute_dims(op.reshape(y, (2, 5, 6, 7, 5)), [0, 4, 1, 2, 3])

    becomes(
        lambda x, w: op.nn.conv3d_transpose(x, w, strides=(2, 1, 1), padding=(1, 0, 0)),
        after,
        *(Spec(2, 4, 3, 6, 7), Spec(4, 5, 3, 1, 1)),
    )


STAYS = {
    "a stride and a dilation": (transposed(dilation=2, strides=2), (X, W)),
    "padding that cuts off more": (transposed(padding=4), (X, W)),
    "padding that cuts off more of columns": (transposed(padding=(1, 4)), (X, W)),
    "no images": (transposed(), (Spec(0, 3, 6, 7), W)),
    "rows that are not static": (transposed(), (Spec(2, 3, n, 7), W)),
    "images of channels last": (transposed(data_layout="NHWC"), (Spec(2, 6, 7, 3), W)),
    "weights in another layout": (transposed(kernel_layout="OIHW"), (X, Spec(5, 3, 4, 4))),
    "results of channels last": (transposed(out_layout="NHWC"), (X, W)),
    "a convolution": (op.nn.conv2d, (X, Spec(5, 3, 4, 4))),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    before, specs = STAYS[name]
    check_stays(conv_transpose, relax_module(before, *specs, params=1))
