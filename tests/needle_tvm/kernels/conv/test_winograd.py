"""Winograd's convolutions: exact transforms, right kernels, and taken where they pay."""

from fractions import Fraction

import numpy as np
import pytest

import needle_tvm
from needle import nn, ops
from needle_runtime.memory import aligned_copy
from needle_tvm._tvm.names import te, tvm
from needle_tvm.kernels import cpu
from needle_tvm.kernels.conv import winograd, winograd_te
from needle_tvm.kernels.conv.winograd_te import WINDOW, Tiling, matrices
from needle_tvm.lower.gpu_code import module_of_library
from needle_tvm.lower.linking import object_code
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import module_of
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.together import together

FORTY_EIGHT = 48  # channels: vectors of every width, and three of the widest


@pytest.fixture(params=[2, 4])
def always(request, monkeypatch, tmp_path):
    """Every convolution that can be transformed is, with tiles of this size."""
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path))  # a key knows of no patches
    monkeypatch.setattr(winograd, "tile_size", lambda *_: request.param)
    return request.param


@pytest.mark.parametrize("m", [2, 4])
def test_the_transforms_are_exact(rng, m):
    """In rational numbers, against the definition, along one axis."""
    output, weight, inputs = (
        np.array(matrix, dtype=object).reshape(len(matrix), -1) for matrix in matrices(m)
    )
    d = np.array([Fraction(int(n)) for n in rng.integers(-99, 99, m + WINDOW - 1)], dtype=object)
    g = np.array([Fraction(int(n)) for n in rng.integers(-99, 99, WINDOW)], dtype=object)
    found = output @ ((weight @ g) * (inputs @ d))
    assert list(found) == [sum(d[i + k] * g[k] for k in range(WINDOW)) for i in range(m)]


class Summed(nn.Module):
    """Convolutions whose results are read in all ways that are fused into them."""

    def __init__(self, inputs, outputs, dtype, padding):
        super().__init__()
        options = {"padding": padding, "dtype": dtype}
        self.first = nn.Conv(inputs, outputs, 3, **options)
        self.plain = nn.Conv(inputs, outputs, 3, bias=False, **options)

    def forward(self, x):
        return ops.relu(self.first(x) + self.plain(x))


class Curved(nn.Module):
    def __init__(self, inputs, outputs, dtype, padding):
        super().__init__()
        self.layer = nn.Conv(inputs, outputs, 3, padding=padding, dtype=dtype)

    def forward(self, x):
        return ops.gelu(self.layer(x))


SHAPES = [(1, (4, 8), 1), (3, (5, 7), 1), (2, (9, 3), 0), (1, (1, 6), 2)]  # batch, size, padding


@pytest.mark.parametrize(
    ("threads", "dtype", "shapes"),
    [
        (2, "float32", SHAPES[::2]),
        pytest.param(2, "float64", SHAPES[1::2], marks=pytest.mark.slow),
        pytest.param(1, "float32", SHAPES[1:2], marks=pytest.mark.slow),
        pytest.param(2, "float32", SHAPES[1::2], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_results_are_those_of_the_definition(rng, always, threads, dtype, shapes):
    cases = []
    for batch, size, padding in shapes:
        x = tensor(rng.standard_normal((batch, FORTY_EIGHT, *size)).astype(dtype))
        models = (make(FORTY_EIGHT, 96, dtype, padding) for make in (Summed, Curved))
        cases += [(model, [x]) for model in models]
    # Sums of 9 * 48 products: 1e-6 of the largest by themselves, and the transforms' coefficients.
    tolerance = {"float32": 2e-5, "float64": 4e-14}[dtype]
    for found, expected in together(cases, threads=threads):
        assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def test_rounding_is_what_the_pass_says_of_it(rng, monkeypatch, tmp_path):
    """m = 2 is as exact as the convolution itself, m = 4 some three times less."""
    model = nn.Conv(128, 128, 3)
    model.eval()
    exact = nn.Conv(128, 128, 3, dtype="float64")
    exact.load_state_dict({name: p.numpy().astype("f8") for name, p in model.state_dict().items()})
    exact.eval()
    x = np.maximum(rng.standard_normal((1, 128, 16, 16)), 0).astype("float32")
    expected = exact(tensor(x.astype("f8"))).numpy()
    errors = {}
    for m in (None, 2, 4):
        monkeypatch.setattr(winograd, "tile_size", lambda *_, m=m: m)
        monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / str(m)))
        compiled = needle_tvm.compile(model, tensor(x))
        assert ("winograd_output" in compiled.script) == (m is not None)
        found = compiled(tensor(x))
        errors[m] = np.sqrt(np.mean((found.numpy() - expected) ** 2))
    assert errors[2] < 1.5 * errors[None], errors
    assert errors[2] < errors[4] < 6 * errors[None], errors


@pytest.mark.parametrize(
    ("output", "channels", "expected"),
    [
        ((1, 56, 56, 64), 64, 4),
        ((1, 14, 14, 256), 256, 2),  # hardly slower than 4, and exact
        ((1, 7, 7, 512), 512, 2),
        ((8, 4, 4, 32), 32, None),  # waiting takes as long as the products
        ((1, 64, 64, 16), 16, None),  # the transforms take as long
        ((64, 7, 7, 512), 512, 4),
        ((1, 224, 224, 64), 64, 4),
        ((64, 56, 56, 64), 64, None),  # 115 MB for what takes 51 by itself
    ],
)
def test_tiles_are_as_large_as_pays(output, channels, expected):
    assert winograd.tile_size(output, channels, 4) == expected


def test_transformed_sizes_never_cost_more_arithmetic():
    for size in range(1, 40):
        for channels in (16, 64, 256):
            m = winograd.tile_size((1, size, size, channels), channels, 4)
            if m is not None:
                tiles = Tiling(m, 1, (size, size), (0, 0)).tiles
                assert tiles * (m + 2) ** 2 < 0.8 * 9 * size**2


@pytest.mark.parametrize("m", [2, 4])
def test_it_compiles_for_other_processors(processor, m, tmp_path):
    tiling = Tiling(m, 1, (9, 9), (1, 1))
    x = te.placeholder((1, 9, 9, 64), "float32")
    products = te.placeholder(((m + 2) ** 2, tiling.tiles, 64), "float32")
    for arguments in (
        [x, winograd_te.transformed_input(x, tiling)],
        [products, winograd_te.transformed_output(products, tiling)],
    ):
        function = te.create_prim_func(arguments).with_attr("global_symbol", "main")
        module = module_of(cpu.schedule_function(function, processor))
        with processor:
            built = tvm.tirx.build(module, target=processor)
        assert object_code(module_of_library(built), tmp_path / "code.o")


def test_weights_are_transformed_as_the_matrices_say(rng):
    w = te.placeholder((3, 3, 5, 7), "float64")
    target = resolve("cpu", 1).to_tvm()
    result = winograd_te.transformed_weight(w, 4)
    function = te.create_prim_func([w, result]).with_attr("global_symbol", "main")
    with target:
        run = tvm.tirx.build(module_of(cpu.schedule_function(function, target)), target=target)
    given = rng.standard_normal((3, 3, 5, 7))
    found = tvm.runtime.tensor(aligned_copy(np.zeros((36, 5, 7))))
    run["main"](tvm.runtime.tensor(aligned_copy(given)), found)
    g = np.array(matrices(4).weight, dtype=float)
    expected = np.einsum("ir,rscn,js->ijcn", g, given, g)
    np.testing.assert_allclose(found.numpy(), expected.reshape(36, 5, 7), rtol=1e-13, atol=1e-13)
