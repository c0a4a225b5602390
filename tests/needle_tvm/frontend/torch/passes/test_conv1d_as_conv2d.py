"""Convolutions of sequences as convolutions of images one row high."""

import pytest

from needle_tvm._tvm.names import relax, tirx
from needle_tvm.frontend.torch.passes.conv1d_as_conv2d import conv1d_as_conv2d
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, relax_module

op = relax.op


n = tirx.Var("n", "int64")


@pytest.mark.parametrize("batch", [2, n])
@pytest.mark.parametrize(
    ("groups", "stride", "padding", "dilation", "result"),
    [(1, 1, (0, 0), 1, 19), (2, 2, (1, 2), 1, 11), (8, 1, (2, 2), 3, 19)],
)
def test_a_sequence_is_an_image(groups, stride, padding, dilation, result, batch):
    specs = Spec(batch, 8, 21), Spec(16, 8 // groups, 3)

    def before(x, w):
        return op.nn.conv1d(
            *(x, w), strides=stride, padding=list(padding), dilation=dilation, groups=groups
        )

    def after(x, w):
        image = op.reshape(op.permute_dims(x, [0, 2, 1]), (batch, 1, 21, 8))
        weights = op.reshape(op.permute_dims(w, [2, 1, 0]), (1, 3, 8 // groups, 16))
        y = op.nn.conv2d(
            *(image, weights),
            strides=(1, stride),
            padding=(0, padding[0], 0, padding[1]),
            dilation=(1, dilation),
            groups=groups,
            data_layout="NHWC",
            kernel_layout="HWIO",
        )
        return op.permute_dims(op.reshape(y, (batch, result, 16)), [0, 2, 1])

    check_becomes(
        conv1d_as_conv2d,
        relax_module(before, *specs, params=1),
        relax_module(after, *specs, params=1),
    )


STAYS = {
    "sequences of channels last": (
        lambda x, w: op.nn.conv1d(x, w, data_layout="NWC"),
        (Spec(2, 21, 8), Spec(16, 8, 3)),
    ),
    "weights in another layout": (
        lambda x, w: op.nn.conv1d(x, w, kernel_layout="IOW"),
        (Spec(2, 8, 21), Spec(8, 16, 3)),
    ),
    "results of channels last": (
        lambda x, w: op.nn.conv1d(x, w, out_layout="NWC"),
        (Spec(2, 8, 21), Spec(16, 8, 3)),
    ),
    "weights that are not static": (op.nn.conv1d, (Spec(2, 8, 21), Spec(n, 8, 3))),
    "images": (op.nn.conv2d, (Spec(2, 8, 5, 5), Spec(16, 8, 3, 3))),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    before, specs = STAYS[name]
    check_stays(conv1d_as_conv2d, relax_module(before, *specs, params=1))
