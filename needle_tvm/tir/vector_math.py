"""Writes elementary functions of float32 as arithmetic on vectors.

LLVM calls the C library for `exp` and similar functions, once for every element of a vector.
`register` gives TVM other lowerings for them on CPUs, which run after loops are vectorised. They
call functions whose LLVM IR `with_definitions` adds, and which LLVM inlines. The functions are the
branch-free formulas of needle's own kernels (src/cpu/isa/math.h), with the same constants
(vector_constants.h) and the same error bounds in units in the last place. Infinities, NaN
and subnormal numbers give correct results; other dtypes keep TVM's lowering.

The formulas are not TVM expressions. A TVM expression can use a value twice only by naming it with
`Let`. TVM's code generator may reject a `Let` within the value of another `Let`; otherwise it
visits the inner `Let` repeatedly, once for each `Let` around it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from needle_runtime.target.kind import CPU
from needle_tvm._tvm.names import (
    IRModule,
    PrimFunc,
    tirx,
    tvm,
    tvm_ffi,
)
from needle_tvm.target.info import TargetInfo, target_info
from needle_tvm.tir import llvm
from needle_tvm.tir.functions import NODES, nodes_in
from needle_tvm.tir.vector_angles import cosine, power, remainder, sine
from needle_tvm.tir.vector_constants import constant, table
from needle_tvm.tir.vector_erf import erf
from needle_tvm.tir.vector_text import Text, Value

_TWICE_BIAS = 254


def _exp(v: Text, x: Value) -> Value:
    """Return e^x = 2^n * e^r with |r| <= ln(2)/2."""
    low, high = v.named("ExpLeast"), v.named("ExpMost")
    shift = v.constant(constant("Round") + _TWICE_BIAS)
    x = v.select(x > high, high, x)  # NaN passes both
    x = v.select(x < low, low, x)
    shifted = x * v.named("PerLn2") + shift
    n = shifted - shift
    r = x
    for minus_ln2 in table("MinusLn2"):
        r = n * v.constant(minus_ln2) + r
    p = v.polynomial(r, *table("Exp"))
    p = p * (r * r) + r + v.constant(1.0)
    scaled = v.scaled(p, n)
    if scaled is not None:
        return scaled
    # Multiply by two powers of two, so that results may be subnormal. The lowest bits of `shifted`
    # are n plus twice the exponent bias; the shift to the left drops all other bits.
    e = v.bits(shifted)
    half = e >> v.integer(1)
    for part in (half, e - half):
        p = p * v.float_of(part << v.integer(23))
    return v.rounded(p)


def _tanh(v: Text, x: Value) -> Value:
    """Return tanh: an odd polynomial near 0, else 1 - 2 / (e^(2|x|) + 1)."""
    a, one = v.magnitude(x), v.constant(1.0)
    far = v.with_sign_of(x, one - v.constant(2.0) / (_exp(v, a + a) + one))
    z = x * x
    p = v.polynomial(z, *table("Tanh"))
    return v.select(a < v.named("TanhNear"), p * z * x + x, far)


def _sigmoid(v: Text, x: Value) -> Value:
    one = v.constant(1.0)
    e = _exp(v, -v.magnitude(x))
    return v.select(x < v.constant(0.0), e, one) / (one + e)


def _erf(v: Text, x: Value) -> Value:
    return erf(v, x, _exp)


def _erf_float64(v: Text, x: Value) -> Value:
    """Return the C library's erf, lane by lane, because LLVM has no erf for vectors."""
    return v.lane_by_lane("@erf", x)


def _log(v: Text, x: Value) -> Value:
    """Return log(x) for x = 2^i * (1 + m) with m in [-1/3, 1/3]."""
    zero, infinity = v.constant(0.0), v.constant(float("inf"))
    tiny = x < v.named("LeastNormal")
    scaled = v.bits(v.select(tiny, x * v.constant(8388608.0), x))
    e = (scaled - v.integer(int(constant("TwoThirdsBits")))) & v.integer(0xFF800000)
    m = v.float_of(scaled - e) - v.constant(1.0)
    i = v.signed(e) * v.named("UlpOfOne")
    i = v.select(tiny, i - v.constant(23.0), i)
    s = m * m
    r = v.polynomial(s, *table("LogEven"))
    r = v.polynomial(s, *table("LogOdd")) * m + r
    for coefficient in table("Log"):
        r = r * m + v.constant(coefficient)
    r = i * v.named("Ln2") + (r * s + m)
    r = v.select(x < infinity, r, x)
    r = v.select(x.equals(zero), -infinity, r)
    return v.select(x < zero, v.constant(float("nan")), r)


def _bfloat16(v: Text, x: Value) -> Value:
    """Round to the nearest bfloat16, ties to even; any NaN becomes a quiet NaN."""
    bits, kept = v.bits(x), v.integer(0xFFFF0000)
    to_even = (bits >> v.integer(16)) & v.integer(1)
    nearest = v.float_of((bits + v.integer(0x7FFF) + to_even) & kept)
    quiet = v.float_of((bits | v.integer(0x00400000)) & kept)
    return v.select(v.is_nan(x), quiet, nearest)


def _odd(v: Text, x: Value) -> Value:
    """Round a float64 to float32 by rounding to odd: towards 0, with the last bit set if anything
    was lost (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE Trans.
    Computers 57, 2008). Rounding the result to fewer bits then equals rounding x directly.
    """
    narrow = v.instruction(f"fptrunc {x} to {v.type_of('float')}", "float")
    back = v.instruction(f"fpext {narrow} to {v.type_of('double')}", "double")
    zero = v.instruction(f"sitofp {v.integer(0)} to {v.type_of('double')}", "double")
    above = v.as_integer(v.select(x < zero, back < x, back > x))
    inexact = v.as_integer(v.instruction(f"fcmp une {back}, {x.name}", "i1"))
    return v.float_of((v.bits(narrow) - above) | inexact)


_FORMULAS: dict[str, Callable[..., Value]] = {
    "bfloat16": _bfloat16,
    "odd": _odd,
    "exp": _exp,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "erf_float64": _erf_float64,
    "log": _log,
    "sin": sine,
    "cos": cosine,
    "pow": power,
    "fmod": remainder,
    "fmod_float64": remainder,
}
# Our own CPU operations: float32 -> float32, float64 -> float32, and C's fmod in both dtypes.
ROUND_TO_BFLOAT16, ROUND_TO_ODD = "tirx.needle_bfloat16", "tirx.needle_odd"
_FMOD = "tirx.needle_fmod"
_OWN = {"bfloat16": ROUND_TO_BFLOAT16, "odd": ROUND_TO_ODD, "fmod": _FMOD}
_TAKES = {"odd": "float64", "erf_float64": "float64", "fmod_float64": "float64"}  # others: float32
_OF_TWO = ("pow", "fmod", "fmod_float64")
# Formulas for float64: those for vectors only, and those for vectors and single elements.
_VECTORS_OF_FLOAT64 = {"erf": "erf_float64"}
_FLOAT64 = {"fmod": "fmod_float64"}
_ATTRIBUTE = "llvm.FLowerIntrinsic"
_LEVEL = 99  # above TVM's own lowerings
_FUNCTION = re.compile(rf"needle_({'|'.join(sorted(_FORMULAS, reverse=True))})_x([0-9]+)")


def register() -> None:
    """Make TVM use the formulas in all code that this process builds for CPUs. Call once."""
    # Without this attribute, TVM would not vectorise loops that call these functions.
    for name in ("isnan", "erf"):
        tvm.ir.register_op_attr(f"tirx.{name}", "TVectorizable", True)
    for name in _OWN.values():
        for attribute, value in (
            ("TVectorizable", True),
            ("TCallEffectKind", tirx.CallEffectKind.Pure.value),
            ("TScriptPrinterName", name.partition(".")[2]),
        ):
            tvm.ir.register_op_attr(name, attribute, value)
    for name in _FORMULAS.keys() - {*_VECTORS_OF_FLOAT64.values(), *_FLOAT64.values()}:
        op = f"tirx.{name}" if name not in _OWN else _OWN[name]
        before = tvm.ir.Op.get(op).get_attr(_ATTRIBUTE)
        tirx.op.register_intrin_lowering(op, target=CPU, f=_lowering(name, before), level=_LEVEL)


def _lowering(name: str, otherwise: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def lower(call: Any) -> Any:
        element, _, lanes = str(call.args[0].ty).partition("x")
        formula = name
        if element == "float64":
            of_vectors = _VECTORS_OF_FLOAT64 if lanes else {}
            formula = {**_FLOAT64, **of_vectors}.get(name, name)
        if element != _TAKES.get(formula, "float32"):
            return call if otherwise is None else otherwise(call)
        return tirx.call_pure_extern(str(call.ty), f"needle_{formula}_x{lanes or 1}", *call.args)

    return lower


def of_vectors(module: IRModule) -> IRModule:
    """Replace calls to C's fmod in a module's functions for CPUs with our own operation, because
    TVM does not vectorise fmod."""
    for variable, function in list(module.functions_items()):
        if isinstance(function, PrimFunc) and target_info(function.attrs["target"]).is_cpu:
            if any(map(_is_fmod, nodes_in(function.body, NODES.call))):
                body = tvm_ffi.structural_map(function.body, (NODES.call, _own_fmod))
                module.update_func(variable, function.with_body(body))
    return module


def _is_fmod(call: Any) -> bool:
    named = getattr(call.op, "name", "") == "tirx.call_pure_extern"
    return named and str(call.args[0].value) in ("fmod", "fmodf")


def _own_fmod(call: Any) -> Any:
    return tirx.call_intrin(str(call.ty), _FMOD, *call.args[1:]) if _is_fmod(call) else call


def with_definitions(module: IRModule) -> IRModule:
    """Give each function of a module the IR of the formulas that it calls."""

    def text(called: list[re.Match[str]], function: PrimFunc) -> str:
        machine = target_info(function.attrs["target"])
        return _definitions([(match[1], match[2]) for match in called], machine)

    return llvm.defining(module, _FUNCTION, text)


def _definitions(functions: Sequence[tuple[str, str]], machine: TargetInfo) -> str:
    """Return the LLVM IR of functions, given by name and number of lanes (1 for scalars)."""
    lines: list[str] = []
    declared: set[str] = set()
    for name, lanes in functions:
        text = Text(int(lanes), machine)
        of = "double" if name in _TAKES else "float"
        given = [Value(text, each, of) for each in ("%x", "%y")[: 2 if name in _OF_TWO else 1]]
        result = _FORMULAS[name](text, *given)
        # linkonce_odr: a program has one copy, however many of its modules define the function.
        kind = f"linkonce_odr {text.type_of(result.element)}"
        parameters = ", ".join(map(str, given))
        signature = f"{kind} @needle_{name}_x{lanes}({parameters}) alwaysinline"
        lines += [f"define {signature} {{", *text.lines, f"  ret {result}", "}"]
        declared |= text.declared
    return "\n".join([*sorted(declared), *lines, ""])
