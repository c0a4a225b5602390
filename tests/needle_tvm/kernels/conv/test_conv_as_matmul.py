"""Convolutions that see whole images, as a matrix product."""

import pytest

from needle_tvm._tvm.names import relax
from needle_tvm.kernels.conv.conv_as_matmul import conv_as_matmul
from tests.needle_tvm.kernels.conv.convolutions import N, conv, planes_first
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, relax_module

op = relax.op


@pytest.mark.parametrize(
    ("image", "window", "stride"),
    [((1, 1), (1, 1), 1), ((1, 1), (1, 1), 2), ((3, 2), (3, 2), 1)],
)
def test_a_window_of_the_whole_image_is_a_product(image, window, stride):
    k = 4 * window[0] * window[1]

    def after(x, w):
        product = op.matmul(op.reshape(x, (5, k)), op.reshape(w, (k, 6)), "float32")
        return op.reshape(product, (5, 1, 1, 6))

    specs = Spec(5, *image, 4), Spec(*window, 4, 6)
    check_becomes(
        conv_as_matmul,
        relax_module(
            lambda x, w: conv(x, w, 0, strides=stride, out_dtype="float32"), *specs, params=1
        ),
        relax_module(after, *specs, params=1),
    )


def test_pixels_of_images_of_symbolic_sizes_are_rows():
    def after(x, w):
        rows = op.reshape(x, (N * 20, 4))
        product = op.matmul(rows, op.reshape(w, (4, 6)), "float32")
        return op.reshape(product, (5, N, 4, 6))

    specs = Spec(5, N, 4, 4), Spec(1, 1, 4, 6)
    check_becomes(
        conv_as_matmul,
        relax_module(lambda x, w: conv(x, w, 0, out_dtype="float32"), *specs, params=1),
        relax_module(after, *specs, params=1),
    )


STAYS = {
    "a larger image": (conv, (Spec(5, 4, 3, 4), Spec(3, 3, 4, 6)), {"padding": 0}),
    "pixels": (conv, (Spec(5, 4, 4, 4), Spec(1, 1, 4, 6)), {"padding": 0}),
    "padding": (conv, (Spec(5, 3, 3, 4), Spec(3, 3, 4, 6)), {}),
    "padding below alone": (
        conv,
        (Spec(5, 3, 3, 4), Spec(3, 3, 4, 6)),
        {"padding": (0, 0, 1, 0)},
    ),
    "dilation": (conv, (Spec(5, 5, 5, 4), Spec(3, 3, 4, 6)), {"padding": 0, "dilation": 2}),
    "dilation that moves nothing": (
        conv,
        (Spec(5, 1, 1, 4), Spec(1, 1, 4, 6)),
        {"padding": 0, "dilation": (1, 2)},
    ),
    "groups": (conv, (Spec(5, 3, 3, 4), Spec(3, 3, 2, 6)), {"padding": 0, "groups": 2}),
    "no images": (conv, (Spec(0, 3, 3, 4), Spec(3, 3, 4, 6)), {"padding": 0}),
    "strides": (conv, (Spec(5, N, 4, 4), Spec(1, 1, 4, 6)), {"padding": 0, "strides": 2}),
    "shapes that are not static": (conv, (Spec(5, N, 3, 4), Spec(3, 3, 4, 6)), {"padding": 0}),
    "other layouts": (planes_first, (Spec(5, 4, 1, 1), Spec(6, 4, 3, 3)), {}),
    "another operator": (op.matmul, (Spec(5, 4), Spec(4, 6)), {}),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    function, specs, options = STAYS[name]
    check_stays(conv_as_matmul, relax_module(lambda x, w: function(x, w, **options), *specs))
