"""Pipelines of graph passes: the kernels that are left of models, and their numbers."""

import itertools

import numpy as np
import pytest

import needle_tvm
from needle import nn, ops
from needle.trace import trace
from needle_tvm._tvm.names import PrimFunc
from needle_tvm.frontend import lowering
from needle_tvm.kernels.dense import cpu as products
from needle_tvm.lower import build
from needle_tvm.target.info import target_info
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import calls_of, static_shape
from tests.needle_tvm.conftest import make_mlp, tensor
from tests.needle_tvm.together import check_together, together


@pytest.fixture(scope="module")
def target():
    return resolve("cpu", 2).to_tvm()


def zeros(*shape, dtype="float32"):
    return tensor(np.zeros(shape, dtype))


def calls(module, name="main"):
    return [called.rstrip("0123456789") for called in calls_of(module, name)]


def test_a_shared_weight_is_packed_once(target):
    model = make_mlp(8, 8)
    module = lowering.lower(trace(lambda x: model(model(x)), zeros(3, 8)), target, "tuned")
    assert calls(module).count("pack_weight") == 0
    assert calls(module, build.TRANSFORM) == ["pack_weight"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_of_two_inputs_is_packed_on_the_way(rng, dtype):
    """Matrices, rows of several, a batch; also of one that is seen through a permutation."""
    shapes = [((40, 33), (33, 21)), ((3, 7, 16), (16, 5)), ((2, 3, 9, 17), (2, 3, 17, 40))]
    cases, exact = [], []
    for pair in shapes:
        a, b = (tensor(rng.standard_normal(shape).astype(dtype)) for shape in pair)
        cases += [
            (lambda a, b: ops.relu(a @ b), [a, b]),
            (lambda a, b: a @ ops.transpose(ops.transpose(b) + 1), [a, b]),
        ]
        wide = a.numpy().astype("float64")
        exact += [np.maximum(wide @ b.numpy(), 0), wide @ (b.numpy() + 1.0)]
    tolerance = {"float32": 1e-5, "float64": 1e-13}[dtype] * np.sqrt(33)
    for (found, _), expected in zip(together(cases), exact, strict=True):
        np.testing.assert_allclose(found, expected, tolerance, tolerance)


def test_batch_norm_is_folded_into_the_layer_before_it(target, rng):
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU())
    for _ in range(3):  # statistics that are not a new module's
        model(tensor(rng.standard_normal((16, 8)).astype(np.float32)))
    model.eval()
    x = tensor(rng.standard_normal((3, 8)).astype(np.float32))
    module = lowering.lower(trace(model, x), target, "tuned")
    assert calls(module) == ["fused_dense_add_maximum"]  # the scale is gone, bias and shift are one
    assert "pack_weight" in calls(module, build.TRANSFORM)
    found = needle_tvm.compile(model, x, stage="tuned")(x).numpy()
    np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-5, atol=1e-5)


def conv_bn(*channels, kernel=3, **options):
    """Conv, BatchNorm2d and ReLU with statistics that are not a new module's, in eval mode."""
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
    assert sum("transpose" in name for name in names) == 1  # out: the first reads planes
    assert not any("pad" in name for name in names)
    assert sum(name.startswith("fused_conv") for name in names) == 3
    assert not any("multiply" in name for name in names)  # batch norm's scale is in the weights
    assert any("add" in name.split("maximum")[-1] for name in names)  # so is the residual's sum
    pooled = lowering.lower(
        trace(lambda x: ops.mean(model(x), (2, 3)), zeros(2, 3, 9, 9)), target, "tuned"
    )
    assert not any("transpose" in name for name in calls(pooled))


KERNELS, STRIDES = (1, 2, 3, (3, 1)), (1, 2, (1, 3))
OPTIONS = ({}, {"padding": 0}, {"padding": (2, 1)}, {"dilation": 2})


def test_packed_convolutions_of_any_geometry(rng):
    """Every kernel with every stride, and every stride with every one of the options."""
    cases = []
    for number, (kernel, stride) in enumerate(itertools.product(KERNELS, STRIDES)):
        options = OPTIONS[(number // 3 + number % 3) % len(OPTIONS)]
        model = conv_bn(3, 5, kernel=kernel, stride=stride, **options)
        cases.append((model, [tensor(rng.standard_normal((2, 3, 9, 8)).astype(np.float32))]))
    x = tensor(rng.standard_normal((2, 4, 9, 9)).astype(np.float32))
    check_together([*cases, (conv_bn(4, 8, groups=2), [x])])


def test_a_bias_that_is_broadcast_is_read_as_it_is(target):
    layer = nn.Linear(8, 6)

    def as_in_the_course(x):
        y = x @ layer.weight
        return ops.relu(y + ops.broadcast_to(layer.bias, y.shape))

    module = lowering.lower(trace(as_in_the_course, zeros(64, 8)), target, "tuned")
    assert calls(module) == ["fused_dense_add_maximum"]
    shapes = [static_shape(argument) for argument in module["main"].params]
    assert (64, 6) not in shapes and (1, 6) in shapes


def test_after_fusion_one_kernel_is_left_of_a_layer(target):
    module = lowering.lower(trace(make_mlp(8, 4), zeros(3, 8)), target, "tuned")
    assert calls(module) == ["fused_dense_add_maximum"]


def test_every_function_is_scheduled(target):
    module = lowering.lower(trace(make_mlp(8, 4), zeros(3, 8)), target, "tuned")
    module = build.schedule(module, target, "tuned")
    functions = [f for f in module.functions.values() if isinstance(f, PrimFunc)]
    assert functions and all("tirx.is_scheduled" in f.attrs for f in functions)


def test_an_epilogue_that_reads_its_input_twice(target, rng):
    """Not inlined, yet computed at the tile: x * sigmoid(x) after a layer."""
    layer = make_mlp(16, 40).modules[0]
    x = tensor(rng.standard_normal((5, 16)).astype(np.float32))

    def swish(value):
        hidden = layer(value)
        return hidden * ops.sigmoid(hidden) * hidden

    found = needle_tvm.compile(swish, x, stage="tuned")(x).numpy()
    np.testing.assert_allclose(found, swish(x).numpy(), rtol=1e-5, atol=1e-5)
    module = lowering.lower(trace(swish, x), target, "tuned")
    assert len(calls(module)) == 1


ACTIVATIONS = {"gelu": ops.gelu, "silu": ops.silu, "tanh": ops.tanh, "sigmoid": ops.sigmoid}


class Activated(nn.Module):
    def __init__(self, layer, name):
        super().__init__()
        self.layer, self.activation = layer, ACTIVATIONS[name]

    def forward(self, x):
        return self.activation(self.layer(x))


def test_an_activation_belongs_to_the_layer_before_it(target, rng):
    """Through the reshapes around a product of three axes, whatever rows are left for a tile."""
    cases = []
    for rows, name in [*zip((1, 2, 7, 33), ACTIVATIONS, strict=True), (33, "gelu"), (1, "tanh")]:
        model = Activated(nn.Linear(24, 37), name).eval()
        x = rng.standard_normal((2, rows, 24)).astype(np.float32)
        module = lowering.lower(trace(model, tensor(x)), target, "tuned")
        assert calls(module) == [f"fused_dense_add_{name}"]
        special = x.copy()
        special[0, 0, :3] = np.nan, np.inf, -np.inf
        special[1, 0] *= 1e3
        cases += [(model, [tensor(special)]), (model, [tensor(np.zeros_like(x))])]
    check_together(cases, check=False)


def test_functions_of_functions_are_compiled_in_linear_time(rng):
    """Ten in one expression took TVM minutes."""
    x = tensor(rng.standard_normal((2, 3)).astype(np.float32))

    def chain(value):
        for _ in range(10):
            value = ops.tanh(value) + 0.25
        return value

    found = needle_tvm.compile(chain, x, stage="tuned")(x).numpy()
    np.testing.assert_allclose(found, chain(x).numpy(), rtol=1e-5, atol=1e-5)


def test_an_activation_belongs_to_the_convolution_before_it(target, rng):
    cases = []
    for groups, size in itertools.product((1, 20), ((1, 1), (5, 7))):
        model = Activated(nn.Conv(20, 20, 3, groups=groups), "silu").eval()
        x = tensor(rng.standard_normal((2, 20, *size)).astype(np.float32))
        names = calls(lowering.lower(trace(model, x), target, "tuned"))
        assert sum("silu" in name for name in names) == 1
        assert any("add_silu" in name for name in names)  # a 1x1 image leaves a product
        cases.append((model, [x]))
    check_together(cases)


@pytest.mark.parametrize("mcpu", ["x86-64-v2", "haswell", "skylake-avx512", "znver5"])
def test_a_tile_fits_the_registers(mcpu):
    target = resolve({"kind": "llvm", "mcpu": mcpu}, 2).to_tvm()
    width, registers = target_info(target).vectors
    sizes = (1, 2, 7, 8, 13, 64, 1000), (100, 1024), (1, 10, 16, 100, 512), ("float32", "float64")
    for m, k, n, dtype in itertools.product(*sizes):
        tile = products.dense_tile(m, k, n, dtype, target)
        lanes = width // np.dtype(dtype).itemsize
        assert tile.columns % lanes == 0
        vectors = tile.columns // lanes
        # Accumulators, a broadcast value, and the weights: a single row reads them from memory.
        weights = vectors if tile.rows > 1 else 0
        assert tile.rows * vectors + 1 + weights <= registers
        # Rows a multiple of 4 kB apart meet in one set of the cache, which has 8 ways or more.
        assert k != 1024 or tile.rows <= 8
        # The last row of tiles is not mostly empty.
        blocks = -(-m // tile.rows)
        assert blocks * tile.rows - m < blocks
