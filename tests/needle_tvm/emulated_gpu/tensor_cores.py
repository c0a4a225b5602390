"""Matmuls on tensor cores, with operands of each narrow type, run on the same GPU as checks.py."""

import os
import random

import ml_dtypes
import numpy as np
import pytest

import needle as ndl
import needle_runtime
import needle_tvm
from apps import models
from apps.contestants import build_model
from needle.trace import trace
from needle_runtime.artifact import Artifact
from needle_runtime.artifact.manifest import write_manifest
from needle_runtime.artifact.tolerance import relative_tolerance
from needle_tvm.check import parity
from needle_tvm.frontend import lowering
from needle_tvm.kernels.dense.gpu import tensor_core as gpu_tensor_core
from needle_tvm.lower import build
from needle_tvm.target.spec import resolve
from tests.needle_tvm.emulated_gpu.products import (
    batched,
    convolution,
    dense,
    drawn,
    heads,
    transposed,
)

DRAWS = int(os.environ.get("NEEDLE_PRODUCTS", "4"))
DTYPES = ("float16", "bfloat16", "tf32")
INSTRUCTIONS = ("tvm_mma_sync", "ptx_legacy.mma")
KINDS = [dense, transposed, batched, heads, convolution]


def rounded(array, dtype):
    """An array's elements, rounded as operands."""
    if dtype != "tf32":
        return array.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).astype(np.float64)
    word = np.ascontiguousarray(array).view(np.uint32)
    word = word + (np.uint32(0xFFF) + (word >> np.uint32(13) & np.uint32(1)))
    return (word & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def program(function, tensors, dtype, folder):
    """A function's program for the GPU in one precision, and its module as text."""
    graph = trace(function, *tensors)
    spec = resolve("cuda")
    target = spec.to_tvm()
    module = lowering.lower(graph, target, "tuned", precision=dtype)
    module = build.schedule(module, target, "tuned")
    folder.mkdir()
    notes = build.write_library(module, target, folder)
    manifest = build.describe(lowering.signature(graph), module, spec, target, notes)
    write_manifest(folder, manifest)
    return needle_runtime.Program(Artifact.open(folder)), module.script()


@pytest.mark.parametrize("seed", range(DRAWS))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_any_tile_computes_the_product(kind, dtype, seed, tmp_path, monkeypatch):
    random_ = random.Random(f"{kind.__name__} {dtype} {seed}")
    function, arrays, tensors = drawn(kind, random_, seed)
    shapes = [array.shape for array in arrays]
    chosen, others = gpu_tensor_core._tile, gpu_tensor_core._others

    def any_tile(*product):  # any that a search may try, and not the one that would be chosen
        return random_.choice(others(*product) or [chosen(*product)])

    monkeypatch.setattr(gpu_tensor_core, "_tile", any_tile)
    ready, text = program(function, tensors, dtype, tmp_path / "program")
    (found,) = ready.run(arrays)
    wide = [rounded(a, dtype) for a in arrays[:2]] + [a.astype(np.float64) for a in arrays[2:]]
    with ndl.no_grad():
        exact = function(*map(ndl.Tensor, wide)).numpy()
    # Exact products of rounded operands, summed in float32: at most 500 terms.
    np.testing.assert_allclose(found, exact, atol=4e-6 * np.abs(exact).max())
    if kind is not convolution:  # some convolutions have few rows
        (*_, rows, terms), (*_, columns) = shapes[0], shapes[1][-1:]
        if kind is transposed:
            rows, terms, columns = terms, rows, shapes[1][0]
        if kind is heads:
            rows *= shapes[0][0]
        taken = rows >= 5 and min(terms, columns) >= 8
        assert any(name in text for name in INSTRUCTIONS) == taken


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_mlp(dtype):
    check("mlp", 8, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(set(models.EVALUATED) - {"mlp"}))
def test_a_model(name, dtype):
    check(name, 2, dtype)


def check(name, batch, dtype):
    """Check that one of the apps' models runs its matmuls on tensor cores, with narrow operands."""
    model, inputs = build_model(models.find(name).factory, batch=batch)
    tensors = [ndl.Tensor(np.asarray(x), requires_grad=False) for x in inputs]
    found = needle_tvm.compile(model.eval(), *tensors, target="cuda", dtype=dtype)
    (rung,) = parity.ladder(model, tensors, {"tuned": found})
    assert rung.ok, rung
    assert any(name in found.script for name in INSTRUCTIONS)
    # Rounding to 11 (8) bits leaves an error, of not more than a few such roundings.
    unit = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    assert relative_tolerance("float32", 1) < rung.max_relative < 8 * unit, rung
