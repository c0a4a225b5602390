"""Groups of a convolution are merged if one fills too little of a vector."""

import itertools

import numpy as np
import pytest

import needle_tvm
from needle import nn
from needle_tvm._tvm.names import te, tvm
from needle_tvm.kernels.conv.cpu_tiles import conv_cycles, group_lanes
from needle_tvm.kernels.conv.merge_groups import merge_groups, merged, merged_at_best
from needle_tvm.target.spec import resolve
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.kernels.conv.convolutions import N, conv
from tests.needle_tvm.modules import AVX512, Spec, check_becomes, check_stays, kernel, relax_module

LANES = (4, 8, 16)


def merged_weights(w, count, outputs):
    return kernel(lambda w: merged(w, count, outputs), w, name="merge_groups")


@pytest.mark.parametrize(
    ("channels", "count"),
    [
        ((16, 16, 8), 8),  # two outputs a group: eight fill a vector
        ((12, 18, 6), 3),
        ((34, 34, 2), 2),  # 17: no part of a vector divides it
        ((8, 16, 8), 8),  # one input a group, two outputs
        ((16, 8, 8), 8),  # two inputs, one output
    ],
)
def test_groups_of_a_few_channels_are_merged(channels, count):
    inputs, outputs, groups = channels
    specs = Spec(1, 5, 5, inputs), Spec(3, 3, inputs // groups, outputs)
    options = {"strides": (1, 2), "dilation": (2, 1), "padding": (1, 2, 1, 0)}
    check_becomes(
        merge_groups,
        relax_module(lambda x, w: conv(x, w, groups=groups, **options), *specs, params=1),
        relax_module(
            lambda x, w: conv(
                x, merged_weights(w, count, outputs // groups), groups=groups // count, **options
            ),
            *specs,
            params=1,
        ),
    )


STAYS = {
    "groups that fill a vector": (conv, Spec(1, 5, 5, 64), Spec(3, 3, 32, 64), 2, 1),
    "groups of two vectors of ten": (conv, Spec(1, 5, 5, 60), Spec(3, 3, 20, 60), 3, 1),
    "groups of ten": (conv, Spec(1, 5, 5, 40), Spec(3, 3, 10, 40), 4, 1),
    "groups of four": (conv, Spec(1, 5, 5, 16), Spec(3, 3, 4, 16), 4, 1),
    "a depthwise convolution": (conv, Spec(1, 5, 5, 8), Spec(3, 3, 1, 8), 8, 1),
    "one group": (conv, Spec(1, 5, 5, 8), Spec(3, 3, 8, 8), 1, 1),
    "weights that are an input": (conv, Spec(1, 5, 5, 16), Spec(3, 3, 2, 16), 8, 0),
    "no images": (conv, Spec(0, 5, 5, 16), Spec(3, 3, 2, 16), 8, 1),
    "shapes that are not static": (conv, Spec(N, 5, 5, 16), Spec(3, 3, 2, 16), 8, 1),
    "a function that does not name its parameters": (
        *(conv, Spec(1, 5, 5, 16), Spec(3, 3, 2, 16)),
        *(8, None),
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    function, x, w, groups, params = STAYS[name]
    check_stays(
        merge_groups, relax_module(lambda x, w: function(x, w, groups=groups), x, w, params=params)
    )


def test_other_layouts_stay():
    def before(x, w):
        return conv(x, w, groups=8, data_layout="NCHW", kernel_layout="OIHW")

    check_stays(merge_groups, relax_module(before, Spec(1, 16, 5, 5), Spec(16, 2, 3, 3), params=1))


def test_groups_are_merged_where_that_is_sooner_done():
    for groups, inputs, outputs in itertools.product((2, 3, 6, 32), (1, 3), range(1, 25)):
        output, terms = (1, 9, 9, groups * outputs), 9 * inputs
        count = merged_at_best(groups, output, terms, "float32", AVX512)
        assert groups % count == 0

        def cycles(count, groups=groups, outputs=outputs, output=output, terms=terms):
            group = None if count == groups else count * outputs
            return conv_cycles(output, terms * count, "float32", AVX512, group)

        fewest = min(cycles(m) for m in range(1, groups + 1) if groups % m == 0)
        assert count == 1 or cycles(count) == fewest < cycles(1)


def test_between_merged_groups_weights_are_zero(rng):
    w = te.placeholder((2, 1, 3, 12), "float32", name="w")
    function = te.create_prim_func([w, merged(w, 2, 3)]).with_attr("global_symbol", "main")
    run = tvm.tirx.build(function, target="llvm")["main"]
    values = rng.standard_normal((2, 1, 3, 12)).astype(np.float32)
    found = tvm.runtime.empty((2, 1, 6, 12), "float32")
    run(tvm.runtime.tensor(values), found)
    expected = np.zeros((2, 1, 6, 12), np.float32)
    for channel in range(12):
        own = channel // 3 % 2 * 3
        expected[:, :, own : own + 3, channel] = values[..., channel]
    np.testing.assert_array_equal(found.numpy(), expected)


def test_merged_groups_are_right(rng):
    model = nn.Sequential(
        nn.Conv(12, 18, 3, groups=6), nn.ReLU(), nn.Conv(18, 34, 3, groups=2, stride=2)
    ).eval()
    x = tensor(rng.standard_normal((2, 12, 9, 7)).astype(np.float32))
    found = needle_tvm.compile(model, x)(x).numpy()
    # Sums of up to 81 products in float32.
    np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-5, atol=1e-5)


def test_lanes_of_groups_are_halves_of_a_vector():
    assert group_lanes("float32", AVX512) == LANES
    assert group_lanes("float64", AVX512) == (2, 4, 8)
    neon = {"kind": "llvm", "mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"}
    assert group_lanes("float32", resolve(neon, 2).to_tvm()) == (4,)
