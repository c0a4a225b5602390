"""Divisions of integers that end no process.

A processor's division by 0, and of the least integer by -1, is a signal. Where a divisor is not
known, CPUs' code calls functions that give what NumPy has: 0, and the least integer. They are in
LLVM's language, and not expressions, of which TVM's own floordiv repeats both operands: a few in
each other took minutes.
"""

from __future__ import annotations

import re
from typing import Any

from needle_tvm._tvm import llvm
from needle_tvm._tvm.functions import NODES, nodes_in
from needle_tvm._tvm.names import IRModule, PrimFunc, tirx, tvm_ffi

_KINDS = {
    tirx.FloorDiv: "floordiv",
    tirx.FloorMod: "floormod",
    tirx.Div: "truncdiv",
    tirx.Mod: "truncmod",
}
_FUNCTION = re.compile(rf"needle_({'|'.join(_KINDS.values())})_(u?)int([0-9]+)")

# %d is %b, or 1 where that is fatal. A quotient is then %a, whose factor is 0 or -1.
_SIGNED = """
define linkonce_odr {type} @{name}({type} %a, {type} %b) alwaysinline {{
  %zero = icmp eq {type} %b, 0
  %minus = icmp eq {type} %b, -1
  %fatal = or i1 %zero, %minus
  %d = select i1 %fatal, {type} 1, {type} %b
  %q = sdiv {type} %a, %d
  %whole = mul {type} %q, %d
  %rest = sub {type} %a, %whole
  %inexact = icmp ne {type} %rest, 0
  %signs = xor {type} %rest, %d
  %apart = icmp slt {type} %signs, 0
  %above = and i1 %inexact, %apart
  %one = sext i1 %above to {type}
  %floor = add {type} %q, %one
  %part = select i1 %above, {type} %d, {type} 0
  %floormod = add {type} %rest, %part
  %negative = sub {type} 0, %{quotient}
  %signed = select i1 %minus, {type} %negative, {type} %{quotient}
  %divided = select i1 %zero, {type} 0, {type} %signed
  ret {type} %{result}
}}
"""
_UNSIGNED = """
define linkonce_odr {type} @{name}({type} %a, {type} %b) alwaysinline {{
  %zero = icmp eq {type} %b, 0
  %d = select i1 %zero, {type} 1, {type} %b
  %q = udiv {type} %a, %d
  %rest = urem {type} %a, %d
  %divided = select i1 %zero, {type} 0, {type} %q
  ret {type} %{result}
}}
"""


def trapless_divisions(module: IRModule) -> IRModule:
    """The module with no division of integers by what is no number, in any PrimFunc for a CPU."""
    for variable, function in list(module.functions_items()):
        if isinstance(function, PrimFunc) and str(function.attrs["target"].kind) == "llvm":
            body = function.body
            for kind in _KINDS:
                body = tvm_ffi.structural_map(body, (kind, _called))
            if not body.same_as(function.body):
                module.update_func(variable, function.with_body(body))
    return module


def _called(division: Any) -> Any:
    """A division, innermost first; itself where it is no integer's or by a number."""
    dtype = str(division.ty)
    if isinstance(division.b, tirx.IntImm) or not dtype.startswith(("int", "uint")):
        return division
    name = f"needle_{_KINDS[type(division)]}_{dtype}"
    return tirx.call_pure_extern(dtype, name, division.a, division.b)


def with_definitions(module: IRModule) -> IRModule:
    """The module whose functions bring along the IR of the divisions they call."""
    for variable, function in list(module.functions_items()):
        if not isinstance(function, PrimFunc):
            continue
        called = {
            match
            for call in nodes_in(function.body, NODES.call)
            if getattr(call.op, "name", "") == "tirx.call_pure_extern"
            if (match := _FUNCTION.fullmatch(str(call.args[0].value)))
        }
        if called:
            text = "".join(sorted({_definition(*match.group(0, 1, 2, 3)) for match in called}))
            module.update_func(variable, function.with_body(llvm.importing(text, function.body)))
    return module


def _definition(name: str, kind: str, unsigned: str, bits: str) -> str:
    divides = kind.endswith("div")
    result = "divided" if divides else "rest"
    if not unsigned and kind == "floormod":
        result = "floormod"
    return (_UNSIGNED if unsigned else _SIGNED).format(
        name=name, type=f"i{bits}", result=result, quotient="floor" if kind[0] == "f" else "q"
    )
