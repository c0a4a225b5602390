"""Graph passes: the patterns they rewrite, and those they leave alone."""

import itertools

import numpy as np
import pytest

import needle_tvm
from needle import nn, ops
from needle.trace import trace
from needle_tvm._tvm.names import PrimFunc, check_well_formed
from needle_tvm.frontend import lowering
from needle_tvm.frontend.translate import translate
from needle_tvm.kernels.blocks import vector_registers
from needle_tvm.kernels.dense import cpu as products
from needle_tvm.kernels.dense.pack_weights import pack_weights
from needle_tvm.lower import build
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import calls_of, static_shape
from tests.needle_tvm.conftest import make_mlp, tensor


@pytest.fixture(scope="module")
def target():
    return resolve("cpu", 2).to_tvm()


def zeros(*shape, dtype="float32"):
    return tensor(np.zeros(shape, dtype))


def calls(module, name="main"):
    return [called.rstrip("0123456789") for called in calls_of(module, name)]


def packed(fn, target, *inputs):
    module = translate(trace(fn, *inputs), prefer_emit=True)
    result = pack_weights(module, target)
    check_well_formed(result)
    return calls(result)


def test_a_layer_is_packed(target):
    assert packed(make_mlp(8, 4), target, zeros(3, 8)).count("pack_weight") == 1


def test_a_shared_weight_is_packed_once(target):
    model = make_mlp(8, 8)
    module = lowering.lower(trace(lambda x: model(model(x)), zeros(3, 8)), target, "tuned")
    assert calls(module).count("pack_weight") == 0
    assert calls(module, build.TRANSFORM) == ["pack_weight"]


@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (lambda a, b: a @ b, (zeros(3, 8), zeros(8, 4))),
        (lambda a: a @ ops.transpose(a), (zeros(3, 8),)),
        (lambda a, b: a @ b, (zeros(2, 1, 6, 8), zeros(2, 3, 8, 4))),
    ],
    ids=["few rows", "few rows of a computed operand", "one matrix with several"],
)
def test_what_does_not_meet_the_preconditions_stays(target, fn, inputs):
    assert not {"pack_weight", "pack"} & set(packed(fn, target, *inputs))


@pytest.mark.parametrize(
    ("shape", "other"),
    [((40, 33), (33, 21)), ((3, 7, 16), (16, 5)), ((2, 3, 9, 17), (2, 3, 17, 40))],
    ids=["matrices", "rows of several", "a batch"],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_of_two_inputs_is_packed_on_the_way(target, rng, shape, other, dtype):
    """This includes an operand that is read through a permutation."""

    def fn(a, b):
        return ops.relu(a @ b), a @ ops.transpose(ops.transpose(b) + 1)

    a, b = (tensor(rng.standard_normal(each).astype(dtype)) for each in (shape, other))
    assert packed(lambda a, b: a @ b, target, a, b) == ["pack", "dense"]
    tolerance = {"float32": 1e-5, "float64": 1e-13}[dtype] * np.sqrt(other[-2])
    exact = a.numpy().astype("float64") @ b.numpy(), a.numpy().astype("float64") @ (b.numpy() + 1.0)
    for found, expected in zip(
        needle_tvm.compile(fn, a, b)(a, b), (np.maximum(exact[0], 0), exact[1]), strict=True
    ):
        np.testing.assert_allclose(found.numpy(), expected, tolerance, tolerance)


def test_empty_and_integer_products_stay(target):
    assert "pack_weight" not in packed(make_mlp(8, 4), target, zeros(0, 8))


def test_batch_norm_is_folded_into_the_layer_before_it(target, rng):
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU())
    for _ in range(3):  # moves the statistics away from a new module's
        model(tensor(rng.standard_normal((16, 8)).astype(np.float32)))
    model.eval()
    x = tensor(rng.standard_normal((3, 8)).astype(np.float32))
    module = lowering.lower(trace(model, x), target, "tuned")
    assert calls(module) == ["fused_dense_add_maximum"]  # no scale; bias and shift are merged
    assert "pack_weight" in calls(module, build.TRANSFORM)
    found = needle_tvm.compile(model, x, stage="tuned")(x).numpy()
    np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-5, atol=1e-5)


def conv_bn(*channels, kernel=3, **options):
    """Conv, BatchNorm2d and ReLU in eval mode, with statistics unlike a new module's."""
    layers = []
    for inputs, outputs in itertools.pairwise(channels):
        layers += [nn.Conv(inputs, outputs, kernel, **options), nn.BatchNorm2d(outputs), nn.ReLU()]
    model = nn.Sequential(*layers)
    images = np.random.default_rng(5).standard_normal((4, channels[0], 9, 9))
    model(tensor(images.astype(np.float32)))
    model.eval()
    return model


def test_a_chain_of_convolutions_stays_in_channels_last(target):
    model = nn.Sequential(conv_bn(3, 8, 8), nn.Residual(conv_bn(8, 8)))
    model.eval()
    module = lowering.lower(trace(model, zeros(2, 3, 9, 9)), target, "tuned")
    names = calls(module)
    assert sum("transpose" in name for name in names) == 1  # the last; the first reads planes
    assert not any("pad" in name for name in names)
    assert sum(name.startswith("fused_conv") for name in names) == 3
    assert not any("multiply" in name for name in names)  # batch norm's scale is in the weights
    assert any("add" in name.split("maximum")[-1] for name in names)  # the residual sum is fused


@pytest.mark.parametrize("kernel", [1, 2, 3, (3, 1)])
@pytest.mark.parametrize("stride", [1, 2, (1, 3)])
@pytest.mark.parametrize("options", [{}, {"padding": 0}, {"padding": (2, 1)}, {"dilation": 2}])
def test_packed_convolutions_of_any_geometry(rng, kernel, stride, options):
    model = conv_bn(3, 5, kernel=kernel, stride=stride, **options)
    x = tensor(rng.standard_normal((2, 3, 9, 8)).astype(np.float32))
    found = needle_tvm.compile(model, x, stage="tuned")(x).numpy()
    np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-5, atol=1e-5)


def test_groups_in_short_vectors_are_right(rng):
    model = conv_bn(4, 8, groups=2)
    x = tensor(rng.standard_normal((2, 4, 9, 9)).astype(np.float32))
    found = needle_tvm.compile(model, x, stage="tuned")(x).numpy()
    np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-5, atol=1e-5)


def test_a_scale_that_others_read_before_stays(target):
    layer, norm = nn.Linear(8, 6), nn.BatchNorm1d(6)
    norm.eval()

    def both(x):
        hidden = layer(x)
        return norm(hidden), hidden

    module = lowering.lower(trace(both, zeros(3, 8)), target, "tuned")
    assert any("multiply" in name for name in calls(module))


def test_a_scale_by_an_input_stays(target):
    layer = nn.Linear(8, 6)
    module = lowering.lower(
        trace(lambda x, s: layer(x) * s, zeros(3, 8), zeros(6)), target, "tuned"
    )
    assert any("multiply" in name for name in calls(module))


def test_a_bias_that_is_broadcast_is_read_as_it_is(target):
    layer = nn.Linear(8, 6)

    def as_in_the_course(x):
        y = x @ layer.weight
        return ops.relu(y + ops.broadcast_to(layer.bias, y.shape))

    module = lowering.lower(trace(as_in_the_course, zeros(64, 8)), target, "tuned")
    assert calls(module) == ["fused_dense_add_maximum"]
    shapes = [static_shape(argument) for argument in module["main"].params]
    assert (64, 6) not in shapes and (1, 6) in shapes


def test_a_broadcast_that_makes_the_shape_stays(target, rng):
    row = tensor(rng.standard_normal((1, 6)).astype(np.float32))

    def grows(x):
        return ops.broadcast_to(x, (4, 6)) * 2

    np.testing.assert_array_equal(
        needle_tvm.compile(grows, row, stage="tuned")(row).numpy(), grows(row).numpy()
    )


def test_after_fusion_one_kernel_is_left_of_a_layer(target):
    module = lowering.lower(trace(make_mlp(8, 4), zeros(3, 8)), target, "tuned")
    assert calls(module) == ["fused_dense_add_maximum"]


def test_every_function_is_scheduled(target):
    module = lowering.lower(trace(make_mlp(8, 4), zeros(3, 8)), target, "tuned")
    module = build.schedule(module, target, "tuned")
    functions = [f for f in module.functions.values() if isinstance(f, PrimFunc)]
    assert functions and all("tirx.is_scheduled" in f.attrs for f in functions)


def test_an_epilogue_that_reads_its_input_twice(target, rng):
    """x * sigmoid(x) after a layer is not inlined, but computed in the tile."""
    layer = make_mlp(16, 40).modules[0]
    x = tensor(rng.standard_normal((5, 16)).astype(np.float32))

    def swish(value):
        hidden = layer(value)
        return hidden * ops.sigmoid(hidden) * hidden

    found = needle_tvm.compile(swish, x, stage="tuned")(x).numpy()
    np.testing.assert_allclose(found, swish(x).numpy(), rtol=1e-5, atol=1e-5)
    module = lowering.lower(trace(swish, x), target, "tuned")
    assert len(calls(module)) == 1


@pytest.mark.parametrize("rows", [1, 2, 7, 33])
@pytest.mark.parametrize(
    ("activation", "name"),
    [(ops.gelu, "gelu"), (ops.silu, "silu"), (ops.tanh, "tanh"), (ops.sigmoid, "sigmoid")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_activation_belongs_to_the_layer_before_it(activation, name, rows, target, rng):
    """It is fused through the reshapes around a matmul of three axes, for any number of rows."""
    layer = nn.Linear(24, 37)
    x = rng.standard_normal((2, rows, 24)).astype(np.float32)

    def hidden(value):
        return activation(layer(value))

    module = lowering.lower(trace(hidden, tensor(x)), target, "tuned")
    assert calls(module) == [f"fused_dense_add_{name}"]
    compiled = needle_tvm.compile(hidden, tensor(x), stage="tuned")
    x[0, 0, :3] = np.nan, np.inf, -np.inf
    x[1, 0] *= 1e3
    for given in (tensor(x), tensor(np.zeros_like(x))):
        np.testing.assert_allclose(
            compiled(given).numpy(), hidden(given).numpy(), rtol=1e-5, atol=1e-5
        )


def test_functions_of_functions_are_compiled_in_linear_time(rng):
    """Ten nested functions in one expression took TVM minutes."""
    x = tensor(rng.standard_normal((2, 3)).astype(np.float32))

    def chain(value):
        for _ in range(10):
            value = ops.tanh(value) + 0.25
        return value

    found = needle_tvm.compile(chain, x, stage="tuned")(x).numpy()
    np.testing.assert_allclose(found, chain(x).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [(1, 1), (5, 7)], ids=str)
@pytest.mark.parametrize("groups", [1, 20], ids=["dense", "depthwise"])
def test_an_activation_belongs_to_the_convolution_before_it(groups, size, target, rng):
    layer = nn.Conv(20, 20, 3, groups=groups)
    x = tensor(rng.standard_normal((2, 20, *size)).astype(np.float32))

    def hidden(value):
        return ops.silu(layer(value))

    names = calls(lowering.lower(trace(hidden, x), target, "tuned"))
    assert sum("silu" in name for name in names) == 1
    assert any("add_silu" in name for name in names)  # on a 1x1 image the layer is a matmul
    found = needle_tvm.compile(hidden, x, stage="tuned")(x).numpy()
    np.testing.assert_allclose(found, hidden(x).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mcpu", ["x86-64-v2", "haswell", "skylake-avx512", "znver5"])
@pytest.mark.parametrize("m", [1, 2, 7, 8, 13, 64, 1000])
@pytest.mark.parametrize("k", [100, 1024])
@pytest.mark.parametrize("n", [1, 10, 16, 100, 512])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_tile_fits_the_registers(mcpu, m, k, n, dtype):
    target = resolve({"kind": "llvm", "mcpu": mcpu}, 2).to_tvm()
    registers, width = vector_registers(target)
    tile = products.dense_tile(m, k, n, dtype, target)
    lanes = width // np.dtype(dtype).itemsize
    assert tile.columns % lanes == 0
    vectors = tile.columns // lanes
    # Accumulators, a broadcast value, and the weights, which a single row reads from memory.
    weights = vectors if tile.rows > 1 else 0
    assert tile.rows * vectors + 1 + weights <= registers
    # Rows a multiple of 4 kB apart share one set of the cache, which has at least 8 ways.
    assert k != 1024 or tile.rows <= 8
    # The last row of tiles is not mostly empty.
    blocks = -(-m // tile.rows)
    assert blocks * tile.rows - m < blocks
