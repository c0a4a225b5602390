"""Choose needle's own kernels or cuBLAS for a GPU's matmuls, as asked or by measurement.

    needle_tvm.compile(model, x, target="cuda", products="measured")

An artifact that calls cuBLAS says so in its manifest, and runs only where cuBLAS is installed.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import needle_runtime
from needle_runtime import cuda_driver, memory
from needle_runtime.artifact import Artifact, trees
from needle_runtime.artifact.manifest import write_manifest
from needle_runtime.errors import TargetError
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.random_inputs import random_inputs
from needle_runtime.target import cublas, gpu
from needle_runtime.target.precision import FLOAT32
from needle_tvm.errors import StageError
from needle_tvm.lower.variant import Choice, Measure, Variant
from needle_tvm.stages import CUBLAS, MEASURED, OWN, PRODUCTS
from needle_tvm.tune.options import Options

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule
    from needle_tvm.kernels.dense.gpu.library_products import Product
    from needle_tvm.target.spec import TargetSpec

_STAGE = "tuned"
_CALLS = 8  # calls in one launch, each with memory of its own
_ROUNDS = 15
_STREAM = 0  # the default stream


def check(products: str, spec: TargetSpec, stage: str, options: Options) -> None:
    """Raise StageError or TargetError unless the target and the stage allow this choice."""
    if products not in PRODUCTS:
        raise StageError(f"products={products!r}: must be one of {', '.join(PRODUCTS)}")
    if products == OWN:
        return
    if not spec.is_gpu:
        raise TargetError(f"products={products!r}: cuBLAS is for targets of kind cuda")
    if stage != _STAGE:
        raise StageError(f"products={products!r} needs stage={_STAGE!r}, not stage={stage!r}")
    if options.searches:
        raise StageError(f"products={products!r}: a search tunes needle's own kernels only")
    if products == CUBLAS:
        return
    arch, here = spec.fields["arch"], [each for each in gpu.gpus() if each.index == spec.index]
    if not any(each.arch == arch for each in here):
        why = f"this one is {here[0].arch}" if here else gpu.why_none()
        raise TargetError(f"products={products!r}: measuring needs a GPU of {arch}; {why}")
    if cublas.find() is None:
        raise TargetError(f"products={products!r}: measuring {cublas.MISSING}")


def choice(products: str, spec: TargetSpec) -> Choice | None:
    """Return the Choice for `products`, which `check` has accepted; None if all kernels are
    needle's."""
    if products == OWN:
        return None
    if products == CUBLAS:
        return Choice(key={"products": CUBLAS})
    name = next(each.name for each in gpu.gpus() if each.index == spec.index)
    key = {"products": MEASURED, "gpu": name, "cublas": cublas.find()}
    return Choice(measure_on(spec), key)


def measure_on(spec: TargetSpec) -> Measure:
    """Return a function that times matmuls on the target's GPU, each compiled with its epilogue."""

    def seconds(product: Product, by_library: bool) -> float:
        from needle_tvm.lower import build, cuda_graph

        target = spec.to_tvm()
        module, signature = example(product)
        chosen = Choice() if by_library else None
        precision = product.dtype if product.dtype == "tf32" else FLOAT32
        variant = Variant(_STAGE, precision, by_library=chosen)
        module = build.lower_module(module, target, variant)
        module = cuda_graph.mark(build.schedule(module, target, _STAGE))
        with scratch_folder("needle-products-") as folder:
            notes = build.write_library(module, target, folder)
            manifest = build.describe(signature, module, spec, target, notes)
            write_manifest(folder, manifest)
            program = needle_runtime.Program(Artifact.open(folder), spec.index)
        return _seconds_of(program)

    return seconds


def example(product: Product) -> tuple[IRModule, dict[str, Any]]:
    """Return a model of one matmul like `product` (with a bias if an operator follows the product)
    and the model's signature."""
    from needle_tvm._tvm.names import TensorType, relax

    leading = (product.count,) if product.count > 1 else ()
    shapes = [(product.rows, product.terms), (product.terms, product.columns)]
    dtype = product.dtype if product.dtype in ("float16", "bfloat16", "float64") else "float32"
    result = "float32" if dtype in ("float16", "bfloat16") else dtype
    leaves = [
        {"name": name, "shape": [*leading, *(shape[::-1] if turned else shape)], "dtype": dtype}
        for name, shape, turned in zip("xw", shapes, product.transposed, strict=True)
    ]
    if product.followed:
        leaves.append({"name": "bias", "shape": [product.columns], "dtype": result})
    inputs = 1 if product.stored else 2
    variables = [relax.Var(str(e["name"]), TensorType(e["shape"], e["dtype"])) for e in leaves]
    builder = relax.BlockBuilder()
    with builder.function("main", variables, attrs={"num_input": inputs}):
        with builder.dataflow():
            operands = []
            for operand, turned in zip(variables[:2], product.transposed, strict=True):
                axes = [*range(len(leading)), len(leading) + 1, len(leading)]
                oriented = builder.emit(relax.op.permute_dims(operand, axes)) if turned else operand
                wide = dtype == result
                operands.append(
                    oriented if wide else builder.emit(relax.op.astype(oriented, result))
                )
            y = builder.emit(relax.op.matmul(*operands))
            for bias in variables[2:]:
                y = builder.emit(relax.op.add(y, bias))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    output = {"shape": [*leading, product.rows, product.columns], "dtype": result}
    return builder.get(), {
        "inputs": leaves[:inputs],
        "params": leaves[inputs:],
        "outputs": [output],
        "bare_output": True,
        "arguments": [{"name": e["name"], "tree": trees.LEAF} for e in leaves[:inputs]],
        "output_tree": trees.LEAF,
    }


def _seconds_of(program: needle_runtime.Program) -> float:
    """Return the seconds of one call, measured with a CUDA graph of several calls. The graph leaves
    out the host's work between kernels.

    Operands stay where the last call left them, in the GPU's cache if they fit.
    """
    rng = np.random.default_rng(0)
    program.set_params(
        {
            spec["name"]: rng.standard_normal(spec["shape"]).astype(np.dtype(spec["dtype"]))
            for spec in program.params
        }
    )
    executor = program.executor
    here, driver = executor.memory, cuda_driver.of(executor.device)
    assert isinstance(here, memory.CudaMemory)
    assert executor.main.graph is not None  # a graph writes only to memory that it returns
    function = executor.new_machine()[executor.main.graph.function]
    arguments = [*executor.convert(random_inputs(program.artifact)), *executor.weights]
    function(*arguments)  # loads modules, which is not possible inside a capture
    held: list[Any] = []

    def submit(stream: int) -> None:
        with here.on_stream(stream):
            held.extend(function(*arguments) for _ in range(_CALLS))

    graph = driver.capture(submit)
    try:
        return statistics.median(_timed(graph, driver) for _ in range(_ROUNDS)) / _CALLS
    finally:
        graph.close()


def _timed(graph: cuda_driver.Graph, driver: cuda_driver.Driver) -> float:
    driver.synchronize(_STREAM)
    start = time.perf_counter()
    graph.launch(_STREAM)
    driver.synchronize(_STREAM)
    return time.perf_counter() - start
