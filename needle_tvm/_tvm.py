"""Every TVM name that has moved between versions, in one place. Written for TVM 0.27.

Importing this module imports TVM's compiler (0.5 to 2 s): nothing on the path that looks up or
runs a compiled artifact may do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from needle_tvm import versions
from needle_tvm.errors import InstallError
from needle_tvm.ffi import torch_left_out
from needle_tvm.threads import configure_tvm_threads

versions.check_pins()
# TVM takes half the processors unless told, and reads the variable once.
configure_tvm_threads()

try:
    with torch_left_out():
        import tvm
        import tvm_ffi
        from tvm import relax, s_tir, te, tirx, topi
        from tvm.ir import IRModule
        from tvm.s_tir import Schedule, TensorIntrin
        from tvm.s_tir import meta_schedule as ms
        from tvm.script import ir_builder
        from tvm.script import tirx as tvmscript  # what TVMScript's files call T
        from tvm.target import Target
        from tvm.target import codegen as _codegen
        from tvm.tirx import PrimFunc
except ImportError as error:
    raise InstallError(f"TVM cannot be imported ({error}): {versions.INSTALL_HINT}") from error

Constant = tvm.ir.expr.Constant
transform = relax.transform
check_well_formed = relax.analysis.well_formed  # raises on the first violation
TensorType = relax.TensorType
expr_functor = relax.expr_functor
sequential = tvm.ir.transform.Sequential

# AnnotateTIROpPattern's kinds, as the integers PrimFunc attribute "op_pattern" holds.
OP_PATTERN = SimpleNamespace(
    elementwise=0, broadcast=1, injective=2, reduction=3, out_fusable=4, opaque=8
)


def statements(body: Callable[[Any], None]) -> Any:
    """The one statement that `body` writes with TVM's statement builder: what te.extern takes."""
    with ir_builder.IRBuilder() as builder:
        body(ir_builder.tirx)
        return builder.get()


# What an op's `emit_te` is handed.
TE_NAMESPACE = SimpleNamespace(te=te, topi=topi, tirx=tirx, statements=statements)

derived_object = tvm.ir.utils.derived_object  # what makes a Python class a TVM object
# PTX's instructions on whole fragments, as TVMScript calls.
ldmatrix, mma = tvmscript.ptx_legacy.ldmatrix, tvmscript.ptx_legacy.mma
mma_fill = tvmscript.cuda.mma_fill_legacy

SCHEDULE_ERROR = s_tir.ScheduleError
INTERNAL_ERROR = tvm.error.InternalError  # what TVM's passes raise, of a user's schedule too


def llvm_version() -> int:
    """Major version of the LLVM that is linked into TVM."""
    return int(_codegen.llvm_version_major())


def host_cpu() -> str:
    """LLVM's name of this machine's processor, such as "znver5"."""
    return str(_codegen.llvm_get_system_cpu())


def cpu_features(target: Target) -> list[str]:
    """The CPU features LLVM may use for this target, by LLVM's names."""
    return sorted(str(name) for name in _codegen.llvm_get_cpu_features(target))


def is_known_cpu(name: str) -> bool:
    """Whether LLVM knows this processor name for this machine's architecture."""
    return bool(_codegen.llvm_is_valid_cpu(name, str(_codegen.llvm_get_system_triple())))


def make_target(description: dict[str, Any]) -> Target:
    """A Target from its JSON form; ValueError or TVM's own error where TVM does not know it."""
    return Target(description)


def target_fields(target: Target) -> dict[str, Any]:
    """All that TVM's Target says, its host included, as plain JSON values."""
    fields = _plain(target.export())
    assert isinstance(fields, dict)
    return fields


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    return value


def pass_configuration() -> dict[str, Any]:
    """The PassContext in force here, as plain JSON values."""
    context = tvm.transform.PassContext.current()
    return {
        "opt_level": int(context.opt_level),
        "required": sorted(str(name) for name in context.required_pass),
        "disabled": sorted(str(name) for name in context.disabled_pass),
        "config": {str(name): str(value) for name, value in context.config.items()},
    }


def cuda_version() -> str:
    """Version of the CUDA toolkit that compiles kernels here; "none" without one."""
    from tvm.support import nvcc

    try:
        return ".".join(str(number) for number in nvcc.get_cuda_version())
    except (RuntimeError, OSError):
        return "none"


def load_module(text: str) -> IRModule:
    """The module that `tvm.ir.save_json` wrote as this text."""
    # load_json spends most of its time on what older versions wrote.
    if f'"tvm_version":"{tvm.__version__}"' in text[-200:].replace(" ", ""):
        return tvm_ffi.serialization.from_json_graph_str(text)
    return tvm.ir.load_json(text)


def trace_fields(trace: Any) -> Any:
    """A schedule's trace as plain JSON values, as TVM's databases write it."""
    return _without_immediates(trace.as_json(remove_postproc=False))


def _without_immediates(value: Any) -> Any:
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): _without_immediates(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without_immediates(item) for item in value]
    return value


def structural_hash(module: IRModule) -> str:
    """TVM's structural hash, as its JSON databases write it."""
    return str(tvm_ffi.structural_hash(module) & 0xFFFF_FFFF_FFFF_FFFF)


def structural_equal(one: IRModule, other: IRModule) -> bool:
    """Whether two modules are the same but for the names of variables."""
    return bool(tvm_ffi.structural_equal(one, other))


def raised_through_tvm(error: type[Exception]) -> None:
    """Have this error keep its type when it crosses TVM, as from a database to the search."""
    tvm_ffi.register_error(error.__name__, error)


def static_shape(expr: Any) -> tuple[int, ...] | None:
    """Shape of a Relax tensor expression; None where an extent is not a constant."""
    extents = getattr(getattr(expr.ty, "shape", None), "values", None)
    if extents is None or not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return None
    return tuple(int(extent) for extent in extents)


def written_dtype(block: Any) -> str:
    """Element type of the buffer a schedulable block writes."""
    return str(block.writes[0].source.dtype)


def loads_in(block: Any) -> list[Any]:
    """The loads in a block's body, each with its `source` and `indices`."""
    found: list[Any] = []
    tvm_ffi.structural_walk(block.body, (tvm.ir.expr.TensorLoad, found.append), order="post")
    return found


def variables_of(expr: Any) -> set[Any]:
    """The variables an index expression depends on."""
    found: set[Any] = set()
    tvm_ffi.structural_walk(expr, (tvm.ir.Var, found.add), order="post")
    return found


def calls_of(module: IRModule, name: str) -> list[str]:
    """Names of the PrimFuncs that Relax function `name` calls, one entry per call."""
    called: list[str] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get("relax.call_tir"):
            called.append(expr.args[0].name_hint)

    relax.analysis.post_order_visit(module[name], visit)
    return called


def script(module: IRModule) -> str:
    """TVMScript of a module."""
    return str(module.script())


def lowered_loops(module: IRModule) -> IRModule:
    """Scheduled blocks lowered to loops over flat buffers, with the loops' kinds still on them.

    This is the beginning of TVM's own pipeline up to the flattening of buffers, so that staging,
    software pipelining, virtual threads and barriers are where the compiled kernel has them, but
    vectorised and unrolled loops are still loops.
    """
    passes = s_tir.transform
    return sequential(
        [
            passes.CanonicalizeLoop(),
            passes.LowerCrossThreadReduction(),
            passes.LowerInitBlock(),
            passes.PlanAndUpdateBufferAllocationLocation(),
            passes.ConvertBlocksToOpaque(),
            passes.LiftThreadBinding(),
            passes.ManifestSharedMemoryLocalStage(),
            passes.CompactBufferAllocation(),
            passes.LowerAutoCopy(),
            passes.UnifyThreadBinding(),
            passes.LowerMatchBuffer(),
            passes.StmtSimplify(),
            passes.InjectPermutedLayout(),
            passes.InjectSoftwarePipeline(),
            passes.TransformMmaBufferLayout(),
            passes.LowerOpaqueBlock(),
            tirx.transform.FlattenBuffer(),
            passes.InjectVirtualThread(),
            passes.InjectDoubleBuffer(),
            passes.RewriteUnsafeSelect(),
            passes.ThreadSync("shared"),
            passes.ThreadSync("shared.dyn"),
            tirx.transform.StmtSimplify(),
        ]
    )(module)


def prim_funcs(module: IRModule) -> dict[str, PrimFunc]:
    """The module's PrimFuncs by name."""
    return {
        variable.name_hint: function
        for variable, function in module.functions.items()
        if isinstance(function, PrimFunc)
    }


def module_of(function: PrimFunc) -> IRModule:
    """A module of one PrimFunc, called `main`."""
    return IRModule({"main": function})


def from_exported_program(program: Any) -> IRModule:
    """Relax module of a `torch.export` program, weights as parameters of `main`.

    Attribute `num_input` of `main` says how many of its arguments are inputs. Imports PyTorch.
    """
    from tvm.relax.frontend.torch import from_exported_program as translate

    module = translate(program, keep_params_as_input=True, unwrap_unit_return_tuple=True)
    return relax.frontend.detach_params(module)[0]


def generated_source(library: Any, form: str) -> str:
    """What LLVM generated for a built module: "ll" is its IR, "asm" the assembly."""
    return str(getattr(library, "mod", library).inspect_source(form))


def device_source(library: Any) -> str:
    """CUDA source of the kernels of a built module; empty where it has none."""
    modules = getattr(library, "mod", library).imports
    return "\n".join(str(module.inspect_source()) for module in modules if module.kind == "cuda")


_CUDA_COMPILER = "tvm_callback_cuda_compile"


@contextmanager
def cuda_left_as_source() -> Iterator[None]:
    """Inside, a build for CUDA ends with the source: no compiler is called, nothing can run."""
    before = tvm_ffi.get_global_func(_CUDA_COMPILER)
    tvm_ffi.register_global_func(_CUDA_COMPILER, lambda code: b"not compiled", override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(_CUDA_COMPILER, before, override=True)


__all__ = [
    "INTERNAL_ERROR",
    "OP_PATTERN",
    "SCHEDULE_ERROR",
    "TE_NAMESPACE",
    "Constant",
    "IRModule",
    "PrimFunc",
    "Schedule",
    "Target",
    "TensorIntrin",
    "TensorType",
    "calls_of",
    "check_well_formed",
    "cpu_features",
    "cuda_left_as_source",
    "cuda_version",
    "derived_object",
    "device_source",
    "expr_functor",
    "from_exported_program",
    "generated_source",
    "host_cpu",
    "is_known_cpu",
    "ldmatrix",
    "llvm_version",
    "load_module",
    "loads_in",
    "lowered_loops",
    "make_target",
    "mma",
    "mma_fill",
    "module_of",
    "ms",
    "pass_configuration",
    "prim_funcs",
    "raised_through_tvm",
    "relax",
    "s_tir",
    "script",
    "sequential",
    "static_shape",
    "structural_equal",
    "structural_hash",
    "target_fields",
    "te",
    "tirx",
    "topi",
    "trace_fields",
    "transform",
    "tvm",
    "tvmscript",
    "variables_of",
    "written_dtype",
]
