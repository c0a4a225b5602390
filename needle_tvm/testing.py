"""Checks ops, eager and compiled: `check_op(MyOp)`. `needle.testing` has checks without TVM."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from needle import ops, testing
from needle.backend_ndarray import DTYPES, Device
from needle.op import Op
from needle.testing import Compiled, OpCheckError
from needle.trace import trace
from needle_runtime.artifact import bfloat16
from needle_runtime.errors import UsageError
from needle_runtime.memory import aligned_copy
from needle_tvm._tvm.names import IRModule, relax, tvm, tvm_ffi
from needle_tvm.errors import StageError, TranslationError
from needle_tvm.frontend import lowering
from needle_tvm.lower import build
from needle_tvm.lower.libraries import build_executable
from needle_tvm.stages import STAGES
from needle_tvm.target.spec import resolve
from needle_tvm.tune.options import Options

__all__ = ["OpCheckError", "check_op", "compiled"]

_Case = tuple[Op, list[Any]]


def check_op(
    op_class: type[Op],
    *,
    stages: Sequence[str] = STAGES,
    devices: Sequence[Device] | None = None,
    dtypes: Sequence[str] = DTYPES,
) -> None:
    """Check every rule of an op on its samples, eagerly and compiled at each stage.

    The eager checks are the same as in `needle.testing.check_op`. The compiled op must agree with
    its NumPy twin in all of `dtypes`; all cases of all stages are compiled as one module.

    Raises OpCheckError if a check fails, UsageError for an argument that is not an op, a list of
    devices or a list of dtypes, StageError if `stages` is not a list of stages, and any error of
    the compilation.
    """
    try:
        testing.checked_arguments(op_class, devices, dtypes)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    if isinstance(stages, str) or not isinstance(stages, Collection) or not stages:
        raise StageError(f"stages={stages!r}: must be a list of {', '.join(STAGES)}")
    for stage in stages:
        Options().check(stage)
    cases: dict[str, _Case] = {}

    def noted(op: Op, inputs: list[Any]) -> None:
        cases.setdefault(_key(op, inputs), (op, inputs))

    testing.check_op(op_class, devices=devices, dtypes=dtypes, compiled=noted)
    hooks = _compile(cases, stages)
    testing.check_op(op_class, devices=[], dtypes=dtypes, compiled=hooks)


def compiled(stage: str) -> Compiled:
    """Return a hook for `needle.testing.check_op` that compiles an op at a stage and runs it.

    The op is compiled in memory for this processor: nothing is linked, cached or exported. Raises
    StageError for an unknown stage; the hook raises OpCheckError for an op that cannot be
    translated.
    """
    Options().check(stage)
    hooks: dict[str, Compiled] = {}

    def run(op: Op, inputs: list[Any]) -> Any:
        key = _key(op, inputs)
        if key not in hooks:
            hooks[key] = _compile({key: (op, inputs)}, [stage])[stage]
        return hooks[key](op, inputs)

    return run


def _compile(cases: Mapping[str, _Case], stages: Sequence[str]) -> dict[str, Compiled]:
    """Compile all cases at all stages into one library; return a hook for each stage."""
    target = resolve("cpu").to_tvm()
    graphs = {
        key: trace(lambda *values, op=op: op(*map(_grouped, values)), *inputs)
        for key, (op, inputs) in cases.items()
    }
    module = IRModule({})
    for stage in stages:
        for number, graph in enumerate(graphs.values()):
            try:
                one = build.schedule(lowering.lower(graph, target, stage), target, stage)
            except TranslationError as error:
                raise OpCheckError(f"stage {stage!r}: {error}") from error
            module.update(_renamed(one, f"_{stage}_{number}"))
    machine = relax.VirtualMachine(build_executable(module, target), tvm.cpu())

    def hook(stage: str) -> Compiled:
        functions = {
            key: (graph, machine[f"{build.MAIN}_{stage}_{number}"])
            for number, (key, graph) in enumerate(graphs.items())
        }
        return lambda op, inputs: _run(*functions[_key(op, inputs)], inputs)

    return {stage: hook(stage) for stage in stages}


def _run(graph: Any, main: Any, inputs: list[Any]) -> Any:
    leaves = graph.flatten_inputs(tuple(inputs), {})
    arrays = [aligned_copy(np.asarray(leaf)) for leaf in leaves]
    result = main(*[bfloat16.to_tensor(tvm.runtime, array) for array in arrays])
    parts = [result] if hasattr(result, "numpy") else list(result)
    return graph.unflatten_outputs([bfloat16.to_array(part) for part in parts])


def _renamed(module: IRModule, suffix: str) -> IRModule:
    """Return the module with a suffix appended to each function's name."""
    renamed = {}
    for variable in module.get_global_vars():
        renamed[variable.name_hint] = tvm.ir.GlobalVar(f"{variable.name_hint}{suffix}")
        # A call to a function without a type is not well-formed; TVM's only setter is private.
        relax.expr._update_type(renamed[variable.name_hint], variable.ty)
    functions = {}
    for variable, function in module.functions_items():
        new = renamed[variable.name_hint]
        function = tvm_ffi.structural_map(
            function, (tvm.ir.GlobalVar, lambda old: renamed[old.name_hint])
        )
        if "global_symbol" in (function.attrs or {}):
            function = function.with_attr("global_symbol", new.name_hint)
        functions[new] = function
    return IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


def _key(op: Op, inputs: list[Any]) -> str:
    return f"{op!r} {[_described(value) for value in inputs]}"


def _grouped(value: Any) -> Any:
    return ops.make_tuple(*value) if isinstance(value, tuple) else value


def _described(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_described(part) for part in value)
    return value.shape, str(value.dtype)
