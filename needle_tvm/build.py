"""From a traced graph to the files of an artifact. Imports TVM's compiler."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from needle.graph import positional_names
from needle_tvm import artifact, cublas, host, nvcc, pipeline, trees, versions
from needle_tvm._tvm import (
    IRModule,
    Target,
    build_executable,
    check_well_formed,
    compiled_function,
    cpu_features,
    export_library,
    llvm_version,
    script,
)
from needle_tvm.errors import ArtifactError, ToolchainError, TranslationError
from needle_tvm.faults import blamed_on
from needle_tvm.indices import index_ranges
from needle_tvm.passes import cuda_graph, library_products
from needle_tvm.passes.library_products import Product
from needle_tvm.passes.merge_kernels import BY_KERNEL
from needle_tvm.precision import FLOAT32
from needle_tvm.scratch import scratch_folder
from needle_tvm.target import TargetSpec
from needle_tvm.translate import MAIN, translate

if TYPE_CHECKING:
    from needle.trace import Graph, Leaf

Progress = Callable[[str], None]
TRANSFORM = f"{MAIN}_transform_params"


def lower(
    graph: Graph,
    target: Target,
    stage: str,
    **choices: Any,
) -> IRModule:
    """The module of a stage before its loops are scheduled: what tuning takes its tasks from.

    `choices` are keywords of `lower_module`.
    """
    module = translate(graph, prefer_emit=pipeline.of(target, stage).prefer_emit)
    return lower_module(module, target, stage, **choices)


def lower_module(
    module: IRModule,
    target: Target,
    stage: str,
    *,
    disable: Collection[str] = (),
    precision: str = FLOAT32,
    by_library: Callable[[Product], bool] | None = None,
) -> IRModule:
    """A Relax module, whatever made it, through the stage's passes over the graph.

    Its function `main` takes `num_input` inputs (an attribute) and then the parameters. `disable`
    names what to leave out (`pipeline.without`), `precision` what products' operands are rounded to
    (`needle_tvm.precision`), `by_library` says which products are cuBLAS's.
    """
    check_well_formed(module)
    chosen = pipeline.without(target, stage, disable)
    chosen = pipeline.in_precision(pipeline.by_library(chosen, by_library, precision), precision)
    module = pipeline.run(chosen.graph, module, target)
    with blamed_on("what the passes made"):
        check_well_formed(module)
    return module


def write_library(module: IRModule, target: Target, folder: Path) -> dict[str, Any]:
    """Compile a scheduled module into `folder`: the library and the script it was made from.

    What the manifest is to say of it is returned: `kernels`, of a GPU's code what ptxas says that
    each takes, and `libraries`, what else has to be found where it is loaded.
    """
    (folder / artifact.SCRIPT).write_text(script(module) + "\n")
    kernels: list[nvcc.Resources] = []

    def compile_cuda(source: str) -> bytes:
        code, found = nvcc.compile_cubin(source, str(target.attrs["arch"]))
        kernels.extend(found)
        return code

    with blamed_on("code generation"):
        executable = build_executable(module, target, cuda_graph.add_graph_functions)
    # Linked elsewhere first: a full disk then fails in our own checked copy, not in the linker.
    with scratch_folder("needle-build-") as temporary:
        linked = temporary / artifact.LIBRARY
        objects = []
        if library_products.is_used(module):
            objects.append(temporary / f"{cublas.LIBRARY}.o")
            objects[0].write_bytes(compiled_function(cublas.SOURCE))
        try:
            export_library(executable, linked, compile_cuda, objects)
        except RuntimeError as error:  # TVM's, with a page of the linker's
            reason = str(error).removeprefix("Compilation error:").strip().partition("\n")[0]
            raise ToolchainError(
                f"the C++ compiler does not link code for {target.attrs['mtriple']!s} ({reason})"
            ) from error
        code = linked.read_bytes()
    if not code.startswith(b"\x7fELF"):
        raise ArtifactError(f"{folder}: the linker wrote no shared library")
    (folder / artifact.LIBRARY).write_bytes(code)
    notes: dict[str, list[Any]] = {
        "kernels": [asdict(kernel) for kernel in kernels],
        "libraries": [path.stem for path in objects],
    }
    return {name: value for name, value in notes.items() if value}


def schedule(
    module: IRModule, target: Target, stage: str, disable: Collection[str] = ()
) -> IRModule:
    """The module with its loops scheduled as the stage says, but for what `disable` names."""
    return pipeline.run(pipeline.without(target, stage, disable).schedule, module, target)


def signature(graph: Graph) -> dict[str, Any]:
    """What `main` of a graph takes and gives, as a manifest holds it.

    Raises TranslationError for an argument that cannot be kept in one.
    """
    ranges = index_ranges(graph)
    return {
        "inputs": [_input(leaf, ranges.get(leaf.node)) for leaf in graph.inputs],
        "params": [_leaf(leaf) for leaf in graph.params],
        "ties": [[leaf.name, *leaf.others] for leaf in graph.params if leaf.others],
        "outputs": [
            {"shape": list(spec.shape), "dtype": str(spec.dtype)}
            for node in graph.outputs
            for spec in node.specs
        ],
        "bare_output": len(graph.outputs) == 1,
        "arguments": _arguments(graph),
        "output_tree": graph.output_tree,
    }


def describe(
    signature: dict[str, Any],
    module: IRModule,
    spec: TargetSpec,
    target: Target,
    notes: dict[str, Any],
) -> dict[str, Any]:
    """The manifest of a compiled module, but for what is known only once the files are written."""
    names = {variable.name_hint for variable in module.get_global_vars()}
    transform = TRANSFORM if TRANSFORM in names else None
    by_kernel = BY_KERNEL if BY_KERNEL in names else None
    graph = None
    if cuda_graph.is_marked(module):
        graph = {"function": cuda_graph.FOR_GRAPH, "results": cuda_graph.RESULTS}
    main = {**signature, "transform": transform, "by_kernel": by_kernel, "graph": graph}
    return {
        "functions": {MAIN: main},
        "target": _target(spec, target),
        "versions": {**versions.provenance(), "llvm": llvm_version()},
        **notes,
    }


def _target(spec: TargetSpec, target: Target) -> dict[str, Any]:
    if spec.device == "cuda":
        return {**spec.fields, "nvcc": nvcc.version()}
    features = host.checkable(cpu_features(target))
    return {**spec.fields, "mcpu": str(target.attrs["mcpu"]), "features": features}


def _input(leaf: Leaf, valid: tuple[int, int] | None) -> dict[str, Any]:
    return _leaf(leaf) if valid is None else {**_leaf(leaf), "range": list(valid)}


def _leaf(leaf: Leaf) -> dict[str, Any]:
    (spec,) = leaf.node.specs
    return {"name": leaf.name, "shape": list(spec.shape), "dtype": str(spec.dtype)}


def _arguments(graph: Graph) -> list[dict[str, Any]]:
    """The traced call's arguments as `trees.flatten_arguments` reads them."""
    args, kwargs = graph.input_tree["args"], graph.input_tree["kwargs"]
    names = positional_names(graph.signature, len(args))
    named = [*zip(names, args, strict=True), *kwargs.items()]
    for name, tree in named:
        _check_static(name, tree)
    return [{"name": name, "tree": tree} for name, tree in named]


def _check_static(name: str, tree: Any) -> None:
    """Raise TranslationError unless every value in the tree that is no array fits into JSON."""
    if tree == trees.LEAF:
        return
    ((kind, parts),) = tree.items()
    if kind == "static":
        if parts is not None and not isinstance(parts, (bool, int, float, str)):
            raise TranslationError(
                f"argument {name!r}: a {type(parts).__name__} cannot be kept in an artifact; "
                "tensors, numbers, strings, None and lists, tuples and dicts of them can"
            )
        return
    for part in parts.values() if kind == "dict" else parts:
        _check_static(name, part)
