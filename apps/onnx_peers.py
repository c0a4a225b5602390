"""Frameworks that run the ONNX file which PyTorch exports of a model, each set up for the lowest
latency in float32, as its users would.

Each function is a factory of needle_tvm.process.timing; `onnx` is the file, `inputs` the saved
inputs in the graph's order.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from needle_tvm.process.timing import Calls, load_arrays


def onnxruntime(onnx: str, inputs: str, threads: int) -> Calls:
    """ONNX Runtime with all its graph optimisations; inputs and outputs are bound once, so that a
    call neither copies nor allocates."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = ort.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for spec, array in zip(session.get_inputs(), load_arrays(inputs), strict=True):
        binding.bind_ortvalue_input(spec.name, ort.OrtValue.ortvalue_from_numpy(array))
    results = []
    for spec in session.get_outputs():
        results.append(ort.OrtValue.ortvalue_from_shape_and_type(spec.shape, np.float32))
        binding.bind_ortvalue_output(spec.name, results[-1])

    def call() -> None:
        session.run_with_iobinding(binding)

    return call, lambda: [result.numpy() for result in results]


def openvino(onnx: str, inputs: str, threads: int) -> Calls:
    """OpenVINO for latency; without the precision hint it would compute in bfloat16 if it can."""
    import openvino as ov

    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }
    compiled = ov.Core().compile_model(onnx, "CPU", settings)
    request = compiled.create_infer_request()
    # Memory is shared, not copied: both must live as long as the request.
    shared = [(array, ov.Tensor(array, shared_memory=True)) for array in load_arrays(inputs)]
    for index, (_, tensor) in enumerate(shared):
        request.set_input_tensor(index, tensor)

    def call(kept: Any = shared) -> None:
        request.infer(share_outputs=True)

    def outputs() -> list[np.ndarray]:
        call()
        return [np.array(request.get_output_tensor(i).data) for i in range(len(compiled.outputs))]

    return call, outputs


def jax(onnx: str, inputs: str, threads: int) -> Calls:
    """jax.jit of the graph with its weights as constants, so that XLA may choose their layout."""
    hold_to(threads)
    import jax as framework

    from apps.onnx_jax import Graph

    graph = Graph(onnx)
    arrays = [framework.device_put(array) for array in load_arrays(inputs)]
    run = framework.jit(graph)

    def call() -> Any:
        return framework.block_until_ready(run(*arrays))

    return call, lambda: [np.asarray(array) for array in call()]


def tinygrad(onnx: str, inputs: str, threads: int) -> Calls:
    """tinygrad's ONNX front end under TinyJit; the peer's environment sets BEAM (kernel search)."""
    hold_to(threads)
    from tinygrad import Tensor, TinyJit
    from tinygrad.nn.onnx import OnnxRunner

    runner = OnnxRunner(onnx)
    tensors = {
        name: Tensor(array).realize()
        for name, array in zip(runner.graph_inputs, load_arrays(inputs), strict=True)
    }

    @TinyJit
    def run(**given: Any) -> list[Any]:
        return [tensor.contiguous().realize() for tensor in runner(given).values()]

    def call() -> Any:
        found = run(**tensors)
        for tensor in found:
            tensor.uop.buffer.ensure_allocated()
        _synchronize()
        return found

    def _synchronize() -> None:
        from tinygrad import Device

        Device[Device.DEFAULT].synchronize()

    return call, lambda: [tensor.numpy() for tensor in call()]


def hold_to(threads: int) -> None:
    """Restrict this process to `threads` processors, for libraries that start a thread on each and
    have no other setting."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:threads])
