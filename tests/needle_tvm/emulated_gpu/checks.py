"""Models and ops compiled for a GPU, and run on it.

test_emulated_gpu.py runs these in a separate process, which gets an emulated GPU by importing this
file; `make gpu-test`, with NEEDLE_CHECKS_ON=gpu, runs them on the machine's GPU.
"""

import functools
import os
from functools import partial

import numpy as np
import pytest

import needle as ndl
import needle_runtime
import needle_tvm
from apps import ladder, models
from apps.contestants import build_model
from needle.ops import REGISTRY
from needle.recurrence import layers as recurrent
from needle.testing import check_op
from needle.trace import trace
from needle_runtime import memory
from needle_runtime.artifact import Artifact
from needle_runtime.artifact.manifest import write_manifest
from needle_tvm.check import parity
from needle_tvm.frontend import lowering
from needle_tvm.lower import build
from needle_tvm.target.spec import resolve
from tests.needle_tvm.emulated_gpu import install, load

EMULATED = os.environ.get("NEEDLE_CHECKS_ON") != "gpu"
if EMULATED:
    install()
    load()

OWN = sorted(name for name, op in REGISTRY.items() if op.__module__.startswith("needle."))
DTYPES = tuple(os.environ.get("NEEDLE_EMULATED_DTYPES", "float32").split(","))


def program(function, inputs, stage, folder):
    """A function compiled for the GPU, and its graph."""
    graph = trace(function, *inputs)
    spec = resolve("cuda")
    target = spec.to_tvm()
    module = build.schedule(lowering.lower(graph, target, stage), target, stage)
    folder.mkdir()
    notes = build.write_library(module, target, folder)
    write_manifest(folder, build.describe(lowering.signature(graph), module, spec, target, notes))
    return graph, needle_runtime.Program(Artifact.open(folder))


@pytest.mark.parametrize("name", sorted(models.EVALUATED))
def test_every_stage_of_a_model_computes_what_the_model_does(name):
    model, inputs = build_model(models.find(name).factory, batch=2)
    tensors = [ndl.Tensor(np.asarray(x), requires_grad=False) for x in inputs]
    stages = {
        rung.name: needle_tvm.compile(
            model.eval(), *tensors, target="cuda", stage=rung.stage, disable=rung.disable
        )
        for rung in ladder.rungs("cuda", searches=False)
    }
    for rung in parity.ladder(model, tensors, stages):
        assert rung.ok and rung.max_relative < 1e-5, rung
    script = stages["scheduled"].script
    kernels = script[script.index("def main(") :].count("R.call_tir(")
    # Run again, with memory that is reused and what a CUDA graph keeps.
    expected = [t.numpy() for t in trace(model, *tensors).flatten_outputs(model(*tensors))]
    for stage, executable in stages.items():
        for _ in range(3):
            found = executable.program.run([t.numpy() for t in tensors])
            for want, have in zip(expected, found, strict=True):
                scale = np.abs(want).max()
                np.testing.assert_allclose(have, want, atol=1e-5 * scale, err_msg=stage)
    replay = stages["scheduled"].program.executor._local.replay
    assert replay.nodes == kernels  # none is left outside


def test_an_exported_model_is_loaded_and_tested_by_its_example(tmp_path):
    layers = ndl.nn.Sequential(ndl.nn.Linear(20, 30), ndl.nn.ReLU(), ndl.nn.Linear(30, 5)).eval()
    x = np.random.default_rng(0).standard_normal((3, 20), dtype=np.float32)
    folder = needle_tvm.compile(layers, x, target="cuda").export(tmp_path / "model")
    loaded = needle_runtime.load(folder)
    assert isinstance(loaded.executor.memory, memory.CudaMemory)
    assert needle_runtime.self_test(loaded).passed
    other = {name: value.numpy() * 2 for name, value in layers.state_dict().items()}
    loaded.set_params(other)
    layers.load_state_dict(other)
    np.testing.assert_allclose(loaded(x), layers(ndl.Tensor(x)).numpy(), rtol=1e-5, atol=1e-5)


# Rows, terms, columns: whole tiles; one row; tails of terms and columns; the most rows allowed.
@pytest.mark.parametrize(
    ("rows", "terms", "columns"),
    [(8, 512, 64), (1, 128, 8), (16, 130, 9), (3, 1000, 77), (13, 200, 4100)],
)
def test_products_of_few_rows(rows, terms, columns):
    rng = np.random.default_rng(0)
    layer = ndl.nn.Sequential(ndl.nn.Linear(terms, columns), ndl.nn.ReLU()).eval()
    x = rng.standard_normal((rows, terms), dtype=np.float32)
    executable = needle_tvm.compile(layer, x, target="cuda")
    assert "threadIdx.y" in executable.script and 'scope="shared"' in executable.script
    weight, bias = (p.numpy().astype(np.float64) for p in layer.parameters())
    expected = np.maximum(x.astype(np.float64) @ weight + bias, 0)
    found = executable.program.run([x])[0]
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())


# Shape and axis: one warp per row and several rows per block; several warps per row, with tails;
# few rows; neighbouring rows for neighbouring threads; a single row.
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((1030, 40), 1), ((6, 1000), 1), ((2, 3, 5000), 2), ((300, 64), 0), ((37, 60), (0, 1))],
)
@pytest.mark.parametrize("name", ["max", "min", "mean", "softmax", "logsumexp"])
def test_reductions_that_threads_share(name, shape, axis, tmp_path):
    if name == "softmax" and isinstance(axis, tuple):
        pytest.skip("along one axis only")
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    if not isinstance(axis, tuple):  # NaN in the first row and the last, where it is beside -inf
        x[(0,) * x.ndim] = x[(-1,) * x.ndim] = np.nan
        np.moveaxis(x, axis, -1)[(-1,) * (x.ndim - 1) + (1,)] = -np.inf

    def function(v):
        return getattr(ndl.ops, name)(v, axis)

    _, ready = program(function, (ndl.Tensor(x),), "tuned", tmp_path / "program")
    expected = _reference(name, x.astype(np.float64), axis)
    (found,) = ready.run([x])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def _reference(name, x, axis):
    if name == "softmax":
        powers = np.exp(x - x.max(axis, keepdims=True))
        return powers / powers.sum(axis, keepdims=True)
    if name == "logsumexp":
        return np.log(np.exp(x).sum(axis))
    return getattr(np, name)(x, axis=axis)


# Steps, rows, units: whole panels; one of each; tails of panels, slices and rows; blocks of rows.
@pytest.mark.parametrize(
    ("steps", "batch", "hidden"), [(3, 2, 64), (1, 1, 1), (2, 3, 13), (4, 5, 36), (2, 33, 10)]
)
@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh", "relu"])
@pytest.mark.parametrize("reverse", [False, True])
def test_steps_of_a_layer(steps, batch, hidden, kind, reverse, tmp_path):
    rng = np.random.default_rng(0)
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    state, width = (batch, hidden), gates * hidden
    shapes = [(steps, batch, width), *[state] * (1 + (kind == "lstm")), (hidden, width)]
    given = [
        rng.standard_normal(s, dtype=np.float32)
        for s in (*shapes, (width,))[: len(shapes) + (kind == "gru")]
    ]
    given[len(shapes) - 1] /= np.float32(np.sqrt(hidden))
    rule = getattr(recurrent, kind) if gates > 1 else partial(recurrent.rnn, nonlinearity=kind)

    def layer(*inputs):
        return rule(*inputs, reverse=reverse)

    _, ready = program(layer, [ndl.Tensor(x) for x in given], "tuned", tmp_path / "program")
    kernels = [each["kernel"] for each in ready.artifact.manifest["kernels"]]
    assert len([name for name in kernels if "_steps" in name]) == min(steps, 2)
    expected = layer(*[ndl.Tensor(x.astype(np.float64)) for x in given])
    for found, want in zip(ready.run(given), expected, strict=True):
        # Sums of about `hidden` float32 terms; each step's error passes into the next.
        np.testing.assert_allclose(found, want.numpy(), atol=steps * (hidden + 8) * 2.0**-22)


@functools.cache
def kept():
    return {}


def compiler(stage, folder):
    """A `check_op` hook that compiles each op for the GPU and runs it there."""

    def compiled(op, inputs):
        key = repr(op), stage, str([_spec(value) for value in inputs])
        if key not in kept():

            def apply(*values):
                return op(*[ndl.ops.make_tuple(*v) if isinstance(v, tuple) else v for v in values])

            kept()[key] = program(apply, inputs, stage, folder / str(len(kept())))
        graph, ready = kept()[key]
        arrays = [np.asarray(leaf) for leaf in graph.flatten_inputs(tuple(inputs), {})]
        return graph.unflatten_outputs(ready.run(arrays))

    return compiled


def _spec(value):
    if isinstance(value, tuple):
        return tuple(_spec(part) for part in value)
    return (value.shape, str(value.dtype))


@pytest.mark.parametrize("name", OWN)
def test_op(name, tmp_path):
    stages = ("noopt", "tuned")
    hooks = {stage: compiler(stage, tmp_path) for stage in stages}
    check_op(REGISTRY[name], devices=[], dtypes=DTYPES, compiled=hooks)
