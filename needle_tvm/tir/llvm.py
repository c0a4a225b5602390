"""Adds LLVM IR for functions that statements call, and works around a bug in LLVM's vectoriser."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, tirx, tvm, tvm_ffi
from needle_tvm.tir.functions import NODES, nodes_in, variables_of

_NO_VECTORS = "needle_one_by_one"
# An empty instruction. LLVM must keep it in the loop, but can still move the loop's own memory
# accesses.
_DEFINITION = f"""
define linkonce_odr i32 @{_NO_VECTORS}() alwaysinline {{
  call void asm sideeffect "", ""() memory(inaccessiblemem: readwrite)
  ret i32 0
}}
"""


def importing(text: str, body: Any) -> Any:
    """Wrap a statement so that it can call the functions defined by `text`, which is LLVM IR."""
    source = tvm.ir.StringImm(text)
    return tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_import_llvm", source, body)


def defining(
    module: IRModule,
    pattern: re.Pattern[str],
    definitions: Callable[[list[re.Match[str]], PrimFunc], str],
) -> IRModule:
    """Give each function of a module the IR of the called functions whose names match
    `pattern`."""
    for variable, function in list(module.functions_items()):
        if not isinstance(function, PrimFunc):
            continue
        called = {
            match[0]: match
            for call in nodes_in(function.body, NODES.call)
            if getattr(call.op, "name", "") == "tirx.call_pure_extern"
            if (match := pattern.fullmatch(str(call.args[0].value)))
        }
        if called:
            text = definitions([called[name] for name in sorted(called)], function)
            module.update_func(variable, function.with_body(importing(text, function.body)))
    return module


def masked_loops(module: IRModule) -> IRModule:
    """Keep LLVM from vectorising loops of a lowered module that mask the loop variable.

    LLVM 22 vectorises them wrongly: in `for i in range(16)` with four branches that each read
    x[i & 3], it reads 16 consecutive elements. TVM has already vectorised the loops that should be.
    """
    for variable, function in list(module.functions_items()):
        if isinstance(function, PrimFunc) and nodes_in(function.body, tirx.BitwiseAnd):
            body = tvm_ffi.structural_map(function.body, (NODES.loop, _one_by_one))
            if not body.same_as(function.body):
                module.update_func(variable, function.with_body(importing(_DEFINITION, body)))
    return module


def _one_by_one(loop: Any) -> Any:
    masked = nodes_in(loop.body, tirx.BitwiseAnd)
    if not any(loop.loop_var in variables_of(each) for each in masked):
        return loop
    call = tirx.Evaluate(tirx.call_extern("int32", _NO_VECTORS))
    body = tirx.SeqStmt([call, loop.body])
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body)
