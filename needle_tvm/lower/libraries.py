"""Builds modules into executables and object files, and returns generated sources."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from needle_runtime.process.forks import loading
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.turns import compiling
from needle_tvm._tvm.names import (
    IRModule,
    PrimFunc,
    Target,
    make_target,
    module_pass,
    relax,
    sequential,
    target_fields,
    tirx,
    tvm,
    tvm_ffi,
    vm_build,
)
from needle_tvm.errors import ToolchainError
from needle_tvm.lower.gpu_code import module_of_library
from needle_tvm.lower.linking import cxx_compiler, run
from needle_tvm.lower.split_module import Part, called_by_one, pipelined, split
from needle_tvm.target.info import target_info
from needle_tvm.tir import nests, tasks
from needle_tvm.tir.extents import UPPER
from needle_tvm.tir.functions import NODES, nodes_in

# LLVM keeps a loop's accumulators in registers only if the loop has few memory accesses: by default
# up to 250, but four steps of a tile of 28 sums have 340. In a function of one kernel, an earlier
# LLVM pass removes most of the accesses, but it has a limit per function. A tile whose sums stay in
# memory takes more than twice as long.
_LLVM_OPTIONS = ("-licm-mssa-max-acc-promotion=4000",)


T = TypeVar("T")

_optimizes = ContextVar("_optimizes", default=True)


@contextmanager
def unoptimized() -> Iterator[None]:
    """Let LLVM generate code without optimising it, which halves the time to compile.

    This is for programs that run only once, to check our own passes.
    """
    token = _optimizes.set(False)
    try:
        yield
    finally:
        _optimizes.reset(token)


def for_llvm(target: Target) -> Target:
    """Set LLVM's options for our loops, and return the target with an optimisation level. Return a
    GPU target unchanged."""
    if not target_info(target).is_cpu:
        return target
    _set_llvm_options()
    # TVM's own default is 3. At level 2, kernels run as fast, and LLVM takes a tenth less time; at
    # level 1, some networks run a quarter longer (docs/performance.md).
    return _at_level(target, 2) if _optimizes.get() else _at_level(target, 0)


def _at_level(target: Target, level: int) -> Target:
    """Return the target with an LLVM optimisation level."""
    return make_target({**target_fields(target), "opt-level": level})


@functools.cache
def _set_llvm_options() -> None:
    """Set LLVM's options for the whole process.

    TVM sets a target's `cl-opt` during a build and then resets it, even if another thread is still
    generating code. But it passes Hexagon's `llvm-options` to LLVM permanently. The Hexagon build
    here then fails before it writes a file, because its entry function has no name.
    """
    fields = {"kind": "hexagon", "mtriple": "hexagon", "llvm-options": list(_LLVM_OPTIONS)}
    unnamed = PrimFunc([], tirx.Evaluate(0)).with_attr("tirx.is_entry_func", True)
    with suppress(tvm.error.InternalError):
        tvm.get_global_func("target.build.hexagon")(
            IRModule({"main": unnamed}), make_target(fields)
        )


def pass_options(module: IRModule) -> dict[str, Any]:
    """Return the options of TVM's passes for compiling a module's functions.

    TVM 0.27 shares storage between buffers. It may place a tensor core's float32 results in the
    buffer of the float16 operands, and then rejects the type of the pointer to the results.
    """
    functions = [f for f in module.functions.values() if isinstance(f, PrimFunc)]
    calls = [call for function in functions for call in nodes_in(function, NODES.call)]
    stores = any(getattr(call.op, "name", "") == "tirx.tvm_store_matrix_sync" for call in calls)
    return {"tirx.disable_storage_rewrite": stores}


def _asserts(module: IRModule) -> bool:
    """Return whether a function of the module asserts anything itself."""
    functions = (f for f in module.functions.values() if isinstance(f, PrimFunc))
    return any(nodes_in(function, tirx.AssertStmt) for function in functions)


def build_executable(
    module: IRModule, target: Target, planned: Callable[[IRModule], IRModule] | None = None
) -> Any:
    """Build a virtual machine's executable from a module that only calls PrimFuncs and makes views.

    TVM's own pipeline is not used: it begins with legalisation and fusion, which would turn views
    (`reshape`) into kernels. `planned` receives the module after memory planning, when every
    allocation is a call, and returns the module to continue with. Threads take turns, except while
    LLVM generates code.
    """
    if target_info(target).is_cpu:
        linked, libraries = _built(module, target, planned, lambda library: library)
        return linked(*libraries)
    with compiling, target, _context(module):
        steps = sequential(_steps(target, planned))
        return relax.build(module, target=target, relax_pipeline=steps)


def build_objects(
    module: IRModule,
    target: Target,
    planned: Callable[[IRModule], IRModule] | None,
    emit: Callable[[Any], T],
    once: str,
) -> tuple[Any, list[T]]:
    """Build like `build_executable` for a CPU, but leave machine code out of the executable.

    `emit` converts each module that LLVM has built, on several cores at once; the caller must link
    all results into one library. LLVM does not optimise small kernels that only the function `once`
    calls."""
    linked, objects = _built(module, target, planned, emit, once)
    return linked(), objects


def _built(
    module: IRModule,
    target: Target,
    planned: Callable[[IRModule], IRModule] | None,
    emit: Callable[[Any], T],
    once: str | None = None,
) -> tuple[Callable[..., Any], list[T]]:
    """Return a function that links LLVM's modules with the program, and a list with `emit`'s result
    for each of these modules."""
    with compiling:
        target, context = for_llvm(target), _context(module)
        run_once = called_by_one(module, once) if once else set()
        with target, context:
            module = sequential(_steps(target, planned))(module)
            builder = relax.ExecBuilder()
            loops = vm_build._filter_tir(vm_build._vmcodegen(builder, module))
            if loops is not None and once:
                loops = tasks.external(loops)
            parts = [] if loops is None else split(loops, run_once)

    def lowered(part: Part) -> tuple[IRModule, Target]:
        with compiling, target, context:
            chosen = target if part.optimized else _at_level(target, 0)
            return _host_code(part.module, chosen), chosen

    def generated(part: tuple[IRModule, Target]) -> T:
        with loading, target, context:  # a process forked now would find LLVM's locks held
            return emit(tvm.get_global_func("target.build.llvm")(*part))

    def linked(library: Any = None, *others: Any) -> Any:
        with compiling:
            constants = dict((module.attrs or {}).get("const_name_to_constant", {}))
            program = vm_build._ffi_api.VMLink(builder, target, library, others, constants)
            return relax.VMExecutable(program)

    return linked, pipelined(lowered, generated, parts)


def _context(module: IRModule) -> Any:
    """Return the options of TVM's passes for a module.

    TVM makes each function check its arguments (types, sizes, strides, devices) in every call. This
    is turned off: the virtual machine has already checked the inputs, and allocates all other
    buffers with the right sizes. In a small function, checks are most of the code, and LLVM needs
    minutes to compile the checks of hundreds of arguments.
    """
    options = {**pass_options(module), "tirx.disable_assert": not _asserts(module)}
    return tvm.transform.PassContext(config=options)


def _steps(target: Target, planned: Callable[[IRModule], IRModule] | None) -> list[Any]:
    """Return the passes that `build_executable` runs on the graph."""
    from tvm.relax.backend import cpu_generic, cuda

    backend = cuda if target_info(target).is_gpu else cpu_generic
    lowering = [
        *backend.library_dispatch_passes(target),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        *backend.finalize_passes(target),
    ]
    plan = [step.info.name for step in lowering].index("StaticPlanBlockMemory")
    if planned is not None:
        lowering.insert(plan + 1, module_pass(planned))
    lowering.insert(plan, module_pass(_without_bounds))
    lowering += [
        module_pass(_shape_functions_restricted),
        module_pass(_without_scopes),
        module_pass(tasks.internal),
    ]
    return lowering


def _host_code(loops: IRModule, target: Target) -> IRModule:
    """Lower a module of loops to one that LLVM can compile, as `tirx.build` would do."""
    pipeline, finalize, _ = tirx.get_tir_pipeline("default")
    module = tirx.transform.BindTarget(target.with_host(target))(loops)
    module = finalize()(pipeline(module))
    disabled = tvm.transform.PassContext.current().config.get("tirx.disable_assert", False)
    return tirx.transform.SkipAssert()(module) if disabled else module


def _without_bounds(module: IRModule) -> IRModule:
    """Drop the upper bounds of symbolic sizes. With these bounds, memory planning would give each
    buffer its largest possible size; without them, a buffer has the size that a call needs."""
    for name, function in list(module.functions_items()):
        if isinstance(function, relax.Function) and UPPER in (function.attrs or {}):
            module.update_func(name, function.without_attr(UPPER))
    return module


def _shape_functions_restricted(module: IRModule) -> IRModule:
    """Mark the functions that compute symbolic extents as free of aliases.

    They have only one parameter. If one function of a library may have aliases, TVM 0.27 generates
    code for all of them as if they had aliases too, and stores their accumulators in each step.
    """
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc) and "tirx.noalias" not in (function.attrs or {}):
            if len(function.params) == 1:
                module.update_func(name, function.with_attr("tirx.noalias", True))
    return module


def _without_scopes(module: IRModule) -> IRModule:
    """Drop the `pragma_scope` marks around the statements of TVM's own scatters and sorts: TVM's
    code generator does not know them and would print warnings."""

    def inner(mark: Any) -> Any:
        return mark.body if mark.attr_key == "pragma_scope" else mark

    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc):
            body = nests.map_nodes(function.body, tirx.AttrStmt, inner)
            if not body.same_as(function.body):
                module.update_func(name, function.with_body(body))
    return module


@functools.cache
def compiled_function(source: Path) -> bytes:
    """Compile C++ that exports functions through tvm-ffi's headers; return the object file's bytes.

    The object needs tvm-ffi's library, which a process has always loaded before the object. Raises
    ToolchainError if there is no compiler or it fails.
    """
    compiler = cxx_compiler()
    if compiler is None:
        raise ToolchainError(
            f"{source}: compiling it needs a C++ compiler, and there is none; install one (on "
            "Debian and Ubuntu: apt install g++), or set CXX to its command"
        )
    include = tvm_ffi.libinfo.find_include_path()
    options = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-w", f"-I{include}"]
    with scratch_folder("needle-object-") as folder:
        output = folder / "function.o"
        options += ["-c", str(source), "-o", str(output)]
        command = [*shlex.split(compiler), "-x", "c++", *options]
        run(command, f"compile {source}")
        return output.read_bytes()


def generated_source(library: Any, form: str) -> str:
    """Return the code that LLVM generated for a module: its IR ("ll") or assembly ("asm")."""
    return str(module_of_library(library).inspect_source(form))


def prefix_view(tensor: Any, shape: Sequence[int], dtype: str) -> Any:
    """Return a tensor over the start of another tensor's memory. Compiled functions do not accept
    tensors that start elsewhere in it."""
    return tensor._create_view(tuple(shape), dtype)
