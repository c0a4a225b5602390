"""Merged kernels of symbolic extents: their phases, workspaces and threads at every size."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from needle_tvm._tvm.names import relax, tirx
from needle_tvm.lower import region
from needle_tvm.tir.extents import substituted
from needle_tvm.tir.functions import nodes_in, prim_funcs
from tests.needle_tvm import symbolic
from tests.needle_tvm.symbolic import Compiled, module_of, normal, variable

op = relax.op
N, M = variable("n"), variable("m")


def shapes(width, count):
    return [(width, width), (width,)] * count


@pytest.mark.parametrize("width", [24, 100, 256])
def test_layers_are_one_kernel_that_is_right_at_every_size(width, tmp_path):
    weights = [normal(*shape, seed=i) / 8 for i, shape in enumerate(shapes(width, 3))]
    module = module_of(symbolic.layers, (N, width), *shapes(width, 3), params=6)
    compiled = Compiled(module, tmp_path)
    assert "region" in symbolic.functions_of(compiled.module)
    for rows in symbolic.SIZES:
        x = expected = normal(rows, width)
        for w, bias in zip(weights[::2], weights[1::2], strict=True):
            expected = np.maximum(expected @ w + bias, 0)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(compiled(x, *weights), expected, rtol=1e-4, atol=1e-5 * scale)


def test_values_of_several_sizes_do_not_overlap_in_the_workspace(tmp_path):
    """Values of n, m and n + m rows live at the same time, whichever of n and m is larger."""

    def function(emit, x, y):
        a, b = (emit(op.nn.softmax(each, 0)) for each in (x, y))
        both = emit(op.concat([a, b]))
        wide = emit(op.nn.softmax(both, 0))
        top = emit(op.max(wide, 0, keepdims=True))
        sums = [emit(op.sum(each, 0, keepdims=True)) for each in (a, b, both)]
        for each in sums:
            top = emit(op.add(top, each))
        return emit(op.multiply(emit(op.add(wide, both)), top))

    def softmax(x):
        e = np.exp(x - x.max(0))
        return e / e.sum(0)

    compiled = Compiled(module_of(function, (N, 20), (M, 20)), tmp_path)
    for n, m in ((1, 1), (1, 40), (40, 1), (7, 8), (33, 64), (64, 33)):
        x, y = normal(n, 20), normal(m, 20, seed=1)
        a, b = softmax(x), softmax(y)
        both = np.concatenate([a, b])
        wide = softmax(both)
        top = wide.max(0) + a.sum(0) + b.sum(0) + both.sum(0)
        np.testing.assert_allclose(compiled(x, y), (wide + both) * top, rtol=1e-4)


def test_many_values_that_live_together_do_not_overlap():
    values = [region._Value(i, [N, 16 * (1 + i % 3)], "float32", 0, 200) for i in range(150)]
    offsets, size = region.place_values(values, 4, {N: (1, 64)})
    for n in (1, 5, 64):
        at = {key: int(substituted(each, {N: n})) for key, each in offsets.items()}
        spans = sorted((at[v.key], at[v.key] + n * int(v.shape[1])) for v in values)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        assert spans[-1][1] <= int(substituted(size, {N: n}))


@pytest.mark.parametrize("stage", ["fused", "tuned"])
def test_a_call_allocates_what_its_own_size_needs(stage, tmp_path):
    """Not what the largest size would: no machine has these 500 GB."""
    weights = [normal(*shape, seed=i) / 8 for i, shape in enumerate(shapes(64, 2))]
    bounds = {"least": {"n": 1}, "most": {"n": 2**31 - 1}}
    module = module_of(symbolic.layers, (N, 64), *shapes(64, 2), params=4, **bounds)
    compiled, x = Compiled(module, tmp_path, stage), normal(3, 64)
    a, b, c, d = weights
    expected = np.maximum(np.maximum(x @ a + b, 0) @ c + d, 0)
    np.testing.assert_allclose(compiled(x, *weights), expected, rtol=1e-4, atol=1e-5)


def parallel_loops(module):
    region = prim_funcs(module)["region"]
    return [f for f in nodes_in(region, tirx.For) if f.kind == tirx.ForKind.PARALLEL]


@pytest.mark.parametrize(
    ("width", "most", "parallel", "serial"),
    [(24, 2, False, True), (24, 4096, True, True), (512, 64, True, False)],
)
def test_threads_are_used_from_the_size_at_which_they_pay(width, most, parallel, serial):
    bounds = {"least": {"n": 1}, "most": {"n": most}}
    module = symbolic.lowered(
        module_of(symbolic.layers, (N, width), *shapes(width, 2), params=4, **bounds)
    )
    assert bool(parallel_loops(module)) == parallel
    region = prim_funcs(module)["region"]
    copies = str(region.script()).count('T.sblock("variant')
    assert copies == (2 if parallel and serial else 0)
