"""Products of bfloat16: the instruction for pairs is right, and used where it exists."""

import numpy as np
import pytest

import needle_tvm
from needle import nn, ops
from needle.trace import trace
from needle_runtime.memory import aligned_copy
from needle_tvm._tvm.names import Schedule, te, topi, tvm
from needle_tvm.frontend import lowering
from needle_tvm.kernels.dense import cpu as products
from needle_tvm.kernels.dense.pack_pairs import dense, pack
from needle_tvm.lower import build
from needle_tvm.lower.libraries import generated_source
from needle_tvm.target import dots
from needle_tvm.target.info import target_info
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import calls_of, module_of
from tests.needle_tvm.conftest import make_mlp, tensor
from tests.needle_tvm.together import together

ZEN4, HASWELL = ({"kind": "llvm", "mcpu": name} for name in ("znver4", "haswell"))

here = pytest.mark.skipif(
    not target_info(resolve("cpu", 1).to_tvm()).has(dots.BF16_PAIRS.feature),
    reason="this processor has no AVX512-BF16",
)


def layer(m, k, n, target):
    """relu(x @ w + bias) with everything but sums in bfloat16, and a function that packs w."""
    tile = products.dense_tile(m, k // 2, n, "float32", target)
    x, w, bias = (te.placeholder(shape, "bfloat16") for shape in ((m, k), (k, n), (1, n)))
    panels = te.placeholder((-(-n // tile.columns), k // 2, tile.columns, 2), "bfloat16")
    total = topi.add(dense(x, panels, n, tile), topi.cast(bias, "float32"))
    result = topi.maximum(total, topi.full((1, 1), "float32", 0))
    function = te.create_prim_func([x, panels, bias, result])
    packing = te.create_prim_func([w, pack(w, tile.columns)])
    return (each.with_attr("global_symbol", "main") for each in (function, packing))


def scheduled(function, target, knobs):
    sch = Schedule(function)
    products.pairs(sch, sch.get_sblock("tiles"), target, knobs)
    return sch.mod


def built(module, target):
    with target:
        return tvm.tirx.build(module, target=target)


def product_kernels(module):
    return [name for name in calls_of(module, "main") if "dense" in name]


SHAPES = [(1, 2, 1), (1, 4096, 10), (2, 6, 300), (7, 14, 33), (13, 64, 100), (66, 40, 129)]


@here
@pytest.mark.parametrize(
    ("shape", "threads"),
    [*((shape, 2) for shape in SHAPES), ((1, 4096, 10), 1), ((7, 14, 33), 1)],
)
def test_variants_of_odd_shapes(rng, shape, threads):
    m, k, n = shape
    target = resolve("cpu", threads).to_tvm()
    function, packing = layer(m, k, n, target)
    x, w, bias = (rng.standard_normal(s).astype("bfloat16") for s in ((m, k), (k, n), (1, n)))
    wide = [array.astype("float64") for array in (x, w, bias)]
    expected = np.maximum(wide[0] @ wide[1] + wide[2], 0)

    def given(array):
        """As TVM takes bfloat16 from NumPy: by the bits."""
        return tvm.runtime.empty(array.shape, "bfloat16").copyfrom(array)

    packed = tvm.runtime.empty([int(e) for e in packing.params[1].shape], "bfloat16")
    built(module_of(packing), target)["main"](given(w), packed)
    # Products of two bfloat16 are exact in float32: what is left is the sum's rounding.
    tolerance = 1e-6 * np.sqrt(k)
    for knobs in products.DENSE_VARIANTS:
        run = built(scheduled(function, target, knobs), target)["main"]
        found = tvm.runtime.tensor(aligned_copy(np.full((m, n), np.nan, "float32")))
        run(given(x), packed, given(bias), found)
        np.testing.assert_allclose(found.numpy(), expected, tolerance, tolerance)


class Silu(nn.Module):
    def __init__(self, w, b):
        super().__init__()
        self.w, self.b = nn.Parameter(w), nn.Parameter(b)

    def forward(self, x):
        return ops.silu(x @ self.w + self.b)


@here
@pytest.mark.parametrize("threads", [1, 2])
def test_a_panel_wider_than_a_result_that_is_read_twice(rng, threads):
    cases, exact = [], []
    for m, k, n in ((11, 2, 10), (1, 64, 4), (7, 8, 20), (70, 64, 40), (3, 6, 17)):
        x, w, bias = (
            tensor(rng.uniform(-1, 1, s)).astype("bfloat16") for s in ((m, k), (k, n), (n,))
        )
        cases.append((Silu(w, bias), [x]))
        total = x.numpy().astype("float64") @ w.numpy().astype("float64") + bias.numpy()
        exact.append(total / (1 + np.exp(-total)))
    for (found, _), expected in zip(together(cases, threads=threads), exact, strict=True):
        np.testing.assert_allclose(found.astype("float64"), expected, 0.02, 0.02)


@pytest.mark.parametrize("shape", [(1, 300, 10), (13, 64, 100), (128, 384, 1536)], ids=str)
def test_the_instruction_is_there_and_its_sums_are_in_registers(shape):
    target = resolve(ZEN4, 2).to_tvm()
    function, _ = layer(*shape, target)
    code = generated_source(
        built(scheduled(function, target, products.DENSE_VARIANTS[0]), target), "asm"
    )
    lines = [line for line in code.splitlines() if "vdpbf16ps" in line]
    assert lines and not any("(%rsp)" in line for line in lines)
    assert "needle_dot_bf16" not in code


def test_targets_without_the_instruction_multiply_in_float32():
    model = make_mlp(64, 96, 32).to(dtype="bfloat16")
    graph = trace(model, tensor(np.zeros((5, 64), "bfloat16")))
    for target, used in ((ZEN4, True), (HASWELL, False)):
        target = resolve(target, 2).to_tvm()
        module = build.schedule(lowering.lower(graph, target, "tuned"), target, "tuned")
        assert (dots.PRAGMA in str(module.script())) == used
        assert len(product_kernels(lowering.lower(graph, target, "tuned"))) == 2


@here
@pytest.mark.parametrize(
    ("batch", "widths"), [((3,), (64, 96)), ((), (64, 96, 32)), ((2, 5), (64, 96, 32))], ids=str
)
def test_a_model_gives_what_it_gives_in_float32(rng, batch, widths):
    """But for what is rounded to bfloat16 between two layers, half a unit in the last place."""
    model = make_mlp(*widths).to(dtype="bfloat16")
    x = tensor(rng.standard_normal((*batch, 7, 64)).astype("bfloat16"))
    compiled = needle_tvm.compile(model, x)
    assert dots.PRAGMA in compiled.script
    other = needle_tvm.compile(model, x, disable=["pack_pairs"])
    assert dots.PRAGMA not in other.script
    found, expected = (exe(x).numpy().astype("float64") for exe in (compiled, other))
    assert np.abs(found - expected).max() <= 2**-7 * np.abs(expected).max()
    if len(widths) == 2:  # sums in another order, hardly ever rounded another way
        assert np.mean(found == expected) > 0.98


@here
def test_special_values_come_out_as_in_float32():
    model = nn.Linear(4, 3, bias=False, dtype="bfloat16")
    model.eval()
    x = np.ones((3, 4), "bfloat16")
    x[0, 0], x[1, 1], x[2, 2] = np.nan, np.inf, -np.inf
    found, expected = (
        needle_tvm.compile(model, tensor(x), disable=names)(tensor(x)).numpy().astype("float32")
        for names in ([], ["pack_pairs"])
    )
    np.testing.assert_array_equal(found, expected)
    assert np.isnan(found[0]).all() and np.isinf(found[1:]).all()
