"""`dtype=`: matmuls and convolutions with rounded operands, their code, errors and bounds."""

import math
import re

import ml_dtypes
import numpy as np
import pytest

import needle_runtime
import needle_tvm
from needle import Tensor, nn, ops
from needle.trace import trace
from needle_runtime.artifact.manifest import read_manifest
from needle_runtime.artifact.tolerance import operand_tolerance, relative_tolerance
from needle_runtime.errors import TargetError, UsageError
from needle_runtime.target.precision import FLOAT32, PRECISIONS
from needle_tvm._tvm.names import relax
from needle_tvm.check import parity
from needle_tvm.errors import StageError
from needle_tvm.frontend import lowering, reference
from needle_tvm.frontend.bounds import error_bounds
from needle_tvm.lower import pipeline
from needle_tvm.target.precision import check
from needle_tvm.target.spec import resolve
from tests.needle_tvm.conftest import make_mlp, tensor

HALVES = ("float16", "bfloat16")
ROUNDOFF = {"tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
GPU = resolve("cuda:sm_80").to_tvm()


def rounded(array, dtype):
    """An array's elements rounded as operands, in float64."""
    return array.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).astype(np.float64)


def linear(rng, dtype, stage):
    layer = nn.Linear(300, 24).eval()
    weight, bias = (p.numpy() for p in layer.parameters())
    x = rng.standard_normal((9, 300), dtype=np.float32)
    return (
        needle_tvm.compile(layer, x, stage=stage, dtype=dtype),
        x,
        rounded(x, dtype) @ rounded(weight, dtype) + bias.astype(np.float64),
    )


def convolution(rng, dtype, stage):
    layer = nn.Conv(7, 5, 3, bias=False).eval()
    (weight,) = (p.numpy() for p in layer.parameters())
    x = rng.standard_normal((2, 7, 6, 6), dtype=np.float32)
    wide, w = np.pad(rounded(x, dtype), ((0, 0), (0, 0), (1, 1), (1, 1))), rounded(weight, dtype)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))
    expected = np.einsum("bcyxij,ijco->boyx", windows, w)
    return needle_tvm.compile(layer, x, stage=stage, dtype=dtype), x, expected


def attention(rng, dtype, stage):
    def scores(x):
        return ops.softmax(ops.matmul(x, ops.transpose(x)) * 0.25) @ x

    x = rng.standard_normal((2, 6, 16), dtype=np.float32)
    narrow = rounded(x, dtype)
    e = np.exp(narrow @ narrow.swapaxes(1, 2) * 0.25)
    weights = (e / e.sum(-1, keepdims=True)).astype(np.float32)
    return (
        needle_tvm.compile(scores, x, stage=stage, dtype=dtype),
        x,
        rounded(weights, dtype) @ narrow,
    )


@pytest.mark.parametrize("stage", ["fused", "tuned"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("make", [linear, convolution])
def test_operands_are_rounded_and_sums_are_not(make, dtype, stage, rng):
    """The bound is that of float32 sums; an omitted or doubled rounding would be 100 times that."""
    executable, x, expected = make(rng, dtype, stage)
    found = executable.program.run([x])[0]
    assert found.dtype == np.float32
    gap = np.abs(found - expected).max() / np.abs(expected).max()
    assert gap <= relative_tolerance("float32", 300)
    assert relative_tolerance("float32", 300) < ROUNDOFF[dtype] / 10


@pytest.mark.parametrize("dtype", HALVES)
def test_both_products_of_attention_take_narrow_operands(dtype, rng):
    """A weight halfway between two narrow numbers may be rounded to either."""
    executable, x, expected = attention(rng, dtype, "tuned")
    gap = np.abs(executable.program.run([x])[0] - expected).max() / np.abs(expected).max()
    assert gap <= ROUNDOFF[dtype] / 2
    exact = attention(rng, "float32", "tuned")
    assert not np.allclose(exact[0].program.run([x])[0], expected, rtol=ROUNDOFF[dtype] / 100)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_what_an_artifact_computes_in(dtype, rng):
    layer, x = nn.Linear(5, 3).eval(), rng.standard_normal((2, 5), dtype=np.float32)
    target = "cuda:sm_80" if dtype == "tf32" else "cpu"
    if dtype == "tf32":
        pytest.importorskip("needle_tvm.target.nvcc").find() or pytest.skip("no nvcc")
    found = needle_tvm.compile(layer, x, target=target, dtype=dtype)
    assert found.manifest["precision"] == dtype
    main = found.manifest["functions"]["main"]
    specs = [*main["inputs"], *main["params"], *main["outputs"]]
    assert {spec["dtype"] for spec in specs} == {"float32"}
    again = needle_tvm.compile(layer, x, target=target, dtype=dtype)
    assert again.from_cache and again.path == found.path


def test_the_precision_is_part_of_the_key(rng):
    layer, x = nn.Linear(5, 3).eval(), rng.standard_normal((2, 5), dtype=np.float32)
    paths = [needle_tvm.compile(layer, x, dtype=d).path for d in (None, "float32", *HALVES)]
    assert paths[0] == paths[1] and len(set(paths)) == 3


@pytest.mark.parametrize(
    ("dtype", "target", "stage", "error", "text"),
    [
        ("float8", "cpu", "tuned", UsageError, "dtype='float8': must be None or one of float32, t"),
        ("float64", "cpu", "tuned", UsageError, "dtype='float64': must be"),
        ("tf32", "cpu", "tuned", TargetError, "dtype='tf32': only NVIDIA GPUs from sm_80 on"),
        ("tf32", "cuda:sm_75", "tuned", TargetError, "'tf32': GPUs have it from sm_80 on.*sm_75"),
        ("bfloat16", "cuda:sm_75", "fused", TargetError, "'bfloat16': GPUs have it from sm_80 on"),
        ("float16", "cpu", "noopt", StageError, "'float16': stage 'noopt' computes in the model"),
    ],
)
def test_what_is_refused(dtype, target, stage, error, text):
    with pytest.raises(error, match=text):
        needle_tvm.compile(
            nn.Linear(5, 3).eval(),
            np.zeros((2, 5), np.float32),
            target=target,
            dtype=dtype,
            stage=stage,
        )


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_100"])
def test_float16_is_on_every_target(arch):
    assert check("float16", resolve(f"cuda:{arch}"), "tuned") == "float16"
    assert check(None, resolve(f"cuda:{arch}"), "noopt") == FLOAT32


@pytest.mark.parametrize("dtype", ROUNDOFF)
@pytest.mark.parametrize("terms", [1, 10, 1000])
def test_the_bound_of_rounded_operands(dtype, terms, rng):
    """It holds for randomly rounded operands and is within a factor of 20 of their error."""
    unit = ROUNDOFF[dtype]
    x, w = rng.standard_normal((64, terms)), rng.standard_normal((terms, 64))
    off = [a * (1 + unit * rng.uniform(-1, 1, a.shape)) for a in (x, w)]
    exact = x @ w
    gap = np.abs(off[0] @ off[1] - exact).max() / np.abs(exact).max()
    bound = operand_tolerance(dtype, terms, exact.size)
    assert gap <= bound <= 20 * gap
    assert bound <= 2 * unit * math.sqrt(terms)
    assert operand_tolerance(FLOAT32, terms, exact.size) == 0


def test_bounds_grow_at_products_alone(rng):
    graph = trace(make_mlp(64, 96, 32), tensor(rng.standard_normal((5, 64), dtype=np.float32)))
    (out,) = graph.outputs
    plain, narrow = (error_bounds(graph, p)[out] for p in (FLOAT32, "bfloat16"))
    products = [node for node in graph.nodes if node.op is not None and node.op.name == "matmul"]
    each = [
        operand_tolerance(
            "bfloat16", node.input_nodes[0].spec.shape[-1], math.prod(node.spec.shape)
        )
        for node in products
    ]
    assert len(each) == 2 and narrow == pytest.approx(plain + sum(each))


@pytest.mark.parametrize("dtype", HALVES)
def test_parity_and_the_golden_example(dtype, rng, tmp_path):
    model = make_mlp(64, 96, 32)
    x = tensor(rng.standard_normal((5, 64), dtype=np.float32))
    stages = {s: needle_tvm.compile(model, x, stage=s, dtype=dtype) for s in ("fused", "tuned")}
    exact = needle_tvm.compile(model, x)
    narrow, *others = parity.ladder(model, [x], {**stages, "eager": None, "exact": exact})
    assert all(rung.ok for rung in (narrow, *others)), narrow
    assert others[-1].tolerance < narrow.tolerance
    assert narrow.max_relative > 10 * others[-1].max_relative  # operands were really rounded
    folder = stages["tuned"].export(tmp_path / "model")
    manifest = read_manifest(folder)
    graph = trace(model, x)
    assert manifest["golden"]["tolerances"] == reference.tolerances(graph, dtype)
    assert reference.tolerances(graph, dtype) > reference.tolerances(graph)
    loaded = needle_tvm.load(folder)
    assert needle_runtime.self_test(loaded.program).passed
    loaded.set_params({name: value.numpy() * 2 for name, value in model.state_dict().items()})
    again = loaded.export(tmp_path / "again")  # by the signature alone
    assert read_manifest(again)["precision"] == dtype
    assert needle_runtime.self_test(needle_tvm.load(again).program).passed


def test_a_wrong_result_is_still_named(rng):
    model = make_mlp(64, 96, 32)
    x = tensor(rng.standard_normal((5, 64), dtype=np.float32))
    found = needle_tvm.compile(model, x, dtype="float16")
    changed = {name: value.numpy() * 1.5 for name, value in model.state_dict().items()}
    found.set_params(changed)
    (rung,) = parity.ladder(model, [x], {"tuned": found})
    assert not rung.ok and rung.diverges is not None


def test_float16_overflows_and_bfloat16_does_not():
    layer = nn.Linear(4, 3, bias=False).eval()
    x = np.full((2, 4), 1e5, np.float32)
    with pytest.raises(needle_tvm.MismatchError, match="matmul"):  # infinities are refused
        needle_tvm.compile(layer, x, dtype="float16")
    halves = needle_tvm.compile(layer, x, dtype="float16", check=False)
    assert not np.isfinite(halves(x).numpy()).any()
    assert np.isfinite(needle_tvm.compile(layer, x, dtype="bfloat16")(x).numpy()).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_nan_and_infinity_pass_through(dtype):
    layer = nn.Linear(4, 3, bias=False).eval()
    bits = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7FC00000], np.uint32)
    x = np.zeros((6, 4), np.float32)
    x[:4, 0] = bits.view(np.float32)
    x[4, 1], x[5, 2] = np.inf, -np.inf
    found = needle_tvm.compile(layer, x, dtype=dtype)(x).numpy()
    assert np.isnan(found[:4]).all()
    (weight,) = (p.numpy() for p in layer.parameters())
    np.testing.assert_array_equal(found[4:], [np.inf * weight[1], -np.inf * weight[2]])


def test_a_model_in_halves_stays_what_it_is(rng):
    model = make_mlp(64, 96, 32).to(dtype="float16")
    x = tensor(rng.standard_normal((5, 64)).astype(np.float16))
    plain = needle_tvm.compile(model, x)
    for dtype in HALVES:
        found = needle_tvm.compile(model, x, dtype=dtype)
        assert found.manifest["precision"] == dtype
    exact = needle_tvm.compile(model, x, dtype="float16")
    np.testing.assert_array_equal(exact(x).numpy(), plain(x).numpy())
    graph = trace(model, x)
    own, asked = (lowering.lower(graph, GPU, "tuned", precision=p) for p in (FLOAT32, "bfloat16"))
    assert own.script() == asked.script()


def values_of(module, name="main"):
    """The result dtype of each call in a function, by the callee's name."""
    found = {}

    def visit(expr):
        if isinstance(expr, relax.Call) and expr.args and hasattr(expr.args[0], "name_hint"):
            found[expr.args[0].name_hint] = str(expr.ty.dtype)

    relax.analysis.post_order_visit(module[name], visit)
    return found


def test_on_a_gpu_operands_lie_in_memory_narrow():
    """Weights are rounded at load, and values that only matmuls read by the kernel before."""
    x = Tensor(np.zeros((32, 64), np.float32))
    module = lowering.lower(trace(make_mlp(64, 96, 32), x), GPU, "tuned", precision="bfloat16")
    first, second = values_of(module).items()
    assert first[0].startswith("fused_matmul") and first[1] == "bfloat16"
    assert second[0].startswith("fused_matmul") and second[1] == "float32"
    shapes = {p: tuple(map(int, p.ty.shape.values)) for p in module["main"].params}
    weights = [p for p, shape in shapes.items() if shape in ((64, 96), (96, 32))]
    assert len(weights) == 2
    assert {str(p.ty.dtype) for p in weights} == {"bfloat16"}


def test_on_a_gpu_what_others_read_as_well_stays_float32():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            y = ops.relu(self.first(x))
            return y + self.second(y)

    x = Tensor(np.zeros((32, 64), np.float32))
    module = lowering.lower(trace(Residual().eval(), x), GPU, "tuned", precision="float16")
    kernels = values_of(module)
    assert set(kernels.values()) == {"float32"} and len(kernels) == 2  # only the two matmuls


def test_a_pass_that_is_left_out_leaves_float32(rng):
    assert "narrow_products" in pipeline.switches("tuned", "cuda")
    assert "narrow_products" in pipeline.switches("tuned")
    layer, x = nn.Linear(5, 3).eval(), rng.standard_normal((2, 5), dtype=np.float32)
    with pytest.raises(StageError, match=re.escape("disable=['narrow_products']: dtype=")):
        needle_tvm.compile(layer, x, dtype="float16", disable=["narrow_products"])
