"""Compiles a Relax module into an artifact's files. This module imports TVM's compiler."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from needle_runtime._tvm.versions import NEEDS
from needle_runtime.artifact.layout import LIBRARY, SCRIPT
from needle_runtime.errors import ArtifactError, TargetError
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.turns import compiling, in_turn
from needle_runtime.target import host
from needle_runtime.target.kind import CUBLAS
from needle_tvm._tvm import versions
from needle_tvm._tvm.names import (
    IRModule,
    Target,
    check_well_formed,
    llvm_version,
    script,
    target_fields,
    tvm,
)
from needle_tvm.errors import ToolchainError
from needle_tvm.faults import blamed_on
from needle_tvm.kernels.dense.gpu import library_products
from needle_tvm.lower import cuda_graph, pipeline
from needle_tvm.lower.any_address import any_address
from needle_tvm.lower.caller_memory import add_into
from needle_tvm.lower.gpu_code import export_library
from needle_tvm.lower.in_place import add_in_place
from needle_tvm.lower.libraries import build_executable, build_objects, compiled_function
from needle_tvm.lower.linking import object_code
from needle_tvm.lower.merge_kernels import BY_KERNEL
from needle_tvm.lower.variant import Variant
from needle_tvm.target import nvcc
from needle_tvm.target.info import target_info
from needle_tvm.target.spec import TargetSpec
from needle_tvm.tir.extents import bounds_of

Progress = Callable[[str], None]
MAIN = "main"  # the function that computes the model
TRANSFORM = f"{MAIN}_transform_params"  # the function that prepares the parameters once, at load


@in_turn
def lower_module(module: IRModule, target: Target, variant: Variant) -> IRModule:
    """Run the variant's graph passes on a Relax module from any frontend.

    The function `main` of `module` takes its inputs and then the parameters; its attribute
    `num_input` is the number of inputs. For a CPU, the extents of both may be symbolic. Raises
    TargetError for symbolic extents if `target` is a GPU.
    """
    check_well_formed(module)
    symbols = list(bounds_of(module[MAIN]))
    if symbols and target_info(target).is_gpu:
        names = ", ".join(str(symbol.name) for symbol in symbols)
        raise TargetError(
            f"sizes {names}: code for a GPU needs fixed sizes; compile the model for each size"
        )
    chosen = pipeline.without(target, variant.stage, variant.disable)
    chosen = pipeline.by_library(chosen, variant.by_library, variant.precision)
    chosen = pipeline.in_precision(chosen, variant.precision)
    module = pipeline.run(chosen.graph, module, target)
    with blamed_on("the check of the module after the passes"):
        check_well_formed(module)
    return module


def digest(module: IRModule, signature: dict[str, Any]) -> str | None:
    """Return the SHA-256 of a module with its constants and of its signature; None if they contain
    an object that cannot be serialised, such as a function."""
    try:
        text = f"{tvm.ir.save_json(module)}\n{json.dumps(signature, sort_keys=True)}"
    except TypeError:
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def write_library(module: IRModule, target: Target, folder: Path) -> dict[str, Any]:
    """Compile a scheduled module to a library; write the library and the module's script to
    `folder`.

    Returns the manifest's entries about the library: `kernels` lists the resources of each GPU
    kernel as ptxas reports them, `libraries` names the libraries that the loading machine needs,
    and `in_place` holds the pairs (result, input) for which `main_in_place` writes the result over
    the input.
    """
    with compiling:
        if target_info(target).is_cpu:
            module = any_address(module)
        text = script(module)
    (folder / SCRIPT).write_text(text + "\n")
    kernels: list[nvcc.Resources] = []
    in_place: list[tuple[int, int]] = []

    def compile_cuda(source: str) -> bytes:
        code, found = nvcc.compile_cubin(source, target_info(target).arch)
        kernels.extend(found)
        return code

    def with_variants(module: IRModule) -> IRModule:
        module, served = add_in_place(add_into(module))
        in_place.extend(served)
        return module

    # Link in a temporary folder, then copy the library: if the artifact's disk is full, our copy
    # fails, and not the linker, so we can report the error.
    temporary = Path(tempfile.gettempdir())
    try:
        with scratch_folder("needle-build-") as temporary:
            objects, libraries = [], []

            def emit(part: Any) -> bytes:
                return object_code(part, temporary / f"{id(part)}.o")

            with blamed_on("code generation"):
                if target_info(target).is_cpu:
                    executable, codes = build_objects(
                        module, target, with_variants, emit, TRANSFORM
                    )
                else:
                    executable = build_executable(module, target, cuda_graph.add_graph_functions)
                    codes = []
            for number, code in enumerate(codes):
                objects.append(temporary / f"code{number}.o")
                objects[-1].write_bytes(code)
            if library_products.is_used(module):
                libraries.append(temporary / f"{CUBLAS}.o")
                libraries[0].write_bytes(compiled_function(library_products.SOURCE))
            linked = temporary / LIBRARY
            export_library(
                executable, linked, compile_cuda, [*objects, *libraries], machine=_machine(target)
            )
            code = linked.read_bytes()
    except OSError as error:
        raise ToolchainError(
            f"{error.filename or temporary}: code cannot be written ({error.strerror})"
        ) from error
    if not code.startswith(b"\x7fELF"):
        raise ArtifactError(f"{folder}: the linker wrote no shared library")
    (folder / LIBRARY).write_bytes(code)
    notes: dict[str, list[Any]] = {
        "kernels": [asdict(kernel) for kernel in kernels],
        "libraries": [path.stem for path in libraries],
        "in_place": in_place,
    }
    return {name: value for name, value in notes.items() if value}


def _machine(target: Target) -> str:
    fields = target_fields(target)
    return str(fields.get("mtriple") or fields.get("host", {}).get("mtriple") or "")


@in_turn
def schedule(
    module: IRModule, target: Target, stage: str, disable: Collection[str] = ()
) -> IRModule:
    """Schedule a module's loops for a stage, without the rules and passes in `disable`."""
    return pipeline.run(pipeline.without(target, stage, disable).schedule, module, target)


def describe(
    signature: dict[str, Any],
    module: IRModule,
    spec: TargetSpec,
    target: Target,
    notes: dict[str, Any],
) -> dict[str, Any]:
    """Return the manifest of a compiled module, except the entries that are known only once its
    files are written."""
    names = {variable.name_hint for variable in module.get_global_vars()}
    transform = TRANSFORM if TRANSFORM in names else None
    by_kernel = BY_KERNEL if BY_KERNEL in names else None
    graph = None
    if cuda_graph.is_marked(module):
        graph = {"function": cuda_graph.FOR_GRAPH, "results": cuda_graph.RESULTS}
    main = {
        **signature,
        "transform": transform,
        "by_kernel": by_kernel,
        "graph": graph,
        "any_address": target_info(target).is_cpu,
    }
    about_code = dict(notes)
    if "in_place" in about_code:
        main["in_place"] = about_code.pop("in_place")
    return {
        "functions": {MAIN: main},
        "target": _target(spec, target),
        "versions": {**versions.provenance(), "llvm": llvm_version()},
        "requires": {"needle_runtime": NEEDS},
        **about_code,
    }


def _target(spec: TargetSpec, target: Target) -> dict[str, Any]:
    if spec.is_gpu:
        return {**spec.fields, "nvcc": nvcc.version()}
    features = host.checkable(target_info(target).features)
    return {**spec.fields, "mcpu": str(target.attrs["mcpu"]), "features": features}
