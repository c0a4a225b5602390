"""Convolutions, compiled: their numbers, and the kernels that are there for them."""

import itertools
import re

import numpy as np
import pytest

from needle import nn
from needle.trace import trace
from needle_tvm._tvm.names import tvm
from needle_tvm.frontend import lowering
from needle_tvm.kernels import cpu
from needle_tvm.kernels.blocks import item_bytes
from needle_tvm.kernels.conv.cpu_tiles import conv_tile
from needle_tvm.lower import build
from needle_tvm.lower.libraries import generated_source
from needle_tvm.target.info import target_info
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import NODES, calls_of, nodes_in, prim_funcs
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.together import check_together

X86 = ["x86-64-v2", "haswell", "skylake-avx512", "znver5"]
AARCH64 = {"mtriple": "aarch64-linux-gnu"}


@pytest.fixture(scope="module")
def target():
    return resolve("cpu", 2).to_tvm()


def zeros(*shape):
    return tensor(np.zeros(shape, np.float32))


def normal(*shape):
    rng = np.random.default_rng(sum(shape))
    return tensor(rng.standard_normal(shape).astype(np.float32))


def test_windows_of_whole_images():
    """Products of what lies in memory already, beside convolutions that stay."""
    layers = [
        (nn.Conv(4, 6, 1), (1, 1)),
        (nn.Conv(4, 6, 1, stride=2), (1, 1)),
        (nn.Conv(4, 6, 1), (5, 4)),
        (nn.Conv(4, 6, 3, padding=0), (3, 3)),
        (nn.Conv(4, 6, 3), (3, 3)),
        (nn.Conv(4, 6, 3, padding=0, dilation=2), (5, 5)),
        (nn.Conv(4, 6, 1, groups=2), (5, 4)),
    ]
    check_together([(layer, [normal(2, 4, *size)]) for layer, size in layers])


# Each with a kernel of its own: depthwise, groups of few and of many channels, vectors not full.
CHANNELS = [
    *[(1, 1, 1), (3, 7, 1), (33, 40, 1), (2, 2, 2), (7, 7, 7), (40, 40, 40), (6, 12, 2)],
    *[(8, 96, 4), (12, 16, 4), (10, 40, 5), (32, 64, 2)],
    *[(20, 20, 2), (30, 60, 3), (48, 48, 2), (28, 28, 4), (17, 34, 1), (6, 34, 2)],
]


def convolutions(channels, sizes, **options):
    """Cases of a ReLU after 3x3 convolutions, of images of each size."""
    cases = []
    for (inputs, outputs, groups), size in itertools.product(channels, sizes):
        layer = nn.Sequential(nn.Conv(inputs, outputs, 3, groups=groups, **options), nn.ReLU())
        cases.append((layer, [normal(3, inputs, *size)]))
    return cases


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])
def test_channels_of_any_number(part):
    check_together(convolutions(CHANNELS[part::2], [(1, 3), (7, 13)]))


STRIDED, DILATED = {"stride": 2}, {"dilation": 2, "padding": 2}


@pytest.mark.parametrize(
    ("options", "part"),
    [
        *((STRIDED, 0), (DILATED, 1)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((STRIDED, 1), (DILATED, 0))),
    ],
    ids=str,
)
def test_images_of_odd_sizes(options, part):
    channels = [(3, 7, 1), (33, 40, 1), (7, 7, 7), (40, 40, 40), (12, 16, 4), (6, 34, 2)]
    check_together(convolutions(channels[part::2], [(1, 1), (17, 31)], **options))


@pytest.mark.parametrize(
    ("channels", "name"),
    [
        ((8, 8, 8), "depthwise_conv"),
        *[((8, 96, 4), "conv"), ((32, 128, 2), "conv"), ((12, 16, 4), "conv"), ((6, 9, 3), "conv")],
    ],
)
def test_convolutions_in_groups_have_a_kernel(target, channels, name):
    inputs, outputs, groups = channels
    model = nn.Conv(inputs, outputs, 3, groups=groups, bias=False)
    model.eval()
    module = lowering.lower(trace(model, zeros(1, inputs, 9, 9)), target, "tuned")
    assert name in calls_of(module, "main")


@pytest.mark.parametrize(("channels", "copies"), [(32, 0), (33, 1)])
def test_a_depthwise_convolution_reads_its_input_in_place(target, channels, copies):
    """But for channels that fill no vector: each lane would have to ask whether it is one."""
    model = nn.Conv(channels, channels, 3, groups=channels, bias=False)
    model.eval()
    module = lowering.lower(trace(model, zeros(1, channels, 9, 9)), target, "tuned")
    function = cpu.schedule_function(prim_funcs(module)["depthwise_conv"], target)
    written = {store.buffer.name for store in nodes_in(function, NODES.store)}
    assert sum(name.startswith("padded") for name in written) == copies


def test_the_input_of_a_network_is_read_as_it_is(target):
    """Neither permuted nor padded in a kernel of its own."""
    model = nn.Sequential(nn.Conv(3, 8, 5, stride=2), nn.ReLU(), nn.Conv(8, 8, 3))
    model.eval()
    x = zeros(1, 3, 20, 20)
    module = lowering.lower(trace(model, x), target, "tuned")
    first, second, _ = calls_of(module, "main")
    assert first.startswith("fused_conv") and second.startswith("fused_conv")


def test_a_large_layer_is_parallel_and_vectorised(target):
    model = nn.Conv(64, 64, 5)
    model.eval()
    x = zeros(1, 64, 28, 28)
    module = lowering.lower(trace(model, x), target, "tuned")
    module = build.schedule(module, target, "tuned")
    (function,) = (f for name, f in prim_funcs(module).items() if "conv" in name)
    kinds = {int(loop.kind) for loop in nodes_in(function, NODES.loop)}
    assert {1, 2, 3} <= kinds  # parallel, vectorised, unrolled


@pytest.mark.parametrize("mcpu", [*X86, "neoverse-n1"])
def test_a_tile_fits_the_registers(mcpu):
    triple = {} if mcpu in X86 else AARCH64
    target = resolve({"kind": "llvm", "mcpu": mcpu, **triple}, 2).to_tvm()
    width, registers = target_info(target).vectors
    if mcpu == "neoverse-n1":
        assert (registers, width) == (32, 16)
    outputs = (1, 1, 1, 1), (8, 2, 2, 64), (1, 56, 56, 64), (64, 7, 13, 10)
    for output, dtype in itertools.product(outputs, ("float32", "float64")):
        tile = conv_tile(output, 576, dtype, target)
        vectors = tile.channels // (width // item_bytes(dtype))
        assert tile.pixels * vectors + vectors + 1 <= registers
        # Tiles along an axis are no larger than it, and whole images where a tile holds several.
        batch, rows, columns, _ = output
        assert tile.images <= batch and tile.rows <= rows and tile.columns <= columns
        assert tile.images == 1 or (tile.rows, tile.columns) == (rows, columns)


@pytest.mark.parametrize(
    ("fields", "multiply_add"),
    [
        ({"mcpu": "haswell"}, r"vfmadd\S+ps\s.*%ymm"),
        ({"mcpu": "skylake-avx512"}, r"vfmadd\S+ps\s.*%zmm"),
        ({"mcpu": "neoverse-n1", **AARCH64}, r"fmla\s+v\d+\.4s"),
    ],
    ids=["avx2", "avx512", "neon"],
)
def test_every_rule_compiles_for_other_processors(fields, multiply_add):
    """Planar input, stride, dilation, groups, depthwise and 1x1; tails in all extents."""
    target = resolve({"kind": "llvm", **fields}, 2).to_tvm()
    model = nn.Sequential(
        nn.Conv(3, 32, 7, stride=2),
        nn.ReLU(),
        nn.Conv(32, 32, 3, groups=32),
        nn.Conv(32, 40, 3, groups=2, dilation=2),
        nn.Conv(40, 48, 3, groups=4),
        nn.Conv(48, 21, 1),
    )
    module = lowering.lower(trace(model.eval(), zeros(3, 3, 29, 31)), target, "tuned")
    kernels = [f for name, f in prim_funcs(module).items() if "conv" in name]
    assert len(kernels) >= 3
    for function in kernels:
        scheduled = cpu.schedule_function(function, target)
        with target:
            library = tvm.tirx.build(scheduled.with_attr("global_symbol", "main"), target=target)
        assert re.search(multiply_add, generated_source(library, "asm"))
