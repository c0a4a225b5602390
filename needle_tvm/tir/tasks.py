"""Turns loop bodies into separate functions in the generated code; equal bodies share one function.

LLVM takes more than linear time to compile a function, and a body with a choice between nests is
long. Layers of equal shapes differ only in their buffers, so they can all use one function.

`apart` marks a body: TVM's code generator turns it into a function that is never inlined. `shared`
then moves it to a PrimFunc that takes its buffers as pointers:

    for p in parallel(n): apart(y[p] = x[p] + 1)

    for p in parallel(n): task(x, y, n, p)

The mark is set again around the function's body (`apart_again`). If the function were inlined, LLVM
could reorder two calls' accesses to the same memory, because TVM tells it that buffers of different
names never overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, s_tir, tirx, tvm
from needle_tvm.tir import nests
from needle_tvm.tir.functions import variables_of

Places = Mapping[Any, tuple[Any, Any]]  # buffer -> the buffer that contains it, and its offset

_APART, _TASK = "compute_scope", "task"  # TVM's attribute, and a prefix of function names
# The type in which functions take integers. TVM may narrow an int64 loop variable to int32, and
# would then not cast it back for an int64 parameter.
_NUMBER = "uint64"
_INTERNAL = "needle.internal"  # attribute of functions that only other functions call
_SYMBOL = "needle.symbol"  # attribute: the name by which other modules call the function
_CPU = 1  # DLPack's device type


def apart(statement: Any) -> Any:
    """Return a statement that becomes a separate function in the generated code."""
    marked = tirx.AttrStmt(tirx.IntImm("int32", 0), _APART, _TASK, statement)
    # Another statement must follow: otherwise TVM 0.27 treats later code as part of the function.
    nothing = tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.donothing"))
    return tirx.SeqStmt([marked, nothing])


def shared(nest: Any, places: Places, add: Callable[[PrimFunc], Any]) -> Any:
    """Replace the bodies in a nest that are marked by `apart` with function calls.

    `add` adds a function to the module, unless it has an equal one, and returns its global
    variable. The buffers in `places` are parts of other buffers.
    """

    def call(mark: Any) -> Any:
        if mark.attr_key != _APART:
            return mark
        used = sorted(_used(mark.body), key=tirx.is_buffer_var)
        function = add(_function(mark, used))
        return tirx.Evaluate(tvm.ir.Call(function, [_given(each, places) for each in used]))

    return nests.map_nodes(nest, tirx.AttrStmt, call)


def elsewhere(module: IRModule, add: Callable[[PrimFunc], Any]) -> IRModule:
    """Redirect calls to functions that `shared` added to this module: `add` adds the functions to
    another module, and the calls go there."""
    own = {
        variable: function
        for variable, function in module.functions_items()
        if isinstance(function, PrimFunc) and _INTERNAL in (function.attrs or {})
    }
    added: dict[Any, Any] = {}

    def called(call: Any) -> Any:
        if call.op not in own:
            return call
        if call.op not in added:
            added[call.op] = add(changed(own[call.op]).without_attr("global_symbol"))
        return tvm.ir.Call(added[call.op], call.args)

    def changed(function: PrimFunc) -> PrimFunc:
        return function.with_body(nests.map_nodes(function.body, tvm.ir.Call, called))

    for variable, function in module.functions_items() if own else ():
        if isinstance(function, PrimFunc) and variable not in own:
            module.update_func(variable, changed(function))
    return module


def _used(body: Any) -> list[Any]:
    """Return the variables and buffers that a statement uses but does not define, and the variables
    in these buffers' shapes."""
    found = list(tirx.analysis.undefined_vars(body))
    extents = [extent for each in found if tirx.is_buffer_var(each) for extent in each.shape]
    return list(dict.fromkeys([*found, *(v for each in extents for v in variables_of(each))]))


def _given(used: Any, places: Places) -> Any:
    """Return the argument that a caller passes for a variable (its value) or a buffer (its
    address)."""
    if used in places:
        memory, first = places[used]
        return tirx.address_of(memory[first])
    if tirx.is_buffer_var(used):
        return tirx.buffer_data(used)
    return tirx.Cast(_NUMBER, used)


def _function(mark: Any, used: list[Any]) -> PrimFunc:
    """Return a function that runs one marked statement; its parameters are those in `used`, the
    numbers before the buffers."""
    numbers = [each for each in used if not tirx.is_buffer_var(each)]
    values = {each: tirx.Var(each.name, str(each.ty)) for each in numbers}
    parameters, declared = [], []
    for each in used:
        if each in values:
            number = tirx.Var(each.name, _NUMBER)
            parameters.append(number)
            declared.append(tirx.Bind(values[each], tirx.Cast(str(each.ty), number)))
            continue
        kind = tvm.ir.PointerType(tvm.ir.PrimType(each.dtype), each.scope())
        pointer = tirx.Var(f"{each.name}_data", kind)
        shape = [nests.substitute(extent, values) for extent in each.shape]
        values[each] = tirx.decl_buffer(shape, each.dtype, each.name, layout=None)
        parameters.append(pointer)
        declared.append(tirx.DeclBuffer(values[each], data=pointer))
    whole = tirx.SeqStmt([*declared, nests.substitute(mark.body, values)])
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", whole))
    return PrimFunc(parameters, root, tvm.ir.PrimType("int32")).with_attrs(
        {_INTERNAL: True, "tirx.noalias": True, "tirx.is_scheduled": True, "s_tir": True}
    )


def internal(module: IRModule) -> IRModule:
    """Remove the symbols of functions that `shared` made: a virtual machine never calls them."""
    for variable, function in list(module.functions_items()):
        if isinstance(function, PrimFunc) and _INTERNAL in (function.attrs or {}):
            module.update_func(variable, function.without_attr("global_symbol"))
    return module


def external(module: IRModule) -> IRModule:
    """Call the functions of `shared` through symbols, so that each can be in its own module. The
    modules must be linked into one library."""
    own = {
        variable: f"needle_{variable.name_hint}"
        for variable, function in module.functions_items()
        if isinstance(function, PrimFunc) and _INTERNAL in (function.attrs or {})
    }

    def called(call: Any) -> Any:
        named = own.get(call.op) if isinstance(call.op, tvm.ir.GlobalVar) else None
        return call if named is None else tirx.call_extern("int32", named, *call.args)

    for variable, function in list(module.functions_items()) if own else ():
        if isinstance(function, PrimFunc):
            function = function.with_body(nests.map_nodes(function.body, tvm.ir.Call, called))
            if variable in own:
                function = function.with_attr(_SYMBOL, own[variable])
            module.update_func(variable, function)
    return module


def apart_again(module: IRModule) -> IRModule:
    """Mark the bodies of the functions of `shared` by `apart`, and add the device attributes that
    allocations need, as TVM does in functions that have a symbol.

    This runs after TVM has placed allocations: a local buffer that is allocated outside the mark
    would be in memory and not in registers, and a sum would take several times as long. TVM adds
    the missing return statement, which returns 0.
    """
    for variable, function in list(module.functions_items()):
        if isinstance(function, PrimFunc) and _INTERNAL in (function.attrs or {}):
            body = apart(function.body)
            for key, value in (("device_type", _CPU), ("device_id", 0)):
                body = tirx.AttrStmt(tvm.ir.StringImm("default"), key, value, body)
            function = function.with_body(body)
            if _SYMBOL in function.attrs:
                function = function.with_attr("global_symbol", function.attrs[_SYMBOL])
            module.update_func(variable, function)
    return module
