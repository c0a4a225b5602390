"""3x3 convolutions by Winograd's minimal filtering: which are taken, and what they become."""

import pytest

from needle_tvm._tvm.names import OP_PATTERN, relax
from needle_tvm.kernels.conv import winograd, winograd_te
from needle_tvm.kernels.conv.winograd_te import Tiling
from tests.needle_tvm.kernels.conv.convolutions import OF_PLANES, N, conv, planes_first
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, kernel, relax_module

X, W = Spec(2, 7, 6, 16), Spec(3, 3, 16, 32)
OPAQUE, FUSABLE = OP_PATTERN.opaque, OP_PATTERN.out_fusable


@pytest.fixture(params=[2, 4])
def m(request, monkeypatch):
    """Every convolution that can be transformed is, with tiles of this size."""
    monkeypatch.setattr(winograd, "tile_size", lambda *_: request.param)
    return request.param


def weight(w, m):
    return kernel(
        lambda w: winograd_te.transformed_weight(w, m), w, name="winograd_weight", op_pattern=OPAQUE
    )


def transformed(x, w, tiling):
    """The convolution of x with transformed weights."""
    seen = kernel(
        lambda a: winograd_te.transformed_input(a, tiling),
        x,
        name="winograd_input",
        op_pattern=OPAQUE,
    )
    return kernel(
        lambda a: winograd_te.transformed_output(a, tiling),
        relax.op.matmul(seen, w),
        name="winograd_output",
        op_pattern=FUSABLE,
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("padding", "counts", "before"),
    [(1, (7, 6), (1, 1)), (0, (5, 4), (0, 0)), ((2, 0, 1, 3), (8, 7), (2, 0))],
)
def test_a_convolution_is_a_product_between_transforms(m, dtype, padding, counts, before):
    specs = [Spec(*each.shape, dtype=dtype) for each in (X, W)]
    check_becomes(
        winograd.winograd,
        relax_module(lambda x, w: conv(x, w, padding), *specs, params=1),
        relax_module(
            lambda x, w: transformed(x, weight(w, m), Tiling(m, 2, counts, before)),
            *specs,
            params=1,
        ),
    )


def test_weights_that_two_layers_share_are_transformed_once(m):
    tiling = Tiling(m, 2, (7, 6), (1, 1))

    def after(x, y, w):
        w = weight(w, m)
        return tuple(transformed(each, w, tiling) for each in (x, y))

    check_becomes(
        winograd.winograd,
        relax_module(lambda x, y, w: (conv(x, w), conv(y, w)), X, X, W, params=1),
        relax_module(after, X, X, W, params=1),
    )


HALF = [Spec(*each.shape, dtype="float16") for each in (X, W)]
STAYS = {
    "strides": ({"strides": 2}, (X, W), 1),
    "strides along rows": ({"strides": (1, 2)}, (X, W), 1),
    "dilation": ({"dilation": 2}, (X, W), 1),
    "groups": ({"groups": 2}, (X, Spec(3, 3, 8, 32)), 1),
    "a window of 5x5": ({}, (X, Spec(5, 5, 16, 32)), 1),
    "a window of 3x1": ({}, (X, Spec(3, 1, 16, 32)), 1),
    "outputs that fill no vectors": ({}, (X, Spec(3, 3, 16, 24)), 1),
    "inputs that fill no vectors": ({}, (Spec(2, 7, 6, 8), Spec(3, 3, 8, 32)), 1),
    "weights that are an input": ({}, (X, W), 0),
    "halves": ({}, HALF, 1),
    "two dtypes": ({"out_dtype": "float32"}, (X, HALF[1]), 1),
    "no images": ({}, (Spec(0, 7, 6, 16), W), 1),
    "shapes that are not static": ({}, (Spec(N, 7, 6, 16), W), 1),
    "a function that does not name its parameters": ({}, (X, W), None),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(m, name):
    options, specs, params = STAYS[name]
    before = relax_module(lambda x, w: conv(x, w, **options), *specs, params=params)
    check_stays(winograd.winograd, before)


def test_images_that_are_parameters_stay(m):
    check_stays(
        winograd.winograd,
        relax_module(lambda y, x, w: (y, conv(x, w)), Spec(1), X, W, params=2),
    )


def test_other_layouts_and_operators_stay(m):
    check_stays(winograd.winograd, relax_module(planes_first, *OF_PLANES, params=1))
    product = relax_module(relax.op.matmul, Spec(16, 16), Spec(16, 16), params=1)
    check_stays(winograd.winograd, product)


def test_what_is_done_sooner_without_stays(monkeypatch):
    asked = []
    monkeypatch.setattr(winograd, "tile_size", lambda *given: asked.append(given))
    check_stays(winograd.winograd, relax_module(conv, X, W, params=1))
    assert asked == [((2, 7, 6, 32), 16, 4)]
