"""Convolutions of volumes as convolutions of their planes."""

import pytest

from needle_tvm._tvm.names import relax, tirx
from needle_tvm.frontend.torch.passes.conv3d_as_conv2d import conv3d_as_conv2d
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, emit, relax_module

op = relax.op
n = tirx.Var("n", "int64")


def becomes(before, after, *specs):
    check_becomes(
        conv3d_as_conv2d,
        relax_module(before, *specs, params=1),
        relax_module(after, *specs, params=1),
    )


def part(x, axis, first, end, step=1):
    return op.strided_slice(x, [axis], [first], [end], [step], assume_inbound=True)


def tap(w, i):
    return op.strided_slice(w, [0], [i], [i + 1], assume_inbound=True)


def convolution(x, w, **options):
    return op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO", **options)


@pytest.mark.parametrize("batch", [2, n])
def test_the_planes_that_a_result_reads_are_channels_of_one_image(batch):
    """Three planes, two apart, for every second of 7 planes with two of zeros on both sides."""

    def before(x, w):
        how = {"strides": (2, 1, 1), "padding": (2, 1, 0), "dilation": (2, 1, 1)}
        return op.nn.conv3d(x, w, **how)

    def after(x, w):
        x = emit(op.nn.pad(op.permute_dims(x, [0, 2, 3, 4, 1]), [0, 0, 2, 2, *[0] * 6]))
        x = op.concat([part(x, 1, i, i + 7, 2) for i in (0, 2, 4)], axis=4)
        w = op.reshape(op.permute_dims(w, [3, 4, 2, 1, 0]), (3, 2, 12, 5))
        y = convolution(op.reshape(x, (batch * 4, 6, 5, 12)), w, padding=(1, 0, 1, 0))
        return op.permute_dims(op.reshape(y, (batch, 4, 6, 4, 5)), [0, 4, 1, 2, 3])

    becomes(before, after, Spec(batch, 4, 7, 6, 5), Spec(5, 4, 3, 3, 2))


def test_with_groups_every_plane_has_a_convolution():
    def after(x, w):
        x = emit(op.permute_dims(x, [0, 2, 3, 4, 1]))
        w = emit(op.permute_dims(w, [2, 3, 4, 1, 0]))
        each = [
            convolution(
                op.reshape(part(x, 1, i, i + 2), (6, 6, 5, 4)),
                op.reshape(tap(w, i), (3, 2, 1, 4)),
                strides=(2, 1),
                groups=4,
            )
            for i in (0, 1)
        ]
        y = op.reshape(op.add(*each), (3, 2, 2, 4, 4))
        return op.permute_dims(y, [0, 4, 1, 2, 3])

    becomes(
        lambda x, w: op.nn.conv3d(x, w, strides=(1, 2, 1), groups=4),
        after,
        *(Spec(3, 4, 3, 6, 5), Spec(4, 1, 2, 3, 2)),
    )


def test_a_kernel_of_one_plane_takes_the_planes_as_they_are():
    def after(x, w):
        x = op.reshape(op.permute_dims(x, [0, 2, 3, 4, 1]), (6, 6, 5, 4))
        w = op.reshape(op.permute_dims(w, [2, 3, 4, 1, 0]), (3, 3, 4, 5))
        y = op.reshape(convolution(x, w), (2, 3, 4, 3, 5))
        return op.permute_dims(y, [0, 4, 1, 2, 3])

    becomes(op.nn.conv3d, after, Spec(2, 4, 3, 6, 5), Spec(5, 4, 1, 3, 3))


VOLUME, WINDOW = Spec(2, 4, 3, 6, 5), Spec(5, 4, 2, 3, 3)
STAYS = {
    "volumes of channels last": (
        lambda x, w: op.nn.conv3d(x, w, data_layout="NDHWC"),
        (Spec(2, 3, 6, 5, 4), WINDOW),
    ),
    "weights in another layout": (
        lambda x, w: op.nn.conv3d(x, w, kernel_layout="DHWIO"),
        (VOLUME, Spec(2, 3, 3, 4, 5)),
    ),
    "weights that are not static": (op.nn.conv3d, (VOLUME, Spec(n, 4, 2, 3, 3))),
    "planes that are not static": (op.nn.conv3d, (Spec(2, 4, n, 6, 5), WINDOW)),
    "no volumes": (op.nn.conv3d, (Spec(0, 4, 3, 6, 5), WINDOW)),
    "images": (op.nn.conv2d, (Spec(2, 8, 5, 5), Spec(16, 8, 3, 3))),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    before, specs = STAYS[name]
    check_stays(conv3d_as_conv2d, relax_module(before, *specs, params=1))
