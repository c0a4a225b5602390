"""Every TVM name that has moved between versions, in one place. Written for TVM 0.27.

Importing this module imports TVM's compiler (0.5 to 2 s): nothing on the path that looks up or
runs a compiled artifact may do it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from needle_tvm import versions
from needle_tvm.errors import InstallError, TuningError
from needle_tvm.ffi import torch_left_out
from needle_tvm.threads import configure_tvm_threads

versions.check_pins()
# TVM takes half the processors unless told, and reads the variable once.
configure_tvm_threads()

try:
    with torch_left_out():
        import tvm
        import tvm.rpc.server
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


NARROW_FLOATS = ("float16", "bfloat16", "float32")


@contextmanager
def without_tensor_intrinsics() -> Iterator[None]:
    """Inside, a TuneContext is made without importing every intrinsic of every target (10 s)."""
    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = ModuleType(name)
    try:
        yield
    finally:
        del sys.modules[name]


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


NODES = SimpleNamespace(
    load=tvm.ir.expr.TensorLoad,
    store=tirx.BufferStore,
    sblock=s_tir.SBlock,
    loop=tirx.For,
    call=tvm.ir.expr.Call,
    cast=tirx.Cast,
    comparisons=(tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE),
)


def nodes_in(root: Any, kind: type) -> list[Any]:
    """All nodes of one of the kinds in NODES under a function, statement or expression."""
    found: list[Any] = []
    tvm_ffi.structural_walk(root, (kind, found.append), order="post")
    return found


# Calls whose meaning hangs on the number of bits of what they are given.
_FIXED_WIDTH = ("reinterpret", "extern", "llvm", "call_packed", "access_ptr", "address_of", "fast_")


def in_float64(module: IRModule) -> IRModule:
    """The module with float64 in place of every narrower floating-point type.

    Constants keep their values, integers and booleans their types. Raises ValueError naming a call
    that cannot be carried out in another type.
    """
    described = json.loads(tvm.ir.save_json(module))
    for node in described["nodes"]:
        if node["type"] == "ir.Op" and any(part in node["data"] for part in _FIXED_WIDTH):
            raise ValueError(f"{node['data']} cannot be carried out in float64")
        if node["type"] == "ir.PrimType":
            element, lanes, count = node["data"]["dtype"].partition("x")
            if element in NARROW_FLOATS:
                node["data"]["dtype"] = f"float64{lanes}{count}"
    return tvm.ir.load_json(json.dumps(described))


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


def pool_threads() -> int:
    """Threads of this process's pool, which starts with this call if it has not yet."""
    return int(tvm.runtime.num_threads())


def estimate_flops(function: PrimFunc) -> int:
    """Arithmetic operations of a PrimFunc by TVM's estimate, comparisons and padding included.

    Raises TuningError where TVM cannot estimate its body.
    """
    try:
        return int(s_tir.analysis.estimate_tir_flops(IRModule({"main": function})))
    except (RuntimeError, ValueError, TypeError) as error:
        last = (str(error).strip().splitlines() or ["no reason given"])[-1]
        raise TuningError(f"work of a function: TVM cannot estimate it: {last}") from error


def parameter_bytes(function: PrimFunc) -> list[int]:
    """Size of each parameter of a PrimFunc. Raises TuningError where an extent is no number."""
    sizes = []
    for number, buffer in enumerate(function.params):
        bits = int(tvm.DataType(str(buffer.dtype)).bits)
        for extent in buffer.shape:
            if not isinstance(extent, (int, tirx.IntImm)):
                raise TuningError(
                    f"work of a function: parameter {number} has an extent that is not a number: "
                    f"{extent}"
                )
            bits *= int(extent)
        sizes.append(-(-bits // 8))
    return sizes


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


def write_object(library: Any, path: str) -> None:
    """Write a built module's machine code for the CPU to an object file."""
    getattr(library, "mod", library).write_to_file(path, "o")


def cxx_compiler() -> str | None:
    """Command of the C++ compiler TVM would link with; None where there is none."""
    from tvm.support import cc

    return cc.get_cc()


def generated_source(library: Any, form: str) -> str:
    """What LLVM generated for a built module: "ll" is its IR, "asm" the assembly."""
    return str(getattr(library, "mod", library).inspect_source(form))


def device_source(library: Any) -> str:
    """CUDA source of the kernels of a built module; empty where it has none."""
    modules = getattr(library, "mod", library).imports
    return "\n".join(str(module.inspect_source()) for module in modules if module.kind == "cuda")


SESSION_EXPIRED = tvm.error.RPCSessionTimeoutError  # a server ended a session at its time limit
_ABOUT = "needle.server.about"


def serve_session(descriptor: int, folder: str, about: str) -> None:
    """Serve one RPC session on a connected socket, to its end; uploaded files go to `folder`.

    `about` is what `about_server` gives the client.
    """
    logging.getLogger("RPCServer").setLevel(logging.WARNING)
    work = SimpleNamespace(relpath=lambda name: os.path.join(folder, name), libs=[])
    tvm.rpc.server._server_env(None, work)
    tvm_ffi.register_global_func(_ABOUT, lambda: about, override=True)
    tvm.rpc._ffi_api.ServerLoop(descriptor)


def end_session(descriptor: int, reason: str) -> None:
    """Tell a session's client, in place of its serving process, why the session ended."""
    tvm.rpc._ffi_api.ReturnException(descriptor, reason)


def connect_session(host: str, port: int, word: str, seconds: float) -> Any:
    """A session with a server, which ends it after `seconds`; RuntimeError where that fails."""
    return tvm.rpc.connect(host, port, word, seconds)


def remote_view(tensor: Any, shape: Sequence[int], dtype: str) -> Any:
    """A tensor over the beginning of another's memory; a compiled function takes no other part."""
    return tensor._create_view(tuple(shape), dtype)


def about_server(session: Any) -> str:
    """What our server says of itself; empty of another's. RuntimeError of a session that ended."""
    try:
        return str(session.get_function(_ABOUT)())
    except AttributeError:  # TVM's own server has no such function
        return ""


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
    "NARROW_FLOATS",
    "NODES",
    "OP_PATTERN",
    "SCHEDULE_ERROR",
    "SESSION_EXPIRED",
    "TE_NAMESPACE",
    "Constant",
    "IRModule",
    "PrimFunc",
    "Schedule",
    "Target",
    "TensorIntrin",
    "TensorType",
    "about_server",
    "calls_of",
    "check_well_formed",
    "connect_session",
    "cpu_features",
    "cuda_left_as_source",
    "cuda_version",
    "cxx_compiler",
    "derived_object",
    "device_source",
    "end_session",
    "estimate_flops",
    "expr_functor",
    "from_exported_program",
    "generated_source",
    "host_cpu",
    "in_float64",
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
    "nodes_in",
    "parameter_bytes",
    "pass_configuration",
    "pool_threads",
    "prim_funcs",
    "raised_through_tvm",
    "relax",
    "remote_view",
    "s_tir",
    "script",
    "sequential",
    "serve_session",
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
    "write_object",
    "written_dtype",
]
