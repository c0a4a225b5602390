"""Vectors that would reach past the end of an axis end with it, and stay vectors."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import needle_tvm
from needle import nn, ops
from needle.autograd.dispatch import apply
from needle.autograd.shapes import Spec
from needle.backend_ndarray import NDArray
from needle.op import Op
from needle.trace import trace
from needle_tvm._tvm.names import te, tirx, topi, tvm
from needle_tvm.frontend import lowering
from needle_tvm.kernels import cpu
from needle_tvm.lower.libraries import generated_source
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import NODES, nodes_in, prim_funcs, variables_of
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.together import check_together

TARGET = resolve({"kind": "llvm", "mcpu": "skylake-avx512"}, 2).to_tvm()


def lanes_with_a_condition(function):
    """Vectorised loops around a block whose condition differs between lanes: TVM runs these lane by
    lane."""
    return [
        loop
        for loop in nodes_in(function.body, NODES.loop)
        if loop.kind == tirx.ForKind.VECTORIZED
        for realize in nodes_in(loop.body, NODES.realize)
        if loop.loop_var in variables_of(realize.predicate)
    ]


def scheduled(model, *inputs):
    module = lowering.lower(trace(model, *inputs), TARGET, "tuned")
    return prim_funcs(cpu.schedule(module, TARGET)).values()


def projected(columns, activation):
    return nn.Sequential(nn.Linear(24, columns), activation).eval()


@pytest.mark.parametrize("columns", [1, 15, 33, 51, 132])
def test_what_follows_a_product_stays_in_vectors(columns):
    for function in scheduled(projected(columns, nn.GELU()), tensor(np.ones((19, 24), "float32"))):
        assert not lanes_with_a_condition(function)


def test_no_lane_of_a_product_is_lost_or_wrong(rng):
    """A tile's last columns are read where the tile holds them, beside rows that end with it."""
    cases = []
    for rows, columns in ((1, 17), (5, 33), (19, 51), (23, 132), (40, 7), (33, 79)):
        for activation in (nn.GELU(), nn.ReLU()):
            x = tensor(rng.standard_normal((rows, 24)).astype("float32"))
            cases.append((projected(columns, activation), [x]))
    check_together(cases)


@pytest.mark.parametrize("features", [3, 13, 19, 33, 51, 70])
def test_the_last_tile_of_heads_ends_with_them(rng, features):
    torch = pytest.importorskip("torch")
    arrays = [rng.standard_normal((2, 3, n, features)).astype("float32") for n in (21, 37, 37)]

    def attend(q, k, v):
        return ops.softmax(q @ ops.permute(k, (0, 1, 3, 2)) * 0.25) @ v

    inputs = [tensor(array) for array in arrays]
    found = needle_tvm.compile(attend, *inputs)(*inputs).numpy()
    wide = [torch.tensor(array, dtype=torch.float64) for array in arrays]
    expected = torch.nn.functional.scaled_dot_product_attention(*wide, scale=0.25).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)  # 70 + 37 float32 terms
    for function in scheduled(attend, *inputs):
        assert not lanes_with_a_condition(function)


def test_a_buffer_that_tiles_fill_in_turn_is_not_read_before_its_part():
    """Lanes before the tile's own would be those of a tile that is no longer there."""
    x = te.placeholder((19, 51), "float32", "x")
    function = te.create_prim_func([x, topi.exp(x)])
    moved = cpu.schedule_function(function, TARGET)
    assert nodes_in(moved.body, tirx.Min)  # read from a parameter, elements may be computed twice
    for function in scheduled(projected(51, nn.ReLU()), tensor(np.ones((19, 24), "float32"))):
        for loop in nodes_in(function.body, NODES.loop):
            if loop.kind == tirx.ForKind.VECTORIZED and "local" in str(loop):
                positions = nodes_in(loop.body, tirx.Min)
                assert not any(loop.loop_var in variables_of(p) for p in positions)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_erf_of_vectors(rng, dtype):
    """TVM's own erf is one for each lane, and takes its whole loop apart."""
    x = rng.standard_normal(1003).astype(dtype) * 2
    x[:3] = np.nan, np.inf, -np.inf
    found = needle_tvm.compile(ops.erf, tensor(x))(tensor(x)).numpy()
    expected = np.array([math.erf(value) for value in x.astype("float64")])
    # Two units in the last place of a result below 1.
    np.testing.assert_allclose(found, expected, rtol=0, atol=2 * np.finfo(dtype).eps)

    wide = te.placeholder((64,), dtype, "x")
    function = te.create_prim_func([wide, te.compute((64,), lambda i: tirx.erf(wide[i]))])
    module = tvm.IRModule({"main": cpu.schedule_function(function, TARGET)})
    source = generated_source(tvm.compile(module, target=TARGET), "ll")
    stored = {"float32": "<16 x i32>", "float64": "<8 x double>"}[dtype]  # i32: with the sign's bit
    assert f"store {stored}" in source


@dataclass(frozen=True)
class Windows(Op):
    """Adaptive pooling as TVM defines it: sums, or largest elements, of windows of several lengths
    along the last two axes."""

    name: ClassVar[str] = "windows"
    sizes: tuple = (1, 1)
    maximum: bool = False

    def infer(self, x):
        return Spec((*x.shape[:2], *self.sizes), x.dtype, x.device)

    def compute(self, x):
        found = x.numpy()
        for axis, count in enumerate(self.sizes, 2):
            n, reduce = found.shape[axis], np.max if self.maximum else np.mean
            spans = [range(j * n // count, -(-(j + 1) * n // count)) for j in range(count)]
            found = np.stack([reduce(found.take(s, axis), axis) for s in spans], axis)
        return NDArray(found, device=x.device)

    def emit_te(self, k, x):
        kind = "max" if self.maximum else "avg"
        return k.topi.nn.adaptive_pool(x, self.sizes, kind, "NCHW")


@pytest.mark.parametrize("stage", ["fused", "tuned"])
def test_reductions_whose_extent_depends_on_the_place(rng, stage):
    """Alone, and before other operations; counts above and below a vector's."""
    cases = []
    for shape, sizes in (((33, 10), (8, 25)), ((13, 100), (3, 31)), ((13, 13), (5, 8))):
        for maximum in (False, True):
            op = Windows(sizes=sizes, maximum=maximum)
            x = tensor(rng.standard_normal((1, 3, *shape)).astype("float32"))
            cases.append((lambda x, op=op: apply(op, (x,)), [x]))
            cases.append((lambda x, op=op: ops.exp(apply(op, (ops.relu(x),))) + 1, [x]))
    check_together(cases, stage=stage)
