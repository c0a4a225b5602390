"""TVM's modules and classes under the names that needle uses, and queries about targets and
LLVM."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from needle_runtime._tvm.ffi import register_interrupts, torch_left_out
from needle_runtime._tvm.versions import INSTALL_HINT
from needle_runtime.errors import InstallError
from needle_runtime.process.threads import configure_tvm_threads
from needle_tvm._tvm import versions

versions.check_pins()
# TVM uses half of the processors by default, and reads its environment variable only once.
configure_tvm_threads()

try:
    with torch_left_out():
        import tvm
        import tvm_ffi
        from tvm import relax, s_tir, te, tirx, topi
        from tvm.ir import IRModule
        from tvm.relax import vm_build as vm_build
        from tvm.s_tir import TensorIntrin as TensorIntrin
        from tvm.s_tir import meta_schedule as ms  # noqa: F401
        from tvm.script import ir_builder
        from tvm.script import tirx as tvmscript  # T in TVMScript files
        from tvm.sym import iter_affine_map as iter_affine_map
        from tvm.sym.pattern import detect_linear_equation as detect_linear_equation
        from tvm.target import Target
        from tvm.target import codegen as _codegen
        from tvm.tirx import PrimFunc as PrimFunc

    register_interrupts(tvm_ffi)
except ImportError as error:
    raise InstallError(f"TVM cannot be imported ({error}): {INSTALL_HINT}") from error

Constant = tvm.ir.expr.Constant
transform = relax.transform
PassContext = tvm.transform.PassContext
check_well_formed = relax.analysis.well_formed  # raises on the first violation
TensorType = relax.TensorType
expr_functor = relax.expr_functor
sequential = tvm.ir.transform.Sequential


def module_pass(apply: Callable[[IRModule], IRModule]) -> Any:
    """Wrap a function of a module as a TVM pass."""
    return tvm.ir.transform.module_pass(
        lambda module, context: apply(module), opt_level=0, name=apply.__name__
    )


# AnnotateTIROpPattern's kinds, as the integers that the PrimFunc attribute "op_pattern" holds.
OP_PATTERN = SimpleNamespace(
    elementwise=0, broadcast=1, injective=2, reduction=3, out_fusable=4, opaque=8
)


def statements(body: Callable[[Any], None]) -> Any:
    """Return the statement that `body` writes with TVM's statement builder, for te.extern."""
    with ir_builder.IRBuilder() as builder:
        body(ir_builder.tirx)
        return builder.get()


# The namespace passed to an op's `emit_te`.
TE_NAMESPACE = SimpleNamespace(te=te, topi=topi, tirx=tirx, statements=statements)

# PTX instructions that act on whole fragments, as TVMScript calls.
ldmatrix, mma = tvmscript.ptx_legacy.ldmatrix, tvmscript.ptx_legacy.mma
mma_fill = tvmscript.cuda.mma_fill_legacy
SCHEDULE_ERROR = s_tir.ScheduleError


class Schedule(s_tir.Schedule):
    """TVM's schedule without the Python code that checks arguments against annotations. TVM's C++
    code rejects wrong arguments itself."""


for _name, _method in vars(s_tir.Schedule).items():
    if hasattr(_method, "__wrapped__"):
        setattr(Schedule, _name, _method.__wrapped__)
INTERNAL_ERROR = tvm.error.InternalError  # raised by TVM's passes; a user's schedule can cause it


@contextmanager
def tensor_intrinsics(cuda: bool) -> Iterator[None]:
    """Keep a TuneContext that is created in this context from importing the intrinsics of all
    targets (10 s). With `cuda`, import only the tensor cores' intrinsics (a quarter of that
    time)."""
    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        yield
        return
    stub = sys.modules[name] = ModuleType(name)
    try:
        if cuda:  # found in the package's folder, without running the package's imports
            stub.__path__ = [os.path.join(os.path.dirname(s_tir.__file__), "tensor_intrin")]
            importlib.import_module(f"{name}.cuda")
        yield
    finally:
        del sys.modules[name]


def llvm_version() -> int:
    """Return the major version of the LLVM that is linked into TVM."""
    return int(_codegen.llvm_version_major())


def host_cpu() -> str:
    """Return LLVM's name of this machine's processor, such as "znver5"."""
    return str(_codegen.llvm_get_system_cpu())


def cpu_features(target: Target) -> list[str]:
    """Return the CPU features that LLVM may use for this target, by LLVM's names."""
    return sorted(str(name) for name in _codegen.llvm_get_cpu_features(target))


def is_known_cpu(name: str, triple: str | None = None) -> bool:
    """Return whether LLVM knows a processor name for an architecture (default: this machine's)."""
    triple = str(_codegen.llvm_get_system_triple()) if triple is None else triple
    return bool(_codegen.llvm_is_valid_cpu(name, triple))


def make_target(description: dict[str, Any]) -> Target:
    """Return a Target from its JSON form. Raises ValueError or TVM's own error for a bad one."""
    return Target(description)


def target_fields(target: Target) -> dict[str, Any]:
    """Return all fields of a TVM Target, including its host, as plain JSON values."""
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
    """Return the current PassContext, as plain JSON values."""
    context = tvm.transform.PassContext.current()
    return {
        "opt_level": int(context.opt_level),
        "required": sorted(str(name) for name in context.required_pass),
        "disabled": sorted(str(name) for name in context.disabled_pass),
        "config": {str(name): str(value) for name, value in context.config.items()},
    }


def load_module(text: str) -> IRModule:
    """Return the module that `tvm.ir.save_json` wrote as `text`."""
    # load_json spends most of its time on the formats of older versions.
    if f'"tvm_version":"{tvm.__version__}"' in text[-200:].replace(" ", ""):
        return tvm_ffi.serialization.from_json_graph_str(text)
    return tvm.ir.load_json(text)


def structural_hash(module: IRModule) -> str:
    """Return TVM's structural hash, in the form that its JSON databases use."""
    return str(tvm_ffi.structural_hash(module) & 0xFFFF_FFFF_FFFF_FFFF)


def structural_equal(one: IRModule, other: IRModule) -> bool:
    """Return whether two modules are equal except for the names of variables."""
    return bool(tvm_ffi.structural_equal(one, other))


def script(module: IRModule) -> str:
    """Return the TVMScript of a module."""
    return str(module.script())


def pool_threads() -> int:
    """Return the size of this process's thread pool; start the pool if necessary."""
    return int(tvm.runtime.num_threads())
