"""Frameworks that run a model's ONNX file, written by PyTorch. Each is set up for the lowest
latency in float32 and called as its users call it, or with inputs and outputs `bound`.

Each function is a factory for needle_runtime.process.timing; `onnx` is the file, `inputs` the saved
inputs in the graph's order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apps.contestants import calls, fresh
from needle_runtime.process.timing import Calls, load_arrays


def onnxruntime(onnx: str, inputs: str, threads: int, bound: bool = False) -> Calls:
    """Return a contestant: ONNX Runtime with all its graph optimisations, called by `run`. With
    `bound`, inputs and outputs are bound beforehand, so that a call neither copies nor allocates.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = ort.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
    names = [spec.name for spec in session.get_inputs()]
    feeds = [dict(zip(names, arrays, strict=True)) for arrays in fresh(load_arrays(inputs))]
    if not bound:
        return calls(lambda feed: session.run(None, feed), feeds)
    results = {
        spec.name: ort.OrtValue.ortvalue_from_shape_and_type(spec.shape, np.float32)
        for spec in session.get_outputs()
    }

    def bind(feed: Mapping[str, np.ndarray]) -> Any:
        binding = session.io_binding()
        for name, array in feed.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name, result in results.items():
            binding.bind_ortvalue_output(name, result)
        return binding

    def read(_: None) -> list[np.ndarray]:
        return [np.array(result.numpy()) for result in results.values()]

    return calls(session.run_with_iobinding, [bind(feed) for feed in feeds], read)


def openvino(onnx: str, inputs: str, threads: int, bound: bool = False) -> Calls:
    """Return a contestant: OpenVINO's compiled model, set up for latency. Without the precision
    hint it would compute in bfloat16 where possible. With `bound`, the first set of inputs is bound
    beforehand, and results are not copied."""
    import openvino as ov

    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }
    compiled = ov.Core().compile_model(onnx, "CPU", settings)
    sets = fresh(load_arrays(inputs))

    def read(found: Mapping[Any, np.ndarray]) -> list[np.ndarray]:
        return [np.array(array) for array in found.values()]

    if not bound:
        return calls(compiled, sets, read)
    request = compiled.create_infer_request()

    def bind(arrays: Sequence[np.ndarray]) -> None:
        for index, array in enumerate(arrays):
            request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))

    def call(kept: Any = sets) -> Any:  # the request does not keep the arrays it reads
        return request.infer(share_outputs=True)

    def outputs() -> list[np.ndarray]:
        found: list[np.ndarray] = []
        for arrays in reversed(sets):  # so that the first set stays bound
            bind(arrays)
            found = [*read(call()), *found]
        return found

    bind(sets[0])
    return call, outputs


def jax(onnx: str, inputs: str, threads: int) -> Calls:
    """Return a contestant: jax.jit of the graph, called with JAX's own arrays. Its weights are
    constants, so that XLA may choose their layout."""
    hold_to(threads)
    import jax as framework

    from apps.onnx_jax import Graph

    graph = Graph(onnx)
    sets = [[framework.device_put(x) for x in arrays] for arrays in fresh(load_arrays(inputs))]
    run = framework.jit(graph)

    def call(arrays: Sequence[Any]) -> Any:
        return framework.block_until_ready(run(*arrays))

    return calls(call, sets, lambda found: [np.asarray(array) for array in found])


def tinygrad(onnx: str, inputs: str, threads: int) -> Calls:
    """Return a contestant: tinygrad's ONNX front end under TinyJit. The environment variable BEAM
    sets its kernel search."""
    hold_to(threads)
    from tinygrad import Tensor, TinyJit
    from tinygrad.nn.onnx import OnnxRunner

    runner = OnnxRunner(onnx)
    names = list(runner.graph_inputs)
    sets = [
        {name: Tensor(x).realize() for name, x in zip(names, arrays, strict=True)}
        for arrays in fresh(load_arrays(inputs))
    ]

    @TinyJit
    def run(**given: Any) -> list[Any]:
        return [tensor.contiguous().realize() for tensor in runner(given).values()]

    def call(tensors: Mapping[str, Any]) -> Any:
        found = run(**tensors)
        for tensor in found:
            tensor.uop.buffer.ensure_allocated()
        _synchronize()
        return found

    def _synchronize() -> None:
        from tinygrad import Device

        Device[Device.DEFAULT].synchronize()

    return calls(call, sets)


def hold_to(threads: int) -> None:
    """Restrict this process to `threads` processors, for a library that starts a thread on each
    processor and has no other setting."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:threads])
