"""Transposed convolutions as convolutions, and pixels shuffled."""

import pytest

from needle_tvm._tvm.names import relax, tirx
from needle_tvm.frontend.torch.passes.conv_transpose import conv_transpose
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, relax_module

op = relax.op
X, W = Spec(2, 3, 6, 7), Spec(3, 5, 4, 4)


def convolution(x, w, padding):
    return op.nn.conv2d(x, w, padding=padding, data_layout="NHWC", kernel_layout="HWIO")


def transposed(**options):
    return lambda x, w: op.nn.conv2d_transpose(x, w, **options)


def becomes(before, after, *specs):
    check_becomes(
        conv_transpose,
        relax_module(before, *specs, params=1),
        relax_module(after, *specs, params=1),
    )


def test_a_stride_of_1_is_a_convolution_by_turned_weights():
    def after(x, w):
        w = op.reshape(w, (3, 5, 3, 1, 3, 1))
        w = op.permute_dims(op.flip(op.flip(w, 2), 4), [2, 4, 0, 3, 5, 1])
        x = op.permute_dims(x, [0, 2, 3, 1])
        y = convolution(x, op.reshape(w, (3, 3, 3, 5)), (1, 1, 1, 1))
        return op.permute_dims(y, [0, 3, 1, 2])

    becomes(transposed(padding=1), after, X, Spec(3, 5, 3, 3))


def test_a_stride_of_2_makes_blocks_which_padding_cuts():
    """4 taps are 2 of the convolution; of 8 and 9 rows of blocks one result is cut on each side."""

    def after(x, w):
        w = op.reshape(w, (3, 5, 2, 2, 2, 2))
        w = op.permute_dims(op.flip(op.flip(w, 2), 4), [2, 4, 0, 3, 5, 1])
        x = op.permute_dims(x, [0, 2, 3, 1])
        y = convolution(x, op.reshape(w, (2, 2, 3, 20)), (1, 1, 1, 1))
        y = op.permute_dims(op.reshape(y, (2, 7, 8, 2, 2, 5)), [0, 1, 3, 2, 4, 5])
        y = op.reshape(y, (2, 14, 16, 5))
        y = op.strided_slice(y, [1, 2], [1, 1], [13, 15], assume_inbound=True)
        return op.permute_dims(y, [0, 3, 1, 2])

    becomes(transposed(strides=2, padding=1), after, X, W)


def test_taps_that_fill_no_block_are_filled_up():
    """2 x 3 taps by strides of 2 x 2, and one more row and column of results."""

    def after(x, w):
        w = op.nn.pad(w, [0, 0, 0, 0, 0, 0, 0, 1])
        w = op.reshape(w, (3, 5, 1, 2, 2, 2))
        w = op.permute_dims(op.flip(w, 4), [2, 4, 0, 3, 5, 1])
        x = op.permute_dims(x, [0, 2, 3, 1])
        y = convolution(x, op.reshape(w, (1, 2, 3, 20)), (0, 1, 1, 1))
        y = op.permute_dims(op.reshape(y, (2, 7, 8, 2, 2, 5)), [0, 1, 3, 2, 4, 5])
        y = op.reshape(y, (2, 14, 16, 5))
        y = op.strided_slice(y, [1, 2], [0, 0], [13, 16], assume_inbound=True)
        return op.permute_dims(y, [0, 3, 1, 2])

    becomes(transposed(strides=2, output_padding=1), after, X, Spec(3, 5, 2, 3))


def test_results_up_to_the_end_of_the_blocks():
    """3 taps are filled up to 4; of 12 and 14 results the first is cut off."""

    def after(x, w):
        w = op.reshape(op.nn.pad(w, [0, 0, 0, 0, 0, 1, 0, 1]), (3, 5, 2, 2, 2, 2))
        w = op.permute_dims(op.flip(op.flip(w, 2), 4), [2, 4, 0, 3, 5, 1])
        x = op.permute_dims(x, [0, 2, 3, 1])
        y = convolution(x, op.reshape(w, (2, 2, 3, 20)), (1, 1, 0, 0))
        y = op.permute_dims(op.reshape(y, (2, 6, 7, 2, 2, 5)), [0, 1, 3, 2, 4, 5])
        y = op.reshape(y, (2, 12, 14, 5))
        y = op.strided_slice(y, [1, 2], [1, 1], [12, 14], assume_inbound=True)
        return op.permute_dims(y, [0, 3, 1, 2])

    becomes(transposed(strides=2, padding=1), after, X, Spec(3, 5, 3, 3))


def test_a_sequence():
    def after(x, w):
        w = op.reshape(op.reshape(w, (4, 5, 1, 4)), (4, 5, 1, 1, 2, 2))
        w = op.permute_dims(op.flip(w, 4), [2, 4, 0, 3, 5, 1])
        x = op.reshape(op.permute_dims(x, [0, 2, 1]), (2, 1, 9, 4))
        y = convolution(x, op.reshape(w, (1, 2, 4, 10)), (0, 1, 0, 1))
        y = op.permute_dims(op.reshape(y, (2, 1, 10, 1, 2, 5)), [0, 1, 3, 2, 4, 5])
        y = op.reshape(y, (2, 1, 20, 5))
        y = op.strided_slice(y, [1, 2], [0, 1], [1, 19], assume_inbound=True)
        return op.permute_dims(op.reshape(y, (2, 18, 5)), [0, 2, 1])

    becomes(
        lambda x, w: op.nn.conv1d_transpose(x, w, strides=2, padding=1),
        after,
        *(Spec(2, 4, 9), Spec(4, 5, 4)),
    )


n = tirx.Var("n", "int64")
STAYS = {
    "groups": (transposed(groups=3), (X, W)),
    "dilation": (transposed(dilation=2), (X, W)),
    "dilation along rows": (transposed(dilation=(1, 2)), (X, W)),
    "padding that cuts off more": (transposed(padding=4), (X, W)),
    "padding that cuts off more of columns": (transposed(padding=(1, 4)), (X, W)),
    "no images": (transposed(), (Spec(0, 3, 6, 7), W)),
    "shapes that are not static": (transposed(), (Spec(n, 3, 6, 7), W)),
    "images of channels last": (transposed(data_layout="NHWC"), (Spec(2, 6, 7, 3), W)),
    "weights in another layout": (transposed(kernel_layout="OIHW"), (X, Spec(5, 3, 4, 4))),
    "results of channels last": (transposed(out_layout="NHWC"), (X, W)),
    "a convolution": (op.nn.conv2d, (X, Spec(5, 3, 4, 4))),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    before, specs = STAYS[name]
    check_stays(conv_transpose, relax_module(before, *specs, params=1))
