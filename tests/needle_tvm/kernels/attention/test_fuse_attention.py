"""Attention as one kernel: what the pass rewrites, what it leaves alone, and the results."""

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


def values(*shape, seed=3):
    rng = np.random.default_rng(seed + sum(shape))
    return tensor(rng.standard_normal(shape).astype(np.float32))


def kernels(fn, *inputs):
    module = lowering.lower(trace(fn, *inputs), resolve("cpu", 2).to_tvm(), "tuned")
    return [name.rstrip("0123456789") for name in calls_of(module, "main")]


def attend(q, k, v, scale=0.3, mask=None):
    scores = ops.matmul(q, ops.transpose(k)) * scale
    return ops.matmul(ops.softmax(scores if mask is None else scores + mask), v)


def check(fn, *inputs):
    found = needle_tvm.compile(fn, *inputs, stage="tuned")(*inputs).numpy()
    np.testing.assert_allclose(found, fn(*inputs).numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("features", [5, 20, 64, 80])
@pytest.mark.parametrize(("queries", "keys"), [(4, 1), (10, 10), (16, 7), (33, 101), (77, 77)])
def test_heads_of_any_size_and_sequences_of_any_length(queries, keys, features):
    inputs = (values(2, 3, n, features, seed=n) for n in (queries, keys, keys))
    inputs = tuple(inputs)
    assert "attention" in kernels(attend, *inputs)
    check(attend, *inputs)


@pytest.mark.parametrize("shape", [(9, 12), (1, 12), (12,), (2, 1, 9, 12), (3, 9, 1), ()], ids=str)
def test_masks_of_any_shape_that_broadcasts(shape):
    inputs = values(2, 3, 9, 8), values(2, 3, 12, 8), values(2, 3, 12, 8, seed=9), values(*shape)
    masked = lambda q, k, v, mask: attend(q, k, v, mask=mask)  # noqa: E731
    assert "attention" in kernels(masked, *inputs)
    check(masked, *inputs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("count", [1, 3, 10, 40])
def test_an_attention_layer_copies_no_heads(count, causal):
    layer = nn.AttentionLayer(24, 3, 8, causal=causal)
    layer.eval()
    x = values(2, count, 24)
    check(layer, x)
    if count >= 4:
        names = kernels(layer, x)
        assert "attention" in names
        assert not any("transpose" in name or "matmul" in name for name in names)


def test_probabilities_that_are_returned_stay():
    def both(q, k, v):
        probs = ops.softmax(ops.matmul(q, ops.transpose(k)))
        return ops.matmul(probs, v), probs

    assert "attention" not in kernels(both, *[values(1, 2, 8, 4, seed=i) for i in range(3)])


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
@pytest.mark.parametrize("queries", [4, 77, 4096])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tiles_fit_and_compile_everywhere(target, queries, dtype):
    compiled = resolve(target, 2).to_tvm()
    shape = rule.AttentionShape(1, 2, queries, queries, 32, 32)
    tile = rule.attention_tile(shape, dtype, compiled)
    assert tile.queries % tile.rows == 0 and shape.values % tile.columns == 0
    q, k, v = (te.placeholder((1, 2, queries, 32), dtype, name=name) for name in "qkv")
    parts = [lambda *i, x=x: x[i] for x in (q, k, v)]
    result = rule.attention(shape, tile, dtype, 0.5, *parts, None)
    sch = Schedule(module_of(te.create_prim_func([q, k, v, result])))
    rule.schedule_attention(sch, sch.get_sblock("scores"), compiled, None)
    element = {"float32": "float", "float64": "double"}[dtype]
    assert f"x {element}>" in generated_source(tvm.compile(sch.mod, target=compiled), "ll")
