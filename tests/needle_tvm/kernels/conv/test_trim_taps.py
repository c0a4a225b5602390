"""Rows and columns of weights that only ever meet padding, cut off."""

import itertools

import pytest

from needle_tvm._tvm.names import relax
from needle_tvm.kernels.conv.trim_taps import Axis, trim_taps, trimmed
from tests.needle_tvm.kernels.conv.convolutions import N, conv, planes_first
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, relax_module


@pytest.mark.parametrize(
    ("size", "outputs", "stride", "dilation", "padding", "expected"),
    [
        (1, 1, 1, 1, (1, 1), Axis(1, 2, 0, 0)),  # 3 taps on one pixel
        (2, 1, 2, 1, (1, 1), Axis(1, 3, 0, 0)),
        (2, 2, 1, 1, (1, 1), Axis(0, 3, 1, 1)),  # every tap meets something
        (4, 4, 1, 1, (1, 1), Axis(0, 3, 1, 1)),
        (1, 5, 1, 1, (3, 3), Axis(0, 3, 3, 3)),
        (1, 1, 1, 2, (2, 2), Axis(1, 2, 0, 0)),
        (2, 4, 1, 3, (4, 4), Axis(1, 2, 1, 1)),
        (1, 2, 2, 1, (1, 3), Axis(1, 2, 0, 2)),
    ],
)
def test_taps_that_meet_an_input(size, outputs, stride, dilation, padding, expected):
    assert trimmed(size, 3, outputs, stride, dilation, padding) == expected


def test_trimming_keeps_the_taps_that_meet_an_input():
    """Against the definition, for every small geometry."""
    grid = itertools.product(range(1, 5), range(1, 6), range(1, 4), range(1, 4), range(5), range(5))
    for size, taps, stride, dilation, before, behind in grid:
        outputs = (size + before + behind - dilation * (taps - 1) - 1) // stride + 1
        if outputs < 1:
            continue
        axis = trimmed(size, taps, outputs, stride, dilation, (before, behind))
        left = size + axis.before + axis.after - dilation * (axis.end - axis.first - 1) - 1
        assert left // stride + 1 == outputs

        def seen(first, end, zeros, outputs=outputs, stride=stride, dilation=dilation, size=size):
            return {
                (y, tap, place)
                for y in range(outputs)
                for tap in range(first, end)
                if 0 <= (place := y * stride + tap * dilation - zeros) < size
            }

        kept = {
            (y, tap + axis.first, place)
            for y, tap, place in seen(0, axis.end - axis.first, axis.before)
        }
        assert kept == seen(0, taps, before)


def becomes(before, begin, end, after, *specs, params=1):
    """Rows and columns [begin, end) of the weights are left; options before and after."""

    def expected(x, w):
        return conv(x, relax.op.strided_slice(w, [0, 1], begin, end, assume_inbound=True), **after)

    check_becomes(
        trim_taps,
        relax_module(lambda x, w: conv(x, w, **before), *specs, params=params),
        relax_module(expected, *specs, params=params),
    )


def test_rows_and_columns_that_meet_padding_alone_are_cut():
    pixel, row, column = Spec(2, 1, 1, 4), Spec(2, 1, 5, 4), Spec(2, 5, 1, 4)
    w = Spec(3, 3, 4, 6)
    for params in (0, 1):
        becomes({}, [1, 1], [2, 2], {"padding": 0}, pixel, w, params=params)
    becomes({}, [1, 0], [2, 3], {"padding": (0, 1)}, row, w)
    becomes({}, [0, 1], [3, 2], {"padding": (1, 0)}, column, w)


def test_stride_dilation_groups_and_dtype_stay_what_they_are():
    options = {"strides": (2, 1), "dilation": (1, 2), "groups": 2, "out_dtype": "float32"}
    becomes(
        {"padding": (1, 2), **options},
        [1, 1],
        [3, 2],
        {"padding": 0, **options},
        *(Spec(2, 2, 1, 4), Spec(3, 3, 2, 6)),
    )


def test_padding_on_one_side():
    becomes(
        {"padding": (2, 0, 0, 0)},
        [2, 0],
        [3, 1],
        {"padding": 0},
        *(Spec(2, 1, 1, 4), Spec(3, 1, 4, 6)),
    )


def tall(x, w):
    return conv(x, w, strides=(2, 1), padding=(1, 0))


STAYS = {
    "taps that all meet something": (conv, Spec(2, 3, 3, 4), Spec(3, 3, 4, 6), 1),
    "more weights of an input than products": (tall, Spec(1, 2, 1, 4), Spec(3, 1, 4, 6), 0),
    "no images": (conv, Spec(0, 1, 1, 4), Spec(3, 3, 4, 6), 1),
    "sizes that are not static": (conv, Spec(2, N, N, 4), Spec(3, 3, 4, 6), 1),
    "other layouts": (planes_first, Spec(2, 4, 1, 1), Spec(6, 4, 3, 3), 1),
    "another operator": (relax.op.matmul, Spec(2, 4), Spec(4, 6), 1),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    function, x, w, params = STAYS[name]
    check_stays(trim_taps, relax_module(function, x, w, params=params))


def test_a_function_that_does_not_name_its_parameters_stays():
    specs = Spec(2, 1, 1, 4), Spec(3, 3, 4, 6)
    check_stays(trim_taps, relax_module(conv, *specs, params=None))
