"""Groups of a convolution are merged if one fills too little of a vector."""

import itertools

import numpy as np
import pytest

import needle_tvm
from needle import nn
from needle.trace import trace
from needle_tvm._tvm.names import relax, te, tvm
from needle_tvm.frontend.translate import translate
from needle_tvm.graph.dependence import is_op
from needle_tvm.kernels.conv.cpu_tiles import conv_cycles, group_lanes
from needle_tvm.kernels.conv.merge_groups import merge_groups, merged, merged_at_best
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import calls_of

from .conftest import tensor

LANES = (4, 8, 16)


@pytest.fixture(scope="module")
def avx512():
    return resolve({"kind": "llvm", "mcpu": "skylake-avx512"}, 2).to_tvm()


def after(target, inputs, outputs, groups):
    model = nn.Conv(inputs, outputs, 3, groups=groups).eval()
    x = tensor(np.zeros((1, inputs, 5, 5), np.float32))
    return merge_groups(translate(trace(model, x), prefer_emit=True), target)


def groups_of(module):
    found = []

    def visit(expr):
        if is_op(expr, "relax.nn.conv2d"):
            shape = tuple(int(extent) for extent in expr.args[1].ty.shape.values)
            found.append((int(expr.attrs.groups), shape))

    relax.analysis.post_order_visit(module["main"], visit)
    return found


@pytest.mark.parametrize(
    ("channels", "expected"),
    [
        ((16, 16, 8), (1, (3, 3, 16, 16))),  # two outputs per group: eight groups fill a vector
        ((12, 18, 6), (2, (3, 3, 6, 18))),
        ((34, 34, 2), (1, (3, 3, 34, 34))),  # 17: not divisible into parts of a vector
        ((60, 60, 3), (3, (3, 3, 20, 60))),  # 20: two vectors of ten
        ((40, 40, 4), (4, (3, 3, 10, 40))),
        ((16, 16, 4), (4, (3, 3, 4, 16))),
        ((64, 64, 2), (2, (3, 3, 32, 64))),
        ((8, 8, 8), (8, (3, 3, 1, 8))),  # depthwise
        ((8, 8, 1), (1, (3, 3, 8, 8))),
    ],
)
def test_groups_of_a_few_channels_are_merged(avx512, channels, expected):
    module = after(avx512, *channels)
    assert groups_of(module) == [expected]
    before = channels[2], (3, 3, channels[0] // channels[2], channels[1])
    assert any("merge_groups" in name for name in calls_of(module, "main")) == (expected != before)


def test_groups_are_merged_where_that_is_sooner_done(avx512):
    for groups, inputs, outputs in itertools.product((2, 3, 6, 32), (1, 3), range(1, 25)):
        output, terms = (1, 9, 9, groups * outputs), 9 * inputs
        count = merged_at_best(groups, output, terms, "float32", avx512)
        assert groups % count == 0

        def cycles(count, groups=groups, outputs=outputs, output=output, terms=terms):
            group = None if count == groups else count * outputs
            return conv_cycles(output, terms * count, "float32", avx512, group)

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


def test_lanes_of_groups_are_halves_of_a_vector(avx512):
    assert group_lanes("float32", avx512) == LANES
    assert group_lanes("float64", avx512) == (2, 4, 8)
    neon = {"kind": "llvm", "mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"}
    assert group_lanes("float32", resolve(neon, 2).to_tvm()) == (4,)
