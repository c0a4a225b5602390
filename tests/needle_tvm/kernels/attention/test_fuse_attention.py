"""Attention as one kernel: its numbers, and that it compiles elsewhere."""

import itertools

import numpy as np
import pytest

import needle_tvm
from needle import nn, ops
from needle.trace import trace
from needle_tvm._tvm.names import Schedule, te, tvm
from needle_tvm.frontend import lowering
from needle_tvm.graph.views import reshaped_index
from needle_tvm.kernels.attention import cpu as rule
from needle_tvm.lower.libraries import generated_source
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import calls_of, module_of
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.together import check_together


def values(*shape, seed=3):
    rng = np.random.default_rng(seed + sum(shape))
    return tensor(rng.standard_normal(shape).astype(np.float32))


def kernels(fn, *inputs):
    module = lowering.lower(trace(fn, *inputs), resolve("cpu", 2).to_tvm(), "tuned")
    return [name.rstrip("0123456789") for name in calls_of(module, "main")]


def attend(q, k, v, scale=0.3, mask=None):
    scores = ops.matmul(q, ops.transpose(k)) * scale
    return ops.matmul(ops.softmax(scores if mask is None else scores + mask), v)


# Queries, keys and features of each.
SIZES = [
    *[(4, 1, 5), (10, 10, 20), (16, 7, 64), (33, 101, 80), (77, 77, 5)],
    *[(4, 1, 80), (10, 10, 64), (33, 101, 20)],
]


def test_heads_of_any_size_and_sequences_of_any_length():
    cases = []
    for queries, keys, features in SIZES:
        inputs = [values(2, 3, n, features, seed=n) for n in (queries, keys, keys)]
        cases.append((attend, inputs))
    check_together(cases, tolerance=2e-5)


@pytest.mark.slow
def test_masks_of_any_shape_that_broadcasts():
    masked = lambda q, k, v, mask: attend(q, k, v, mask=mask)  # noqa: E731
    inputs = values(2, 3, 9, 8), values(2, 3, 12, 8), values(2, 3, 12, 8, seed=9)
    shapes = (9, 12), (1, 12), (12,), (2, 1, 9, 12), (3, 9, 1), ()
    check_together([(masked, [*inputs, values(*shape)]) for shape in shapes], tolerance=2e-5)


@pytest.mark.slow
def test_an_attention_layer_copies_no_heads():
    """Of fewer than four queries there is none to copy."""
    cases = []
    for count, causal in ((1, True), (3, False), (10, True), (40, False)):
        layer = nn.AttentionLayer(24, 3, 8, causal=causal).eval()
        x = values(2, count, 24)
        cases.append((layer, [x]))
        if count >= 4:
            names = kernels(layer, x)
            assert "attention" in names
            assert not any("transpose" in name or "matmul" in name for name in names)
    check_together(cases, tolerance=2e-5)


def test_nothing_infinite_is_lost():
    q, k, v = (values(1, 1, 5, 4, seed=i).numpy() for i in range(3))
    q[0, 0, 1, 2], k[0, 0, 0, 0] = np.nan, np.inf
    inputs = [tensor(x) for x in (q, k, v)]
    with np.errstate(invalid="ignore"):
        expected = attend(*inputs).numpy()
    found = needle_tvm.compile(attend, *inputs, stage="tuned")(*inputs).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "other"),
    [((6, 8), (6, 2, 4)), ((2, 3, 8), (6, 8)), ((6, 4), (3, 8)), ((1, 6), (6,)), ((6,), (1, 6, 1))],
    ids=str,
)
def test_an_index_after_a_reshape(shape, other):
    array = np.arange(np.prod(shape)).reshape(shape)
    for index in itertools.product(*map(range, shape)):
        moved = tuple(reshaped_index(index, shape, other))
        assert array.reshape(other)[moved] == array[index]


TARGETS = [
    {"kind": "llvm", "mcpu": "x86-64-v2"},
    {"kind": "llvm", "mcpu": "haswell"},
    {"kind": "llvm", "mcpu": "skylake-avx512"},
    {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"},
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["mcpu"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tiles_fit_and_compile_everywhere(target, dtype):
    compiled = resolve(target, 2).to_tvm()
    for queries in (4, 4096, 77):
        shape = rule.AttentionShape(1, 2, queries, queries, 32, 32)
        tile = rule.attention_tile(shape, dtype, compiled)
        assert tile.queries % tile.rows == 0 and tile.columns <= shape.values
    q, k, v = (te.placeholder((1, 2, shape.queries, 32), dtype, name=name) for name in "qkv")
    parts = [lambda *i, x=x: x[i] for x in (q, k, v)]
    result = rule.attention(shape, tile, dtype, 0.5, *parts, None)
    sch = Schedule(module_of(te.create_prim_func([q, k, v, result])))
    rule.schedule_attention(sch, sch.get_sblock("scores"), compiled, None)
    element = {"float32": "float", "float64": "double"}[dtype]
    assert f"x {element}>" in generated_source(tvm.compile(sch.mod, target=compiled), "ll")
