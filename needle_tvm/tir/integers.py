"""Gives integer data NumPy's arithmetic, which wraps around and never crashes the process.

TVM treats integers as unbounded, like indices, and tells LLVM that none overflows: it folds
`x + 1 > x` to true, and if an int32 product is cast to int64, it multiplies in int64. A processor
raises a signal for a division by 0, and for the least integer divided by -1. So in CPU code,
arithmetic on integer data is replaced by function calls, which TVM's simplifiers do not look into
and LLVM inlines. A division by 0 gives 0, and the least integer divided by -1 gives itself.

The functions are LLVM IR rather than TVM expressions, because TVM's own floordiv repeats both
operands: compiling a few nested divisions would take minutes.
"""

from __future__ import annotations

import re
from typing import Any

from needle_runtime.target.kind import CPU
from needle_tvm._tvm.names import IRModule, PrimFunc, Target, tirx, tvm, tvm_ffi
from needle_tvm.target.info import target_info
from needle_tvm.tir import llvm
from needle_tvm.tir.functions import NODES, nodes_in

_KINDS = {
    tirx.Add: "add",
    tirx.Sub: "sub",
    tirx.Mul: "mul",
    tirx.FloorDiv: "floordiv",
    tirx.FloorMod: "floormod",
    tirx.Div: "truncdiv",
    tirx.Mod: "truncmod",
}
_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)
_FUNCTION = re.compile(rf"needle_({'|'.join(_KINDS.values())})_(u?)int([0-9]+)_x([0-9]+)")


def register() -> None:
    """Register the operators that become function calls once loops are vectorised. Call once."""
    for kind in _KINDS.values():
        name = f"tirx.needle_{kind}"
        for attribute, value in (
            ("TVectorizable", True),
            ("TCallEffectKind", tirx.CallEffectKind.Pure.value),
            ("TScriptPrinterName", f"needle_{kind}"),
        ):
            tvm.ir.register_op_attr(name, attribute, value)
        tirx.op.register_intrin_lowering(name, target=CPU, f=_called)


def _called(call: Any) -> Any:
    dtype = str(call.ty)
    element, _, lanes = dtype.partition("x")
    name = f"{call.op.name.removeprefix('tirx.')}_{element}_x{lanes or 1}"
    return tirx.call_pure_extern(dtype, name, *call.args)


def of_data(module: IRModule, target: Target | None = None) -> IRModule:
    """Replace arithmetic on integer data in a module's PrimFuncs for CPUs, so that TVM does not
    treat it as index arithmetic. `target`, if given, overrides the functions' own targets."""
    for variable, function in list(module.functions_items()):
        if not isinstance(function, PrimFunc):
            continue
        if target_info(target or function.attrs["target"]).is_cpu and _reads(function.body):
            body = function.body
            for kind in _KINDS:
                body = tvm_ffi.structural_map(body, (kind, _replaced))
            if not body.same_as(function.body):
                module.update_func(variable, function.with_body(body))
    return module


def _replaced(node: Any) -> Any:
    """Return the replacement of an operation on integer data; return operations on indices or
    floats unchanged."""
    dtype = str(node.ty)
    if not dtype.startswith(("int", "uint")) or not (_reads(node.a) or _reads(node.b)):
        return node
    if isinstance(node, _DIVISIONS) and isinstance(node.b, tirx.IntImm) and int(node.b) > 0:
        return node
    return tirx.call_intrin(dtype, f"tirx.needle_{_KINDS[type(node)]}", node.a, node.b)


def _reads(root: Any) -> bool:
    """Return whether an expression reads integers or converts floats to integers."""
    return any(
        str(node.ty).startswith(("int", "uint"))
        for kind in (NODES.load, NODES.cast)
        for node in nodes_in(root, kind)
        if kind is NODES.load or str(node.value.ty).startswith(("float", "bfloat"))
    )


def with_definitions(module: IRModule) -> IRModule:
    """Give each function of a module the IR of the functions that it calls."""
    return llvm.defining(module, _FUNCTION, lambda called, _: "".join(map(_definition, called)))


def _definition(function: re.Match[str]) -> str:
    """Return the IR of a function on vectors, or on scalars if it has one lane."""
    kind, unsigned, size, lanes = function.groups()
    many = int(lanes) > 1
    of, bits = (f"<{lanes} x {each}>" if many else each for each in (f"i{size}", "i1"))
    zero, one, minus = (f"splat (i{size} {n})" if many else str(n) for n in (0, 1, -1))
    if kind in ("add", "sub", "mul"):
        lines = [f"%result = {kind} {of} %a, %b"]
    else:
        # %d is %b, or 1 if dividing by %b could trap (%b is 0 or, if signed, -1). With 1, the
        # quotient is %a, and the last lines replace it by 0 or -%a.
        lines = [
            f"%zero = icmp eq {of} %b, {zero}",
            f"%minus = icmp eq {of} %b, {minus}" if not unsigned else "",
            f"%fatal = or {bits} %zero, %{'zero' if unsigned else 'minus'}",
            f"%d = select {bits} %fatal, {of} {one}, {of} %b",
            f"%quotient = {'u' if unsigned else 's'}div {of} %a, %d",
            f"%whole = mul {of} %quotient, %d",
            f"%rest = sub {of} %a, %whole",
        ]
        quotient, rest = "%quotient", "%rest"
        if kind.startswith("floor") and not unsigned:
            lines += [
                f"%inexact = icmp ne {of} %rest, {zero}",
                f"%signs = xor {of} %rest, %d",
                f"%apart = icmp slt {of} %signs, {zero}",
                f"%above = and {bits} %inexact, %apart",
                f"%less = sext {bits} %above to {of}",
                f"%floor = add {of} %quotient, %less",
                f"%more = select {bits} %above, {of} %d, {of} {zero}",
                f"%modulus = add {of} %rest, %more",
            ]
            quotient, rest = "%floor", "%modulus"
        if kind.endswith("mod"):
            lines.append(f"%result = add {of} {rest}, {zero}")
        else:
            if not unsigned:
                lines += [
                    f"%negative = sub {of} {zero}, {quotient}",
                    f"%signed = select {bits} %minus, {of} %negative, {of} {quotient}",
                ]
                quotient = "%signed"
            lines.append(f"%result = select {bits} %zero, {of} {zero}, {of} {quotient}")
    # linkonce_odr: a program has one copy, however many of its modules define the function.
    head = f"define linkonce_odr {of} @{function[0]}({of} %a, {of} %b) alwaysinline {{"
    return "\n".join([head, *lines, f"ret {of} %result", "}", ""])
