"""Every op of the registry, compiled: at each stage the result is the NumPy twin's. Names no op."""

import functools

import numpy as np
import pytest

import needle as ndl
from needle.op import Op, register
from needle.ops import REGISTRY
from needle.samples import error, sample
from needle.testing import OpCheckError, check_op
from needle.trace import trace
from needle_tvm import bfloat16, build
from needle_tvm._tvm import relax, tvm
from needle_tvm.memory import aligned_copy
from needle_tvm.stages import STAGES
from needle_tvm.target import resolve

OWN = sorted(name for name, op in REGISTRY.items() if op.__module__.startswith("needle."))


@functools.cache
def _target():
    return resolve("cpu").to_tvm()


def compiler(stage):
    """A `check_op` hook that compiles in memory: nothing is linked, cached or exported."""
    kept = {}

    def compiled(op, inputs):
        key = repr(op), str([_spec(value) for value in inputs])
        if key not in kept:
            kept[key] = _compile(op, inputs, stage)
        graph, params, run = kept[key]
        leaves = graph.flatten_inputs(tuple(inputs), {})
        copies = [aligned_copy(np.asarray(leaf)) for leaf in leaves]
        arrays = [bfloat16.to_tensor(tvm.runtime, array) for array in copies]
        result = run(*arrays, *params)
        parts = [result] if hasattr(result, "numpy") else list(result)
        return graph.unflatten_outputs([bfloat16.to_array(part) for part in parts])

    return compiled


def _compile(op, inputs, stage):
    def apply(*values):
        return op(*[ndl.ops.make_tuple(*v) if isinstance(v, tuple) else v for v in values])

    graph = trace(apply, *inputs)
    module = build.schedule(build.lower(graph, _target(), stage), _target(), stage)
    machine = relax.VirtualMachine(relax.build(module, target=_target()), tvm.cpu())
    return graph, [], machine["main"]


def _spec(value):
    if isinstance(value, tuple):
        return tuple(_spec(part) for part in value)
    return (value.shape, str(value.dtype))


@pytest.mark.parametrize("name", OWN)
def test_unscheduled(name):
    hooks = {"noopt": compiler("noopt")}
    check_op(REGISTRY[name], devices=[], dtypes=("float32", "int32", "bool"), compiled=hooks)


@pytest.mark.parametrize("name", OWN)
def test_scheduled(name):
    hooks = {stage: compiler(stage) for stage in ("fused", "tuned")}
    dtypes = ("float32", "bool", "bfloat16")
    check_op(REGISTRY[name], devices=[], dtypes=dtypes, compiled=hooks)


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_every_stage_in_every_dtype(name):
    hooks = {stage: compiler(stage) for stage in STAGES}
    check_op(REGISTRY[name], devices=[], compiled=hooks)


@pytest.mark.parametrize("stage", STAGES)
def test_a_planted_wrong_rule_is_caught(stage):
    @register
    class PlantedTwice(Op):
        """y = 2 x, but compiled to 2 x + 1e-3."""

        samples = (sample((3, 4)),)
        error_samples = (error(TypeError, "not a Tensor", "text"),)

        def infer(self, x):
            return x

        def reference(self, x):
            return x + x

        def compute(self, x):
            return x + x

        def gradient(self, out_grad, node):
            return out_grad + out_grad

        def emit_te(self, k, x):
            return k.te.compute(x.shape, lambda *i: x[i] + x[i] + k.tirx.const(1e-3, x.dtype))

    try:
        with pytest.raises(OpCheckError, match=stage):
            check_op(
                PlantedTwice, devices=[], dtypes=("float32",), compiled={stage: compiler(stage)}
            )
    finally:
        del REGISTRY["planted_twice"]
